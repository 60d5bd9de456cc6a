"""Environments of client libraries under `.venvs/`, each keyed by a hash of its pins: an unchanged one is made once.

`python -m tests.clients.environments [NAME…]` makes them ahead of the tests.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2] / ".venvs"


class Pins(NamedTuple):
    """What an environment holds. `shared`: packages missing in it are those of the Python that runs the tests (torch)."""

    packages: tuple[str, ...]
    npm: bool = False
    shared: bool = False


ENVIRONMENTS = {
    "hub": Pins(("huggingface_hub==2.4.0",)),
    "hub-0.36": Pins(("huggingface_hub==0.36.2",)),
    "text-generation": Pins(("text-generation==0.7.0", "huggingface_hub==0.36.2")),
    "openai": Pins(("openai==3.57.0",)),
    "langchain": Pins(("langchain-huggingface==1.2.3",)),
    "comply": Pins(("llm-comply==0.5.0",)),
    "schemathesis": Pins(("schemathesis==4.32.5",)),
    "lm-eval": Pins(("lm-eval[api]==0.4.13", "transformers"), shared=True),
    "aiperf": Pins(("aiperf==0.13.0",)),
    "guidellm": Pins(("guidellm==0.8.1", "torch"), shared=True),
    "transformers-4.55": Pins(("transformers==4.55.4",), shared=True),
    "node": Pins(("openai@6.49.0", "@huggingface/inference@4.13.30"), npm=True),
}


def environment(name: str) -> Path:
    """The folder of an environment that is complete; raises `CalledProcessError` when it cannot be made."""
    pins = ENVIRONMENTS[name]
    folder = ROOT / f"{name}-{_digest(pins)}"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (_npm if pins.npm else _pip)(folder, pins)
        (folder / "complete").touch()
    return folder


def python(name: str) -> Path:
    """The interpreter of a Python environment."""
    return environment(name) / "bin" / "python"


def _digest(pins: Pins) -> str:
    text = json.dumps([pins, sys.version_info[:3], sysconfig.get_platform(), sys.prefix if pins.shared else ""])
    return hashlib.sha256(text.encode()).hexdigest()[:10]


def _pip(folder: Path, pins: Pins) -> None:
    _run(sys.executable, "-m", "venv", str(folder))
    if pins.shared:
        site = sysconfig.get_path("purelib", vars={"base": str(folder)})
        Path(site, "shared.pth").write_text(sysconfig.get_path("purelib") + "\n")
    _run(str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *pins.packages)


def _npm(folder: Path, pins: Pins) -> None:
    (folder / "package.json").write_text("{}")
    _run("npm", "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", *pins.packages, cwd=folder)


def _run(*command: str, cwd: Path | None = None) -> None:
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    subprocess.run(command, check=True, cwd=cwd, env=env, stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    for wanted in sys.argv[1:] or ENVIRONMENTS:
        print(f"{wanted}: {environment(wanted)}", flush=True)
