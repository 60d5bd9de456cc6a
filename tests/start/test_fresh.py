"""The README's first command in a clone of its own. Needs a package index."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.start.farm import ROOT, Run, clean_env, status_of, until

pytestmark = pytest.mark.fresh

INSTALL_S = 1800
SECOND_START_S = 60


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("clone") / "tokenfarm"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(folder)], check=True)
    return folder


def make_run(clone: Path, **env: str) -> Iterator[Run]:
    run = Run(["make", "run"], clean_env(PORT="0", FARM_BACKEND="oracle", **env), cwd=clone)
    try:
        yield run
        os.killpg(run.process.pid, signal.SIGINT)
        until(lambda: not run.processes(), "no process is left", 5)
        assert run.broker_folders() == []
    finally:
        run.close()


def test_make_run_installs_with_progress_and_serves(clone: Path) -> None:
    users = {key: value for key, value in os.environ.items() if key.startswith("PIP_")}
    for run in make_run(clone, **users):
        url = run.says("Connected: ", INSTALL_S).partition("Connected: ")[2].split()[0]
        assert " s left" in run.text
        assert status_of(f"{url}/generate", b'{"inputs":"hello","parameters":{"max_new_tokens":20}}') == 200


def test_a_second_start_is_quick_and_works_without_an_index(clone: Path) -> None:
    log = (clone / ".venv" / "install.log").read_bytes()
    for run in make_run(clone, PIP_CONFIG_FILE=os.devnull, PIP_INDEX_URL="http://127.0.0.1:9/", HF_ENDPOINT="http://127.0.0.1:9"):
        url = run.says("Connected: ", SECOND_START_S).partition("Connected: ")[2].split()[0]
        assert status_of(f"{url}/health") == 200
    assert (clone / ".venv" / "install.log").read_bytes() == log
