"""Real gateways in front of a real server; the worker is a scripted one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from tests.gateway.scripted import ScriptedWorker, count
from tests.servers import Server, free_port

ROOT = Path(__file__).parents[2]


def until(true: Callable[[], object], what: str, deadline_s: float = 10.0) -> None:
    """Waits for a condition; fails with its name."""
    end = time.monotonic() + deadline_s
    while not true():
        if time.monotonic() > end:
            raise AssertionError(f"not within {deadline_s} s: {what}")
        time.sleep(0.005)


@dataclass
class Gateway:
    """One gateway process."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path

    @property
    def http(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=20, trust_env=False)

    def stop(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(10)


def start_gateway(redis_url: str, farm: str, log: Path, **env: str) -> Gateway:
    port = free_port()
    given = {"PATH": os.environ["PATH"], "REDIS_URL": redis_url, "FARM": farm, "PORT": str(port), "HOSTNAME": "127.0.0.1", **env}
    with log.open("wb") as output:
        process = subprocess.Popen([sys.executable, "-m", "gateway"], env=given, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
    gateway = Gateway(f"http://127.0.0.1:{port}", process, log)
    with gateway.http as http:
        until(lambda: _answers(http, process), "the gateway listens")
    return gateway


def _answers(http: httpx.Client, process: subprocess.Popen[bytes]) -> bool:
    assert process.poll() is None, "the gateway ended at start"
    try:
        return http.get("/health/live").status_code == 200
    except httpx.TransportError:
        return False


def until_healthy(gateway: Gateway) -> None:
    with gateway.http as http:
        until(lambda: http.get("/health").status_code == 200, "the farm is healthy")


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    server = Server(tmp_path_factory.mktemp("redis")).start()
    yield server.url
    server.stop()


@pytest.fixture(scope="session")
def shared_worker(redis_url: str) -> Iterator[ScriptedWorker]:
    worker = ScriptedWorker(redis_url, "farm").start()
    yield worker
    worker.stop()


@pytest.fixture
def worker(shared_worker: ScriptedWorker) -> Iterator[ScriptedWorker]:
    """The shared worker with the default script, nothing seen yet."""
    shared_worker.script = count
    shared_worker.seen.clear()
    shared_worker.cancelled.clear()
    yield shared_worker
    shared_worker.go.set()


@pytest.fixture(scope="session")
def gateway(redis_url: str, shared_worker: ScriptedWorker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """The gateway most tests use, with TGI's defaults."""
    gateway = start_gateway(redis_url, "farm", tmp_path_factory.mktemp("gateway") / "log")
    until_healthy(gateway)
    yield gateway
    gateway.stop()


@pytest.fixture(scope="session")
def strict(redis_url: str, shared_worker: ScriptedWorker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway with a key, one permit and a small payload limit."""
    log = tmp_path_factory.mktemp("strict") / "log"
    limits = {"MAX_CONCURRENT_REQUESTS": "1", "PAYLOAD_LIMIT": "5000", "ENABLE_PREFILL_LOGPROBS": "true", "COMPUTE_TYPE": "1-test"}
    gateway = start_gateway(redis_url, "farm", log, API_KEY="Secret-Key", **limits)
    until_healthy(gateway)
    yield gateway
    gateway.stop()


@pytest.fixture
def http(gateway: Gateway, worker: ScriptedWorker) -> Iterator[httpx.Client]:
    with gateway.http as client:
        yield client
