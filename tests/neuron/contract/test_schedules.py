"""Our engine drives the real decoder classes through random schedules: each request equals HF greedy, each call a compiled graph."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.neuron.contract.real import FAMILIES, LENGTH, ROWS, real_engine, reference
from tests.parity.tiny import VOCAB_SIZE
from tests.schedule import greedy, jobs, run

pytestmark = [pytest.mark.contract_neuron, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return {family: reference(family) for family in FAMILIES}


def check(model: Any, seed: int, n_jobs: int, **config: Any) -> list[str]:
    engine, device = real_engine(model, **config)
    rng = random.Random(seed)
    wanted = jobs(rng, n_jobs, LENGTH, VOCAB_SIZE)
    run(engine, wanted, rng, lambda occupied: setattr(device, "occupied", occupied))
    for job in wanted:
        assert job.tokens == greedy(model, job), f"a prompt of {len(job.prompt)} tokens"
    return device.calls


@pytest.mark.parametrize("family", FAMILIES)
def test_every_request_equals_hf_greedy(models: dict[str, Any], family: str) -> None:
    calls = check(models[family], seed=1, n_jobs=14)
    assert set(calls) == {"prefill", "decode"}


@pytest.mark.parametrize("seed", range(2, 6))
def test_many_schedules(models: dict[str, Any], seed: int) -> None:
    check(models["llama"], seed, n_jobs=20)


@pytest.mark.parametrize(
    "config",
    [
        {"on_device_sampling": True, "max_topk": 50},
        {"batch_size": 1, "continuous_batching": False},
        {"max_context_length": 8},
        {"tp_degree": 1, "batch_size": 7},
    ],
    ids=["sampled on the device", "one row", "short context", "seven rows"],
)
def test_other_artifacts(models: dict[str, Any], config: dict[str, Any]) -> None:
    check(models["llama"], seed=7, n_jobs=12, **config)


def test_warm_up_runs_one_prefill_per_slot_and_one_decode(models: dict[str, Any]) -> None:
    _, device = real_engine(models["llama"])
    assert device.calls == ["prefill"] * ROWS + ["decode"]
