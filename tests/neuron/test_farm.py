"""The whole farm over the double: gateway → Redis → Neuron engine → SSE."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from tests.farm import Farm, wait_for
from tests.neuron.doubles import exported
from workers.double_tokens import hashed_token
from workers.engines.oracle import N_SPECIAL, N_WORDS

pytestmark = pytest.mark.anyio

PROMPTS = [[77], [15, 16], [19] * 60, list(range(100, 400))]
N_NEW = 40


def continued(prompt: list[int], n_new: int = N_NEW) -> list[int]:
    """What the double gives this prompt alone."""
    tokens = list(prompt)
    for _ in range(n_new):
        tokens.append(hashed_token(tuple(tokens), N_WORDS, N_SPECIAL))
    return tokens[len(prompt) :]


async def stream(client: httpx.AsyncClient, url: str, prompt: list[int], **parameters: Any) -> list[int]:
    """The token ids of one stream; fails with its error."""
    body = {"inputs": " ".join(f"w{token}" for token in prompt), "parameters": {"max_new_tokens": N_NEW, **parameters}}
    tokens = []
    async with client.stream("POST", f"{url}/generate_stream", json=body) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if line.startswith("data:"):
                event = json.loads(line[5:])
                assert "error" not in event, event
                tokens.append(event["token"]["id"])
    return tokens


async def streams(url: str, prompts: list[list[int]], **parameters: Any) -> list[list[int]]:
    async with httpx.AsyncClient(timeout=60, trust_env=False) as client:
        return list(await asyncio.gather(*(stream(client, url, prompt, **parameters) for prompt in prompts)))


async def test_more_requests_than_slots_each_get_what_they_get_alone(farm: Farm) -> None:
    """optimum-neuron #473: what does not fit the batch waits; vLLM #8007: and nothing collapses."""
    url = farm.gateway()
    farm.worker()
    farm.wait_ready()
    prompts = PROMPTS * 4
    assert await streams(url, prompts) == [continued(prompt) for prompt in prompts]


@pytest.mark.contract_neuron
async def test_a_device_that_fails_hands_its_rows_back_and_starts_again(farm: Farm) -> None:
    url = farm.gateway()
    farm.worker(FARM_DOUBLE="step_ms=5,fail_at=30,status=1006")
    farm.wait_ready()
    assert await streams(url, PROMPTS[:3]) == [continued(prompt) for prompt in PROMPTS[:3]]
    assert "status 1006 (out of bounds)" in farm.workers[0].text()
    assert len(farm.worker_ids()) >= 2, "the same supervisor, a new process"


@pytest.mark.contract_neuron
async def test_a_broken_device_ends_its_worker_and_another_one_goes_on(farm: Farm) -> None:
    url = farm.gateway()
    broken = farm.worker(FARM_DOUBLE="step_ms=20,fail_at=60,status=101")
    farm.wait_ready()
    running = asyncio.create_task(streams(url, PROMPTS[:3], max_new_tokens=120))
    farm.worker(FARM_DOUBLE="step_ms=5")
    assert await running == [continued(prompt, 120) for prompt in PROMPTS[:3]]
    wait_for(lambda: broken.popen.poll() is not None, 10, farm.logs)
    assert broken.popen.returncode == 9
    assert "decode failed, status 101 (unrecoverable error)" in broken.text()


@pytest.mark.contract_neuron
async def test_a_device_that_hangs_loses_its_rows_and_its_process_and_health_answers(farm: Farm) -> None:
    url = farm.gateway()
    hanging = farm.worker(FARM_DOUBLE="step_ms=20,hang_at=60", FARM_LEASE_S="1")
    farm.wait_ready()
    running = asyncio.create_task(streams(url, PROMPTS[:2], max_new_tokens=120))
    farm.worker(FARM_DOUBLE="step_ms=5", FARM_LEASE_S="1")
    async with httpx.AsyncClient(trust_env=False) as client:
        assert (await client.get(f"{url}/health/live")).status_code == 200
    assert await running == [continued(prompt, 120) for prompt in PROMPTS[:2]]
    wait_for(lambda: "Hung worker=" in hanging.text(), 15, farm.logs)


@pytest.mark.contract_neuron
async def test_nan_ends_one_request_and_scrubs_its_slot(farm: Farm) -> None:
    url = farm.gateway()
    farm.worker(FARM_DOUBLE="nan_at=20")
    farm.wait_ready()
    with pytest.raises(AssertionError, match="not a number"):
        await streams(url, PROMPTS[1:2])
    assert await streams(url, PROMPTS[1:]) == [continued(prompt) for prompt in PROMPTS[1:]]


@pytest.mark.parametrize(
    "parameters",
    [
        {"seed": 3, "do_sample": True},
        {"repetition_penalty": 1.2},
        {"frequency_penalty": 0.5},
        {"typical_p": 0.5},
        {"top_n_tokens": 2},
        {"top_k": 300, "do_sample": True},
    ],
    ids=str,
)
async def test_what_an_artifact_that_samples_on_the_device_cannot_do_is_refused(sampled: str, parameters: dict[str, Any]) -> None:
    async with httpx.AsyncClient(trust_env=False, timeout=20) as client:
        answer = await client.post(f"{sampled}/generate", json={"inputs": "w15 w16", "parameters": {"max_new_tokens": 2, **parameters}})
    assert answer.status_code == 422 and answer.json()["error_type"] == "validation"
    assert next(iter(parameters)) in answer.json()["error"]


async def test_what_it_can_do_is_done(sampled: str) -> None:
    async with httpx.AsyncClient(trust_env=False, timeout=20) as client:
        for parameters in ({"seed": 3}, {"do_sample": True, "top_k": 50, "top_p": 0.9, "temperature": 0.7}, {"details": True}):
            body = {"inputs": "w15 w16", "parameters": {"max_new_tokens": 2, **parameters}}
            assert (await client.post(f"{sampled}/generate", json=body)).status_code == 200


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A gateway before a worker whose artifact samples on the device."""
    from tests.servers import Server

    folder = tmp_path_factory.mktemp("sampled")
    model = exported(folder / "model", on_device_sampling=True)
    server = Server(folder).start()
    env = {"FARM_BACKEND": "neuron-double", "MODEL_ID": str(model), "FARM_SERVED_NAME": "words", "MAX_TOTAL_TOKENS": "512"}
    with Farm(folder, server, env) as farm:
        url = farm.gateway()
        farm.worker()
        farm.wait_ready()
        yield url
    server.stop()
