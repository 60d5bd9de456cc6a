"""Warm-up finds out what the card's memory holds, and serving keeps to it."""

from __future__ import annotations

import logging
import random
from pathlib import Path

import pytest

from common.errors import StartError
from common.shapes import Bucket
from tests.gaudi.doubles import card_of, engine_over
from tests.neuron.doubles import exported
from tests.schedule import Job, run
from workers.gaudi.behaving import Faults

MIB = 2**20


def test_every_planned_shape_is_run_when_memory_suffices(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    told: list[float] = []
    engine = engine_over(progress=lambda _what, done: told.append(done))
    assert engine.shape.buckets == engine.plan.prefills
    assert engine.shape.max_input == engine.plan.max_input
    assert told == sorted(told)
    assert told[-1] == 1.0
    lines = [record.getMessage() for record in caplog.records if record.getMessage().startswith("Warmed")]
    assert len(lines) == len(told) == len(engine.plan.prefills) + len(engine.plan.columns) + 2
    largest = max(engine.plan.prefills, key=lambda pair: pair.rows * pair.length)
    assert lines[0].startswith(f"Warmed prefill of {largest.rows} × {largest.length}:")
    assert " shapes and about " in lines[0]


@pytest.mark.parametrize("limit", ["true", "false"], ids=["compiled", "captured"])
def test_what_the_card_refuses_is_left_out_and_the_limit_shrinks(limit: str, caplog: pytest.LogCaptureFixture) -> None:
    """A computed token takes 1 MiB here; so many are free that a prompt of 40 can be computed and one of 64 cannot."""
    faults = Faults(memory_mb=50 if limit == "true" else 900, token_kb=1024 if limit == "true" else 4096)
    engine = engine_over(faults=faults, LIMIT_HPU_GRAPH=limit)
    left_out = set(engine.plan.prefills) - set(engine.shape.buckets)
    assert left_out
    assert engine.shape.buckets
    assert engine.shape.max_input == engine.shape.max_bucket < engine.plan.max_input
    assert sum("No prefill of" in record.getMessage() for record in caplog.records) == len(left_out)
    n_compiled = card_of(engine).n_compilations
    run(engine, [Job([5] * engine.shape.max_input, 3), Job([6, 7], 3)], random.Random(0))
    assert card_of(engine).n_compilations == n_compiled


def test_an_estimate_that_does_not_fit_is_not_tried(tmp_path: Path) -> None:
    """The card's double could compute it; the estimate says that a card could not."""
    engine = engine_over(faults=Faults(memory_mb=1), folder=exported(tmp_path / "model"))
    assert set(engine.shape.buckets) < set(engine.plan.prefills)
    assert Bucket(1, 8) in engine.shape.buckets


def test_a_start_without_room_for_any_prompt_says_what_to_lower() -> None:
    with pytest.raises(StartError, match=r"not even a prefill of 1 × 8 tokens fits .*; lower --max-batch-size") as refused:
        engine_over(faults=Faults(memory_mb=4, token_kb=1024))
    assert refused.value.code == 8


def test_steps_that_find_no_room_beside_captured_prefills_say_so() -> None:
    """A captured token keeps 4 MiB here; four rows of a step find less."""
    with pytest.raises(StartError, match=r"the steps do not fit beside \d+ prefills; .*LIMIT_HPU_GRAPH=true") as refused:
        engine_over(faults=Faults(memory_mb=880, token_kb=4096), LIMIT_HPU_GRAPH="false")
    assert refused.value.code == 8


def test_another_error_of_the_card_is_not_taken_for_a_lack_of_memory() -> None:
    with pytest.raises(RuntimeError, match="synLaunch failed"):
        engine_over(faults=Faults(fail_at=3))


def test_a_recipe_compiled_while_serving_is_counted_and_named(caplog: pytest.LogCaptureFixture) -> None:
    engine = engine_over()
    card_of(engine).serving = False
    card_of(engine).recipes.clear()
    engine._n_compilations = card_of(engine).n_compilations
    run(engine, [Job([5, 6], 2)], random.Random(0))
    assert engine.ledger.take_unwarmed() >= 2
    assert "the card compiled 2 recipes while serving, in a prefill of 1 × 8" in caplog.text


def test_a_cold_engine_serves_at_once_and_compiles_on_demand() -> None:
    engine = engine_over(VLLM_SKIP_WARMUP="true")
    assert engine.cold
    before = card_of(engine).n_compilations
    job = Job([5, 6, 7], 4)
    run(engine, [job], random.Random(0))
    assert len(job.tokens) == 4
    assert card_of(engine).n_compilations > before
    assert engine.ledger.n_unwarmed == 0


def test_how_long_a_call_takes_is_measured_without_its_compilation() -> None:
    """A lease is made of it: minutes of compiling would let a lost worker's streams wait for minutes."""
    engine = engine_over(faults=Faults(compile_ms=100), MAX_INPUT_TOKENS="8")
    assert 0 < engine.slowest_call_s < 0.1
