"""Packing and pulling of real processes on the oracle engine (cases B35, B41, B45, M3)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from redis import Redis

from common.messages import Event, Flag, Worker, decode, decode_events
from tests.chaos.streams import client, streams
from tests.farm import Farm, wait_for
from tests.servers import Server
from workers.engines.oracle import REPEATING

pytestmark = pytest.mark.anyio


@pytest.fixture
def farm(tmp_path: Path, server: Server) -> Iterator[Farm]:
    with Farm(tmp_path, server, {"FARM_ORACLE_SALTED": "true", "FARM_ORACLE_STEP_MS": "10", "MAX_CONCURRENT_REQUESTS": "1000"}) as farm:
        yield farm


def journal(farm: Farm) -> list[tuple[int, list[Event]]]:
    """All steps of the only worker, oldest first."""
    redis = Redis.from_url(farm.server.url)
    (key,) = redis.keys("*journal:*")
    return [(int(step.split(b"-")[0]), decode_events(fields[b"events"])) for step, fields in redis.xrange(key)]


def record(farm: Farm) -> Worker:
    """What the only worker says about itself."""
    redis = Redis.from_url(farm.server.url)
    (key,) = redis.keys("*}worker:*")
    return decode(Worker, redis.get(key))


async def test_nine_requests_on_four_slots_all_finish_first_come_first_served(farm: Farm) -> None:
    url = farm.gateway()
    farm.worker(MAX_BATCH_SIZE="4")
    farm.wait_ready()
    async with client() as http:
        body = {"inputs": "w5 w6 w77", "parameters": {"max_new_tokens": 20, "details": True}}
        running: list[asyncio.Task[httpx.Response]] = []
        order: list[str] = []
        for number in range(9):
            body["parameters"] |= {"seed": number, "max_new_tokens": 20 + number}  # type: ignore[operator]
            running.append(asyncio.create_task(http.post(f"{url}/generate", json=body.copy())))
            async with asyncio.timeout(10):
                while not (new := _rids(farm) - set(order)):
                    await asyncio.sleep(0.001)
            order += new
        answers = await asyncio.gather(*running)
    assert [answer.json()["details"]["generated_tokens"] for answer in answers] == [20 + number for number in range(9)]
    firsts = [event for _, events in journal(farm) for event in events if event.flags & Flag.FIRST]
    assert [event.rid.hex() for event in firsts] == order
    assert {event.first and event.first.artifact for event in firsts} == {record(farm).artifact} != {""}


async def test_a_free_slot_is_filled_again_within_two_steps(farm: Farm) -> None:
    url = farm.gateway()
    farm.worker(MAX_BATCH_SIZE="4", WAITING_SERVED_RATIO="0", FARM_ORACLE_STEP_MS="50")
    farm.wait_ready()
    shown = await streams(url, range(12), 8)
    assert not any(one.error for one in shown)
    finished, delays = None, []
    for step, events in journal(farm):
        if finished is not None and any(event.flags & Flag.FIRST for event in events):
            delays.append(step - finished)
            finished = None
        if any(event.flags & Flag.FINISH for event in events):
            finished = step if finished is None else finished
    assert len(delays) >= 2
    assert max(delays) <= 2, delays


async def test_an_idle_second_worker_takes_what_waits(farm: Farm) -> None:
    url = farm.gateway()
    farm.worker(MAX_BATCH_SIZE="1")
    farm.worker(MAX_BATCH_SIZE="1")
    farm.wait_ready(2)
    waits_ms = []
    async with client() as http:
        for seed in range(5):
            long = asyncio.create_task(streams(url, [seed], 60))
            redis = Redis.from_url(farm.server.url)
            async with asyncio.timeout(10):
                while not any(redis.hget(key, "state") == b"running" for key in redis.keys("*req:*")):
                    await asyncio.sleep(0.005)
            body = {"inputs": "w1", "parameters": {"max_new_tokens": 2, "details": True}}
            answer = await http.post(f"{url}/generate", json=body)
            waits_ms.append(int(answer.headers["x-queue-time"]))
            assert not (await long)[0].error
    assert sorted(waits_ms)[2] <= 20, waits_ms


async def test_one_subscription_serves_every_stream(farm: Farm) -> None:
    url = farm.gateway()
    farm.worker(MAX_BATCH_SIZE="64")
    farm.wait_ready()
    running = asyncio.create_task(streams(url, range(150), 20))
    redis = Redis.from_url(farm.server.url)
    most = 0
    while not running.done():
        most = max(most, len(redis.execute_command("CLIENT", "LIST", "TYPE", "pubsub").splitlines()))
        await asyncio.sleep(0.05)
    assert not any(one.error for one in await running)
    assert most == 1


def test_health_tells_when_the_farm_can_serve(farm: Farm) -> None:
    url = farm.gateway()
    wait_for(lambda: _status(f"{url}/health/live") == 200)
    assert _status(f"{url}/health") == 503
    assert httpx.get(f"{url}/health").json() == {"error": "unhealthy", "error_type": "healthcheck"}
    assert _status(f"{url}/health/accept") == 200
    refused = httpx.post(f"{url}/generate", json={"inputs": "w1"})
    assert (refused.status_code, refused.json()["error_type"]) == (429, "overloaded")
    assert int(refused.headers["retry-after"]) >= 1
    farm.worker()
    farm.wait_ready()
    assert httpx.post(f"{url}/generate", json={"inputs": "w1", "parameters": {"max_new_tokens": 1}}).status_code == 200


def test_a_job_after_a_long_silence_is_picked_up_at_once(farm: Farm) -> None:
    url = farm.gateway()
    farm.worker()
    farm.wait_ready()
    redis = Redis.from_url(farm.server.url)
    before = redis.info("stats")["total_commands_processed"]
    time.sleep(7)  # longer than any time-out of a command
    spent = redis.info("stats")["total_commands_processed"] - before
    assert spent < 7 * 60, "no storm of retries"
    answer = httpx.post(f"{url}/generate", json={"inputs": "w1", "parameters": {"max_new_tokens": 1, "details": True}})
    assert answer.status_code == 200
    assert int(answer.headers["x-queue-time"]) < 1000
    assert "ERROR" not in farm.logs()


def test_a_row_that_repeats_itself_is_seen(farm: Farm) -> None:
    url = farm.gateway()
    farm.worker(FARM_ORACLE_STEP_MS="0")
    farm.wait_ready()
    for word, n_tokens in ((REPEATING, 63), (11, 80), (REPEATING, 80)):
        assert "Repeats rid=" not in farm.workers[0].text()
        body = {"inputs": f"w{word}", "parameters": {"max_new_tokens": n_tokens}}
        assert httpx.post(f"{url}/generate", json=body, timeout=20).status_code == 200
    wait_for(lambda: "Repeats rid=" in farm.workers[0].text())


def _rids(farm: Farm) -> set[str]:
    return {key.decode().rpartition("req:")[2] for key in Redis.from_url(farm.server.url).keys("*req:*")}


def _status(url: str) -> int:
    try:
        return httpx.get(url).status_code
    except httpx.HTTPError:
        return 0
