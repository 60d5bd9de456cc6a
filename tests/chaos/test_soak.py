"""Memory: what thousands of finished requests leave in Redis (design §5)."""

from __future__ import annotations

import asyncio
import time

import pytest
from redis import Redis

from tests.chaos.streams import PROMPT, client
from tests.farm import Farm

pytestmark = [pytest.mark.anyio, pytest.mark.soak]

N_PLAIN = 5000
N_RESUMABLE = 500
MOST_BYTES = 1_000_000


async def test_finished_requests_leave_nothing(farm: Farm) -> None:
    """90 s after the last request: no key of a plain one, the results of resumable ones, and no more memory than that."""
    farm.env |= {"FARM_ORACLE_PREFILL_MS": "0", "FARM_ORACLE_STEP_MS": "0", "MAX_BATCH_SIZE": "32", "MAX_CONCURRENT_REQUESTS": "1000"}
    url = farm.gateway()
    farm.worker()
    farm.wait_ready()
    redis = Redis.from_url(farm.server.url)
    await _send(url, 200, {})
    await asyncio.sleep(65)
    before, keys_before = redis.info("memory")["used_memory"], redis.dbsize()
    await _send(url, N_PLAIN, {})
    await _send(url, N_RESUMABLE, {"x-farm-resume": "1"})
    ended_s = time.monotonic()
    while redis.dbsize() > keys_before + N_RESUMABLE and time.monotonic() < ended_s + 90:
        await asyncio.sleep(1)
    results = redis.keys("*}res:*")
    result_bytes = sum(redis.memory_usage(key) for key in results)
    print(f"{len(results)} results of {result_bytes} bytes; used_memory {redis.info('memory')['used_memory'] - before:+d} bytes")
    assert len(results) == N_RESUMABLE
    assert redis.dbsize() == keys_before + N_RESUMABLE, [key for key in redis.keys("*") if b"res:" not in key][:20]
    assert redis.info("memory")["used_memory"] <= before + MOST_BYTES + 2 * result_bytes


async def _send(url: str, n_requests: int, headers: dict[str, str]) -> None:
    gate = asyncio.Semaphore(64)
    async with client() as http:

        async def one(seed: int) -> None:
            async with gate:
                body = {"inputs": PROMPT, "parameters": {"max_new_tokens": 8, "seed": seed, "do_sample": True}}
                assert (await http.post(f"{url}/generate", json=body, headers=headers)).status_code == 200

        await asyncio.gather(*(one(seed) for seed in range(n_requests)))
