"""The engine over the card's double: rows do not touch each other, nothing compiles while it serves."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from tests.gaudi.doubles import LENGTH, VOCAB, card_of, engine_over
from tests.parity.tiny import tiny_model
from tests.schedule import Job, greedy, hashed, jobs, run
from workers.double_tokens import hashed_token
from workers.engines.base import DecodeRow, EngineFault, PrefillRow, UnwarmedShape
from workers.gaudi.stock import StockDecoder

PLANS: dict[str, dict[str, Any]] = {
    "growing": {},
    "steps": {"VLLM_EXPONENTIAL_BUCKETING": "false", "VLLM_PROMPT_SEQ_BUCKET_STEP": "16"},
    "one row": {"MAX_BATCH_SIZE": "1"},
    "captured prefills": {"LIMIT_HPU_GRAPH": "false"},
    "no graphs": {"ENABLE_HPU_GRAPH": "false"},
    "short prompts": {"MAX_INPUT_TOKENS": "16"},
}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("env", PLANS.values(), ids=PLANS)
def test_random_schedules_give_each_request_what_it_gets_alone(env: dict[str, Any], seed: int) -> None:
    engine = engine_over(**env)
    n_compiled = card_of(engine).n_compilations
    rng = random.Random(seed)
    wanted = jobs(rng, 40, LENGTH, VOCAB)
    run(engine, wanted, rng)
    assert [job.tokens for job in wanted] == [hashed(job, VOCAB) for job in wanted]
    assert (engine.ledger.n_unwarmed, card_of(engine).n_compilations) == (0, n_compiled)


@pytest.mark.parametrize("model_type", ["llama", "granite", "phi3", "gemma", "gemma2", "qwen3"])
def test_a_stock_model_behind_it_equals_transformers(model_type: str) -> None:
    model = tiny_model(model_type, **({"sliding_window": LENGTH} if model_type == "gemma2" else {}))
    engine = engine_over(StockDecoder(model))
    n_compiled = card_of(engine).n_compilations
    rng = random.Random(7)
    wanted = jobs(rng, 12, LENGTH, VOCAB)
    run(engine, wanted, rng)
    assert [job.tokens for job in wanted] == [greedy(model, job) for job in wanted]
    assert card_of(engine).n_compilations == n_compiled


def test_a_shape_that_was_not_warmed_is_refused() -> None:
    engine = engine_over()
    engine.plan = engine.plan._replace(columns=(20, LENGTH))
    with pytest.raises(UnwarmedShape):
        engine.prefill(engine.shape.buckets[0]._replace(length=20), [PrefillRow(0, [5])])
    engine.ledger.strict = False
    with pytest.raises(UnwarmedShape, match="a recipe"):
        engine.prefill(engine.shape.buckets[0]._replace(length=20), [PrefillRow(0, [5])])
    engine.prefill(engine.shape.buckets[0], [PrefillRow(0, [5])])
    with pytest.raises(UnwarmedShape, match="a graph"):
        engine.decode([DecodeRow(0, 6, 1)])


def test_a_row_released_after_its_step_was_planned_leaves_nothing_behind() -> None:
    engine = engine_over()
    bucket = engine.shape.buckets[0]
    for _ in range(2 * LENGTH):
        engine.prefill(bucket, [PrefillRow(1, [5, 6])])
        engine.release(1)
        engine.decode([DecodeRow(1, 7, 2)])
    assert engine._columns.live == 0


def test_a_token_that_the_model_lacks_is_its_rows_fault_alone() -> None:
    engine = engine_over()
    bucket = next(pair for pair in engine.shape.buckets if pair.rows > 1)
    with pytest.raises(EngineFault) as fault:
        engine.prefill(bucket, [PrefillRow(0, [5, 6]), PrefillRow(1, [5, VOCAB])])
    assert fault.value.slots == (1,)
    assert int(engine.prefill(bucket, [PrefillRow(0, [5, 6])]).logits.argmax()) == hashed_token((5, 6), VOCAB)
    logits = engine.decode([DecodeRow(0, VOCAB, 2)]).logits
    assert torch.isnan(logits).all()


def test_nan_in_a_slot_does_not_reach_its_next_request() -> None:
    """A masked column still counts: nothing times NaN is NaN."""
    model = tiny_model("llama")
    engine = engine_over(StockDecoder(model))
    for layer in engine._kv:
        for tensor in layer:
            tensor[1] = float("nan")
    engine.scrub(1)
    wanted = [Job([5, 6, 7], 6)]
    run(engine, wanted, OnlySlot(1))
    assert wanted[0].tokens == greedy(model, wanted[0])


class OnlySlot(random.Random):
    """Puts every request into one slot."""

    def __init__(self, slot: int) -> None:
        super().__init__(0)
        self._slot = slot

    def sample(self, population: Any, k: int, **_: Any) -> list[Any]:
        return [self._slot]


def test_compaction_keeps_what_rows_see_and_needs_no_new_recipe() -> None:
    engine = engine_over()
    bucket = max(engine.shape.buckets, key=lambda pair: pair.length)
    assert int(engine.prefill(bucket, [PrefillRow(2, [9])]).logits.argmax()) == hashed_token((9,), VOCAB)
    tokens = [9]
    for at in range(1, LENGTH):
        tokens.append(hashed_token(tuple(tokens), VOCAB))
        logits = engine.decode([DecodeRow(2, tokens[-1], at)]).logits
        assert int(logits.argmax()) == hashed_token(tuple(tokens), VOCAB)
