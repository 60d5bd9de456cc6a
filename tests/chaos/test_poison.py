"""Requests that kill, hang or break their engine: the guilty ends with one error, nobody else notices (design §7)."""

from __future__ import annotations

import asyncio
import time

import httpx
import pytest
from redis import Redis

from tests.chaos.checks import assert_whole, rows_per_prefill
from tests.chaos.streams import streams
from tests.farm import Farm
from workers.engines.oracle import DEADLY, FAULTY, HANGING, NOT_A_NUMBER

pytestmark = [pytest.mark.anyio, pytest.mark.chaos]


async def post(url: str, word: int, timeout_s: float = 90) -> httpx.Response:
    async with httpx.AsyncClient(timeout=timeout_s) as http:
        return await http.post(f"{url}/generate", json={"inputs": f"w11 w{word}", "parameters": {"max_new_tokens": 5}})


async def test_one_poison_among_many_on_one_worker(farm: Farm) -> None:
    """Twice the batch less one, of a batch that eight prefills fill."""
    n_rows = 8 * rows_per_prefill(farm)
    n_streams = 2 * n_rows - 1
    url = farm.gateway()
    farm.worker(MAX_BATCH_SIZE=str(n_rows), FARM_ORACLE_STEP_MS="40")
    farm.wait_ready()
    started_s = time.monotonic()
    shown = await streams(url, range(n_streams), 150)
    without_s = time.monotonic() - started_s
    assert_whole(farm, shown)
    started_s = time.monotonic()
    running = asyncio.create_task(streams(url, range(100, 100 + n_streams), 150))
    await asyncio.sleep(1)
    guilty = asyncio.create_task(post(url, DEADLY))
    assert_whole(farm, await running)
    with_s = time.monotonic() - started_s
    answer = await guilty
    assert (answer.status_code, answer.json()["error_type"]) == (424, "generation")
    assert "died" in answer.json()["error"]
    print(f"throughput with a poison ÷ without: {without_s / with_s:.2f}")
    assert without_s / with_s >= 0.5
    redis = Redis.from_url(farm.server.url)
    (dead,) = redis.keys("*}dead")
    assert [fields[b"why"] for _, fields in redis.xrange(dead)] == [b"died alone"]


async def test_unrelated_deaths_blame_no_innocent(farm: Farm) -> None:
    """Six deaths in decode, each after progress: the stream goes on."""
    url = farm.gateway()
    for _ in range(2):
        farm.worker()
    farm.wait_ready(2)
    running = asyncio.create_task(streams(url, [7], 400))
    redis = Redis.from_url(farm.server.url)
    for _ in range(6):
        seen = len(farm.worker_ids())
        deadline_s = time.monotonic() + 20
        owner = b""
        while not owner and time.monotonic() < deadline_s:
            await asyncio.sleep(0.05)
            owners = {redis.hget(key, "journal") for key in redis.keys("*req:*")}
            owner = next((o for o in owners if o and any(w.ids()[-1].encode() == o for w in farm.workers)), b"")
        worker = next(w for w in farm.workers if w.ids()[-1].encode() == owner)
        worker.signal_engine(9)
        while len(farm.worker_ids()) == seen and time.monotonic() < deadline_s:
            await asyncio.sleep(0.05)
        if running.done():
            break
    assert_whole(farm, await running)


@pytest.mark.parametrize(("word", "says"), [(FAULTY, "refuses"), (NOT_A_NUMBER, "not a number")])
async def test_a_faulty_row_ends_alone(farm: Farm, word: int, says: str) -> None:
    url = farm.gateway()
    worker = farm.worker()
    farm.wait_ready()
    running = asyncio.create_task(streams(url, range(4), 60))
    await asyncio.sleep(0.2)
    answer = await post(url, word)
    assert (answer.status_code, answer.json()["error_type"]) == (424, "generation")
    assert says in answer.json()["error"]
    assert_whole(farm, await running)
    assert len(worker.ids()) == 1, "the process goes on"
    assert_whole(farm, await streams(url, range(10, 18), 10))


async def test_a_device_that_hangs_loses_its_lease_and_its_life(farm: Farm) -> None:
    """Hang → first token elsewhere within lease + 1 s for the others; the one that hangs everybody ends with one error."""
    url = farm.gateway()
    workers = [farm.worker(), farm.worker()]
    farm.wait_ready(2)
    running = asyncio.create_task(streams(url, range(6), 200))
    await asyncio.sleep(0.5)
    guilty = asyncio.create_task(post(url, HANGING))
    shown = await running
    assert_whole(farm, shown)
    assert any("Hung worker=" in worker.text() for worker in workers)
    assert max(one.longest_pause_s for one in shown) < 6
    assert (await guilty).status_code == 424
