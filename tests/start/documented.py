"""A documented `docker run` line as `tokenfarm serve`.

What stands before the image's name (ports, volumes, devices) is not ours; `-e` and what follows the image is. The hub is one on
this machine, the chip is a double.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.start.farm import Run, page, tokenfarm
from tests.workers.fake_hub import FakeHub


def started(line: str, image: str, **env: str) -> Run:
    """The process; `env` is what a test adds to the line's own variables."""
    before, found, after = line.replace("\\\n", " ").partition(image)
    assert found, "the line runs the image"
    given = dict(pair.replace('"', "").split("=", 1) for pair in re.findall(r"-e (\S+)", before))
    return tokenfarm("serve", *after.split(), **{**given, "HF_TOKEN": "hf_member", "PORT": "0", **env})


@contextmanager
def served(line: str, image: str, **env: str) -> Iterator[tuple[Run, dict[str, Any]]]:
    """Starts what the line says; gives the process and its /info once it can serve."""
    run = started(line, image, **env)
    try:
        url = run.says("Connected: ").partition("Connected: ")[2].split()[0]
        yield run, json.loads(page(f"{url}/info"))
    finally:
        run.close()


def refused(line: str, image: str, **env: str) -> tuple[int, str]:
    """Exit status and output of a line that does not start."""
    run = started(line, image, **env)
    try:
        return run.process.wait(60), run.text
    finally:
        run.close()


@contextmanager
def hub(model_id: str, folder: Path) -> Iterator[dict[str, str]]:
    """A hub with this model; what a process needs to ask it."""
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    with FakeHub(model_id, files, gated=True).running() as running:
        yield {"HF_ENDPOINT": running.url, "HF_HOME": str(folder.parent / "hub")}
