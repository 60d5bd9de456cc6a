"""A worker that serves before its shapes are compiled: slow is not dead, and nothing waits for its long lease."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from redis import Redis

from tests.farm import Farm, wait_for
from tests.servers import Server
from workers.cold import REMIND_EVERY_S, Reminder
from workers.engines.oracle import CALLS_PER_COMPILATION

PREFILL_MS = 300
QUICK_LEASE = {"FARM_LEASE_S": "0.5", "FARM_ORACLE_PREFILL_MS": str(PREFILL_MS)}
"""A first prefill takes six leases, and the supervisor looks twice meanwhile."""


@pytest.fixture
def farm(tmp_path: Path, server: Server) -> Iterator[Farm]:
    with Farm(tmp_path, server, QUICK_LEASE) as farm:
        yield farm


def generate(url: str) -> httpx.Response:
    return httpx.post(f"{url}/generate", json={"inputs": "w11 w12", "parameters": {"max_new_tokens": 3}}, timeout=60)


def test_a_cold_worker_serves_and_is_not_taken_for_dead_while_it_compiles(farm: Farm) -> None:
    url = farm.gateway()
    worker = farm.worker(WARMUP_ENABLED="false")
    farm.wait_ready()
    assert [one["state"] for one in httpx.get(f"{url}/farm").json()["workers"]] == ["cold"]
    first, second = generate(url), generate(url)
    assert first.status_code == second.status_code == 200
    waits_ms = [int(answer.headers["x-inference-time"]) for answer in (first, second)]
    assert waits_ms[0] >= CALLS_PER_COMPILATION * PREFILL_MS > waits_ms[1]
    assert len(worker.ids()) == 1, worker.text()
    assert worker.text().count("Cold worker=") == 1
    page = httpx.get(f"{url}/metrics").text
    assert 'farm_workers{state="cold"} 1.0' in page and 'farm_workers{state="ready"} 0.0' in page
    assert "farm_unwarmed_shapes_total 0.0" in page


def test_requests_of_a_cold_worker_go_on_at_once_when_its_supervisor_is_killed(farm: Farm) -> None:
    """In the midst of a compilation, and with a lease of ten minutes."""
    url = farm.gateway()
    worker = farm.worker(VLLM_SKIP_WARMUP="true", FARM_ORACLE_PREFILL_MS="10000")
    farm.wait_ready()
    redis = Redis.from_url(farm.server.url)
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(generate, url)
        wait_for(lambda: [redis.hget(key, "owner") for key in redis.keys("*req:*")] == [worker.ids()[0].encode()], 10, farm.logs)
        engine = worker.engine_pid()
        worker.end(signal.SIGKILL)
        wait_for(lambda: not Path(f"/proc/{engine}").exists(), 5)
        farm.worker()
        assert answer.result(30).status_code == 200


def test_it_says_so_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    reminder = Reminder()
    for now_s in (100.0, 101.0, 100.0 + REMIND_EVERY_S - 1, 100.0 + REMIND_EVERY_S, 101.0 + REMIND_EVERY_S):
        reminder.remind("w1", now_s)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 2
    assert "VLLM_SKIP_WARMUP" in caplog.text and "w1" in caplog.text
