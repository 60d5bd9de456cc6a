"""Real gateways in front of a real server; the worker is a scripted one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.farm import Process, healthy, wait_for
from tests.gateway.scripted import ScriptedWorker, count
from tests.servers import Server, free_port


@dataclass
class Gateway:
    """One gateway process."""

    port: int
    process: Process

    @property
    def http(self) -> httpx.Client:
        return httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=20, trust_env=False, verify=False)

    def get(self, path: str) -> httpx.Response:
        with self.http as http:
            return http.get(path)

    def number(self, series: str) -> float:
        """One value of the metrics page."""
        lines = dict(line.rsplit(" ", 1) for line in self.get("/metrics").text.splitlines() if not line.startswith("#"))
        return float(lines[series])


def start_gateway(redis_url: str, farm: str, log: Path, **env: str) -> Gateway:
    port = free_port()
    given = {"REDIS_URL": redis_url, "FARM": farm, "PORT": str(port), "HOSTNAME": "127.0.0.1", **env}
    gateway = Gateway(port, Process(log, "gateway", given))
    wait_for(lambda: listens(gateway), 20, gateway.process.text)
    return gateway


def listens(gateway: Gateway) -> bool:
    assert gateway.process.popen.poll() is None, gateway.process.text()
    try:
        return gateway.get("/health/live").status_code == 200
    except httpx.TransportError:
        return False


def sse(response: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream that has been read to its end."""
    blocks = response.read().decode().split("\n\n")
    assert blocks.pop() == ""
    assert all(block.startswith("data: ") for block in blocks)
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


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
    shared_worker.n_free = 0
    shared_worker.seen.clear()
    shared_worker.cancelled.clear()
    yield shared_worker
    shared_worker.go.set()
    wait_for(lambda: not shared_worker.running())


@pytest.fixture(scope="session")
def gateway(redis_url: str, shared_worker: ScriptedWorker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """The gateway most tests use, with TGI's defaults."""
    gateway = start_gateway(redis_url, "farm", tmp_path_factory.mktemp("gateway") / "log")
    wait_for(lambda: healthy(gateway.port), 10, gateway.process.text)
    yield gateway
    assert gateway.process.end() == 0


@pytest.fixture(scope="session")
def strict(redis_url: str, shared_worker: ScriptedWorker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway with a key, one permit, a small payload limit and prompt log-probabilities."""
    limits = {"MAX_CONCURRENT_REQUESTS": "1", "PAYLOAD_LIMIT": "5000", "ENABLE_PREFILL_LOGPROBS": "true", "COMPUTE_TYPE": "1-test"}
    log = tmp_path_factory.mktemp("strict") / "log"
    gateway = start_gateway(redis_url, "farm", log, API_KEY="Secret-Key", **limits)
    wait_for(lambda: healthy(gateway.port), 10, gateway.process.text)
    yield gateway
    assert gateway.process.end() == 0


@pytest.fixture
def http(gateway: Gateway, worker: ScriptedWorker) -> Iterator[httpx.Client]:
    with gateway.http as client:
        yield client


@pytest.fixture
def keyed(strict: Gateway, worker: ScriptedWorker) -> Iterator[httpx.Client]:
    """A client of the strict gateway that has the key."""
    with strict.http as client:
        client.headers["authorization"] = "Bearer Secret-Key"
        yield client
