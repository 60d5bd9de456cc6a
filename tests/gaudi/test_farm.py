"""The whole farm over the card's double: gateway → Redis → Gaudi engine → SSE."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import httpx
import pytest
from redis import Redis

from tests.farm import Farm, wait_for
from tests.neuron.test_farm import continued, streams
from tests.servers import free_port

pytestmark = pytest.mark.anyio

PROMPTS = [[77], [15, 16], [19] * 60, list(range(100, 400))]


async def test_more_requests_than_slots_each_get_what_they_get_alone(farm: Farm) -> None:
    url = farm.gateway()
    farm.worker()
    farm.wait_ready()
    prompts = PROMPTS * 4
    assert await streams(url, prompts) == [continued(prompt) for prompt in prompts]
    assert "serving, in a" not in farm.workers[0].text()


async def test_scripted_memory_lowers_the_published_limit_and_one_token_more_is_refused(farm: Farm) -> None:
    """gaudi.md §7, cases 1, 3, 6 and 15: the limit is what was warmed, counted in real tokens."""
    url = farm.gateway()
    farm.worker(FARM_DOUBLE="memory_mb=300,token_kb=1024")
    farm.wait_ready()
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        limit = (await client.get(f"{url}/info")).json()["max_input_tokens"]
        assert limit < 511
        assert "No prefill of" in farm.workers[0].text()

        async def generate(n_tokens: int) -> httpx.Response:
            body = {"inputs": " ".join(["w77"] * n_tokens), "parameters": {"max_new_tokens": 2}}
            return await client.post(f"{url}/generate", json=body)

        assert (await generate(limit)).status_code == 200
        refused = await generate(limit + 1)
    assert refused.status_code == 422
    assert f"must have less than {limit} tokens. Given: {limit + 1}" in refused.text


@pytest.mark.contract_gaudi
async def test_a_busy_card_is_tried_again(farm: Farm) -> None:
    url = farm.gateway()
    farm.worker(FARM_DOUBLE="busy=1,n_cards=1")
    farm.wait_ready()
    assert "busy, trying again in 1 s" in farm.workers[0].text()
    assert await streams(url, PROMPTS[:1]) == [continued(PROMPTS[0])]


@pytest.mark.contract_gaudi
async def test_a_card_that_fails_hands_its_rows_back_and_starts_again(farm: Farm) -> None:
    url = farm.gateway()
    farm.worker(FARM_DOUBLE="step_ms=5,fail_at=60")
    farm.wait_ready()
    assert await streams(url, PROMPTS[:3]) == [continued(prompt) for prompt in PROMPTS[:3]]
    assert "synLaunch failed" in farm.workers[0].text()
    assert len(farm.worker_ids()) >= 2, "the same supervisor, a new process"


@pytest.mark.contract_gaudi
async def test_a_card_that_hangs_loses_its_rows_and_health_answers(farm: Farm) -> None:
    url = farm.gateway()
    farm.worker(FARM_DOUBLE="step_ms=20,hang_at=90", FARM_LEASE_S="1")
    farm.wait_ready()
    running = asyncio.create_task(streams(url, PROMPTS[:2], max_new_tokens=120))
    farm.worker(FARM_DOUBLE="step_ms=5", FARM_LEASE_S="1", HABANA_VISIBLE_MODULES="1")
    async with httpx.AsyncClient(trust_env=False) as client:
        assert (await client.get(f"{url}/health/live")).status_code == 200
    assert await running == [continued(prompt, 120) for prompt in PROMPTS[:2]]


@pytest.mark.contract_gaudi
async def test_nan_ends_one_request_and_scrubs_its_slot(farm: Farm) -> None:
    url = farm.gateway()
    farm.worker(FARM_DOUBLE="nan_at=80")
    farm.wait_ready()
    given = await asyncio.gather(*(streams(url, [prompt], max_new_tokens=60) for prompt in PROMPTS[1:]), return_exceptions=True)
    broken = [each for each in given if isinstance(each, AssertionError)]
    assert len(broken) == 1
    assert "not a number" in str(broken[0])
    assert await streams(url, PROMPTS[1:]) == [continued(prompt) for prompt in PROMPTS[1:]]


@pytest.mark.contract_gaudi
def test_a_warm_up_shows_life_and_makes_no_long_lease(farm: Farm) -> None:
    url = farm.gateway()
    few_shapes = {"MAX_BATCH_SIZE": "1", "MAX_INPUT_TOKENS": "128"}
    worker = farm.worker(FARM_DOUBLE="compile_ms=1000", FARM_METRICS_PORT=str(port := free_port()), FARM_LEASE_S="1", **few_shapes)

    def seen(name: str) -> float:
        with suppress(httpx.TransportError):
            lines = httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False).text.splitlines()
            return next((float(line.split()[-1]) for line in lines if line.startswith(name)), 0.0)
        return 0.0

    wait_for(lambda: 0 < seen("farm_start_progress") < 1, 20, farm.logs)
    first_s = seen("farm_start_heartbeat_seconds")
    wait_for(lambda: seen("farm_start_heartbeat_seconds") > first_s, 5, farm.logs)
    assert (httpx.get(f"{url}/health", trust_env=False).status_code, worker.ids()) == (503, [])
    farm.wait_ready()
    assert seen("farm_start_progress") == 1.0
    redis = Redis.from_url(farm.server.url)
    (workers,) = redis.keys("*}workers")
    ((_, until_ms),) = redis.zrange(workers, 0, -1, withscores=True)
    assert until_ms / 1000 - time.time() < 5, "three calls of what was compiled, not of what compiled"


@pytest.mark.contract_gaudi
async def test_a_cold_worker_serves_at_once(farm: Farm) -> None:
    url = farm.gateway()
    farm.worker(VLLM_SKIP_WARMUP="true", FARM_DOUBLE="compile_ms=300")
    farm.wait_ready()
    assert await streams(url, PROMPTS) == [continued(prompt) for prompt in PROMPTS]
    assert "Warmed" not in farm.workers[0].text()
