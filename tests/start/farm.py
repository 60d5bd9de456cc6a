"""Runs `tokenfarm` commands as people do: real processes, real signals."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).parent.parent.parent
UP = ("common.cli", "up")
MARK = "TOKENFARM_TEST_RUN"

T = TypeVar("T")


def clean_env(**more: str) -> dict[str, str]:
    """The environment without what decides where or as what a farm starts."""
    ours = re.compile(r"FARM|WORKERS$|REDIS_URL|PORT$|HOSTNAME$|MODEL_ID|HF_|MAKE|PIP_")
    return {**{key: value for key, value in os.environ.items() if not ours.match(key)}, **more}


def until(condition: Callable[[], T | None], what: str, within_s: float = 30.0) -> T:
    """Waits for a condition to give a true value, and fails after the deadline."""
    deadline_s = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < deadline_s, f"not within {within_s:g} s: {what}"
        time.sleep(0.02)
    return value


class Run:
    """One command with all it starts; found by a mark in the environment."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], cwd: Path = ROOT, pass_fds: Sequence[int] = ()) -> None:
        self.mark = uuid.uuid4().hex
        self.folder = Path(tempfile.mkdtemp(prefix="tf-", dir="/tmp"))
        self.log = self.folder / "log"
        env = {**env, MARK: self.mark, "TMPDIR": str(self.folder)}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                command, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=pass_fds, start_new_session=True
            )

    @property
    def text(self) -> str:
        """All output so far."""
        return self.log.read_text(errors="replace")

    def says(self, words: str, within_s: float = 30.0) -> str:
        """Waits for a line with these words; gives the line."""

        def line() -> str | None:
            if self.process.poll() is not None and words not in self.text:
                raise AssertionError(f"ended with {self.process.returncode} without {words!r}:\n{self.text}")
            return next((line for line in self.text.splitlines() if words in line), None)

        try:
            return until(line, words, within_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.text}") from None

    def processes(self) -> dict[int, str]:
        """Command lines of all living processes of this run; the broker writes its title over its environment."""
        found = {}
        for process in Path("/proc").glob("[0-9]*"):
            try:
                command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                if f"{MARK}={self.mark}".encode() in (process / "environ").read_bytes() or str(self.folder) in command:
                    found[int(process.name)] = command
            except OSError:
                continue
        return found

    def pid_of(self, pattern: str) -> int | None:
        """A process whose command line matches."""
        return next((pid for pid, command in self.processes().items() if re.search(pattern, command)), None)

    def crash(self, pattern: str) -> int:
        """Kills the one process whose command line matches."""
        pid = self.pid_of(pattern)
        assert pid, f"no process matches {pattern}: {self.processes()}"
        os.kill(pid, signal.SIGKILL)
        return pid

    def broker_folders(self) -> list[Path]:
        """The private folders of embedded brokers that are there now."""
        return list(self.folder.glob("tokenfarm-*"))

    def close(self) -> None:
        """Ends whatever is left."""
        for pid in self.processes():
            os.kill(pid, signal.SIGKILL)
        self.process.wait(10)
        shutil.rmtree(self.folder)


def tokenfarm(*argv: str, python: str = sys.executable, **env: str) -> Run:
    """A `tokenfarm` command with this Python."""
    return Run([python, "-P", "-m", "common.cli", *argv], clean_env(**env))


def status_of(url: str, body: bytes | None = None, key: str = "") -> int:
    """HTTP status of one request; 0 when there is no answer."""
    headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=10) as answer:
            answer.read()
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    except OSError:
        return 0


def page(url: str) -> str:
    """The text of one page."""
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read().decode())
