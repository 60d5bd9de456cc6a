"""A farm of real processes for tests: a server, gateways, supervised workers; clients that check what they are shown."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import httpx

from tests.servers import Server, free_port

ROOT = Path(__file__).parent.parent


class Process:
    """One `python -m …` with its output in a file."""

    def __init__(self, log: Path, module: str, env: Mapping[str, str]) -> None:
        self.log = log
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("FARM", "HF_", "MODEL", "REDIS"))}
        child_end, self.parent_end = os.pipe()  # closes with this process, however it ends
        with log.open("ab") as out:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", module], cwd=ROOT, env={**clean, "PYTHONPATH": str(ROOT), "FARM_PARENT_FD": str(child_end), **env},
                stdout=out, stderr=out, pass_fds=[child_end], start_new_session=True,
            )  # fmt: skip
        os.close(child_end)

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def end(self, how: signal.Signals = signal.SIGTERM, timeout_s: float = 20) -> int:
        if self.popen.poll() is None:
            self.popen.send_signal(how)
        return self.popen.wait(timeout_s)


class WorkerProcess(Process):
    """A supervisor; its engine process is the only child it has."""

    def ids(self) -> list[str]:
        """The worker ids that lived here, oldest first."""
        return re.findall(r"Connected worker=(\S+)", self.text())

    def engine_pid(self) -> int:
        children = Path(f"/proc/{self.popen.pid}/task/{self.popen.pid}/children").read_text().split()
        return int(children[0])

    def signal_engine(self, how: signal.Signals) -> None:
        os.kill(self.engine_pid(), how)


class Farm:
    """Oracle by default. Ends everything it started, by process id."""

    def __init__(self, folder: Path, server: Server, env: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        self.server = server
        self.env = {
            "REDIS_URL": server.url,
            "FARM": f"farm-{server.port}-{time.monotonic_ns()}",
            "FARM_BACKEND": "oracle",
            "MODEL_ID": "oracle",
            "MAX_TOTAL_TOKENS": "512",
            "HF_HUB_OFFLINE": "1",
            **(env or {}),
        }
        self.gateways: list[Process] = []
        self.workers: list[WorkerProcess] = []
        self.ports: list[int] = []

    def __enter__(self) -> Farm:
        return self

    def __exit__(self, *_: object) -> None:
        for process in [*self.gateways, *self.workers]:
            if process.popen.poll() is None:
                process.popen.send_signal(signal.SIGCONT)
                process.popen.kill()
            process.popen.wait(10)
            os.close(process.parent_end)

    def gateway(self, **env: str) -> str:
        """Starts a gateway; returns its address."""
        port = free_port()
        log = self.folder / f"gateway{len(self.gateways)}.log"
        self.gateways.append(Process(log, "gateway", {**self.env, "PORT": str(port), "HOSTNAME": "127.0.0.1", **env}))
        self.ports.append(port)
        return f"http://127.0.0.1:{port}"

    def worker(self, **env: str) -> WorkerProcess:
        log = self.folder / f"worker{len(self.workers)}.log"
        self.workers.append(WorkerProcess(log, "workers", {**self.env, **env}))
        return self.workers[-1]

    def worker_ids(self) -> list[str]:
        return [worker_id for worker in self.workers for worker_id in worker.ids()]

    def wait_ready(self, n_workers: int = 1, timeout_s: float = 60) -> None:
        """Until that many worker ids connected and every gateway says that it can serve."""
        wait_for(lambda: len(self.worker_ids()) >= n_workers, timeout_s, self.logs)
        for port in self.ports:
            wait_for(lambda port=port: healthy(port), timeout_s, self.logs)  # type: ignore[misc]

    def metric(self, name: str) -> float:
        """A series without labels, summed over the gateways."""
        pages = (httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=5).text for port in self.ports)
        return sum(float(value) for page in pages for value in re.findall(rf"^{name} (\S+)$", page, re.MULTILINE))

    def logs(self) -> str:
        return "\n".join(f"--- {p.log.name}\n{p.text()[-3000:]}" for p in [*self.gateways, *self.workers])


def healthy(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health", timeout=2).status_code == 200
    except httpx.HTTPError:
        return False


def wait_for(condition: Callable[[], Any], timeout_s: float = 10, context: Callable[[], str] = lambda: "") -> None:
    """Polls until true; fails with the context after the time-out."""
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline_s:
            raise AssertionError(f"not within {timeout_s} s\n{context()}")
        time.sleep(0.01)


def events(body: IO[str] | Any) -> list[dict[str, Any]]:
    """The JSON objects of an SSE body given as lines."""
    return [json.loads(line[5:]) for line in body if line.startswith("data:")]
