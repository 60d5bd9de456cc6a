"""More work than the farm can do: who is refused is told truly when to come back (design §8)."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections import Counter

import httpx
import pytest

from tests.farm import Farm

pytestmark = [pytest.mark.anyio, pytest.mark.soak]


async def test_overload_is_refused_at_once_and_most_second_tries_get_in(farm: Farm) -> None:
    """4 × overload for 60 s; clients wait Retry-After once (design §8). The farm ends about one request a second."""
    farm.env |= {"FARM_ORACLE_PREFILL_MS": "20", "FARM_ORACLE_STEP_MS": "38", "MAX_BATCH_SIZE": "2"}
    url = farm.gateway()
    farm.worker()
    farm.worker()
    farm.wait_ready(2)
    first_tries = second_tries = second_admitted = 0
    delays_s: list[float] = []
    ends: Counter[str] = Counter()
    async with httpx.AsyncClient(timeout=300, limits=httpx.Limits(max_connections=None), trust_env=False) as http:

        async def one(seed: int) -> None:
            nonlocal first_tries, second_tries, second_admitted
            request = {"inputs": "w11 w12", "parameters": {"max_new_tokens": 100, "seed": seed, "do_sample": True}}
            started_s = time.monotonic()
            answer = await http.post(f"{url}/generate", json=request)
            first_tries += 1
            if answer.status_code == 200:
                return
            delays_s.append(time.monotonic() - started_s)
            assert (answer.status_code, answer.json()["error_type"]) == (429, "overloaded")
            await asyncio.sleep(int(answer.headers["retry-after"]))
            second_tries += 1
            again = await http.post(f"{url}/generate", json=request)
            second_admitted += again.status_code == 200
            ends[f"{answer.headers['retry-after']} s: {again.status_code} {again.text[:80] if again.status_code != 200 else ''}"] += 1

        tasks, seed, until_s = [], 0, time.monotonic() + 60
        while time.monotonic() < until_s:
            tasks.append(asyncio.create_task(one(seed)))
            seed += 1
            await asyncio.sleep(1 / 4)
        await asyncio.gather(*tasks)
    refusal_s = statistics.median(delays_s)
    print(f"{first_tries} first tries, {second_tries} second tries, {second_admitted} admitted, refused within {refusal_s:.3f} s (p50)")
    assert second_tries > 20
    assert second_admitted / second_tries >= 0.8, ends
