from __future__ import annotations

import logging
from itertools import pairwise
from math import ceil, log
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.config import Settings
from common.errors import StartError
from common.shapes import Bucket, Shape, prefill_length, smallest_bucket
from workers.gaudi.buckets import Growth, Plan, plan

LONG = 131_072


def planned(max_positions: int = LONG, **env: Any) -> Plan:
    return plan(Settings.from_env({"FARM_BACKEND": "gaudi", "MAX_BATCH_SIZE": "32", **{k: str(v) for k, v in env.items()}}), max_positions)


def refused(**env: Any) -> str:
    with pytest.raises(StartError) as refusal:
        planned(**env)
    assert refusal.value.code == 2
    return str(refusal.value)


def lengths(of: Plan) -> list[int]:
    return sorted({pair.length for pair in of.prefills})


def rows(of: Plan, length: int) -> list[int]:
    return [pair.rows for pair in of.prefills if pair.length == length]


def test_the_defaults_of_the_page() -> None:
    made = planned()
    assert (made.batch_size, made.max_input, made.max_length) == (32, 4095, 4096)
    assert lengths(made) == [128, 256, 384, 640, 1024, 1536, 2304, 3456, 4096]
    assert rows(made, 128) == [1, 2, 4, 8, 16, 32] and rows(made, 1536) == [1, 2] and rows(made, 4096) == [1]
    assert made.columns == (128, 256, 512, 1024, 2048, 4096)
    assert str(made) == (
        "batch 32, length 4096, 26 prefills of up to 4096 tokens, steps over 128, 256, 512, 1024, 2048, 4096 columns"
    )  # fmt: skip


def test_the_validated_line_for_an_8b_model() -> None:
    made = planned(MAX_INPUT_TOKENS=1024, MAX_TOTAL_TOKENS=2048, MAX_BATCH_PREFILL_TOKENS=2048)
    assert lengths(made) == [128, 256, 384, 640, 1024]
    assert rows(made, 1024) == [1, 2], "MAX_BATCH_PREFILL_TOKENS is rows × MAX_INPUT_TOKENS"


def test_the_batch_is_a_shape_that_must_be_given() -> None:
    with pytest.raises(StartError, match="--max-batch-size is required on Gaudi"):
        plan(Settings.from_env({"FARM_BACKEND": "gaudi"}), LONG)


def test_padding_does_not_count_against_the_users_limits() -> None:
    """tgi-gaudi #146, PR #134: 4095 + 1 ≤ 4096 although the prefill is padded to 4096; 4 × 4095 are 4 rows."""
    made = planned(MAX_INPUT_TOKENS=4095, MAX_TOTAL_TOKENS=4096, MAX_BATCH_PREFILL_TOKENS=4 * 4095)
    assert smallest_bucket([4095], Shape(32, 4096, made.prefills)) == Bucket(1, 4096)
    assert rows(made, 4096) == [1, 2, 4]
    assert lengths(planned(MAX_INPUT_TOKENS=900, MAX_TOTAL_TOKENS=1000))[-1] == 1000, "nor is a prefill longer than the cache"


def test_a_length_beyond_the_models_positions_is_clamped_with_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """GenAIInfra #483."""
    made = planned(512, MAX_INPUT_TOKENS=1024, MAX_TOTAL_TOKENS=2048)
    assert (made.max_input, made.max_length, lengths(made)[-1], made.columns[-1]) == (511, 512, 512, 512)
    assert [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING] == [
        "`max_total_tokens`(2048) is clamped to the 512 positions of the model"
    ]
    assert planned(2048).max_length == 2048


def test_limits_that_follow_from_each_other() -> None:
    assert planned(MAX_TOTAL_TOKENS=8192).max_input == 8191
    assert planned(MAX_BATCH_PREFILL_TOKENS=2048).max_input == 2048
    assert rows(planned(MAX_INPUT_TOKENS=8000, MAX_TOTAL_TOKENS=8192), 8064) == [1], "by default one row of the longest"
    assert refused(MAX_INPUT_TOKENS=4096) == "Invalid argument: `max_input_tokens`(4096) must be < `max_total_tokens`(4096)"


def test_lengths_by_each_generations_names() -> None:
    assert lengths(planned(SEQ_LEN_EXPONENT_BASE=2)) == [128, 256, 512, 1024, 2048, 4096]
    assert lengths(planned(SEQ_LEN_EXPONENT_BASE=2, PAD_SEQUENCE_TO_MULTIPLE_OF=256)) == [256, 512, 1024, 2048, 4096]
    assert lengths(planned(VLLM_EXPONENTIAL_BUCKETING="false")) == list(range(128, 4097, 128))
    assert lengths(planned(VLLM_EXPONENTIAL_BUCKETING="true", VLLM_PROMPT_SEQ_BUCKET_LIMIT=4)) == [128, 512, 1408, 4096]
    linear = {"VLLM_PROMPT_SEQ_BUCKET_MIN": 64, "VLLM_PROMPT_SEQ_BUCKET_STEP": 1024, "VLLM_PROMPT_SEQ_BUCKET_MAX": 4096}
    assert lengths(planned(**linear)) == [64, 128, 256, 512, 1024, 2048, 3072, 4096]


def test_rows_by_each_generations_names() -> None:
    assert rows(planned(PREFILL_BATCH_BUCKET_SIZE=4), 256) == [4, 8, 12, 16]
    assert rows(planned(PREFILL_BATCH_BUCKET_SIZE=4), 2304) == [1], "a prompt that the budget holds only once still has a prefill"
    assert rows(planned(PREFILL_BATCH_BUCKET_SIZE=4, BATCH_SIZE_EXPONENT_BASE=4), 128) == [1, 4, 16, 32]
    assert rows(planned(PREFILL_BATCH_BUCKET_SIZE=4, VLLM_PROMPT_BS_BUCKET_STEP=8), 128) == [1, 2, 4, 8, 16, 24, 32]
    assert rows(planned(VLLM_PROMPT_BS_BUCKET_LIMIT=2, VLLM_PROMPT_BS_BUCKET_MAX=8), 128) == [1, 8]
    assert rows(planned(VLLM_EXPONENTIAL_BUCKETING="true", PREFILL_BATCH_BUCKET_SIZE=4), 512 + 128) == [1, 2, 4]


def test_decode_blocks_are_those_of_all_rows_together() -> None:
    assert planned(VLLM_DECODE_BLOCK_BUCKET_STEP=256).columns == (128, 256, 512, 1024, 2048, 3072, 4096)
    assert planned(VLLM_DECODE_BLOCK_BUCKET_LIMIT=2).columns == (128, 4096)
    assert planned(VLLM_DECODE_BLOCK_BUCKET_MIN=32 * 16).columns == (2048, 4096)


def test_what_contradicts_itself_names_both() -> None:
    assert refused(VLLM_PROMPT_SEQ_BUCKET_MAX=2048) == "VLLM_PROMPT_SEQ_BUCKET_MAX=2048 is less than `max_input_tokens`(4095)"
    assert refused(VLLM_PROMPT_BS_BUCKET_MIN=8, VLLM_PROMPT_BS_BUCKET_MAX=4) == (
        "VLLM_PROMPT_BS_BUCKET_MIN=8 is more than VLLM_PROMPT_BS_BUCKET_MAX=4"
    )
    limit = "VLLM_PROMPT_SEQ_BUCKET_LIMIT=5 needs VLLM_EXPONENTIAL_BUCKETING=true: without, shapes grow by VLLM_PROMPT_SEQ_BUCKET_STEP"
    assert refused(VLLM_PROMPT_SEQ_BUCKET_LIMIT=5, VLLM_EXPONENTIAL_BUCKETING="false") == limit
    assert refused(VLLM_PROMPT_SEQ_BUCKET_LIMIT=5, VLLM_PROMPT_SEQ_BUCKET_STEP=128) == limit


def test_what_has_no_effect_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    planned(BATCH_BUCKET_SIZE=8, VLLM_DECODE_BLOCK_BUCKET_MAX=9)
    assert caplog.messages == [
        "LIMIT_HPU_GRAPH=true: prefills are compiled, not captured, as TGI's page says (its code says false)",
        "BATCH_BUCKET_SIZE has no effect: there is one decode shape, of MAX_BATCH_SIZE rows",
        "VLLM_DECODE_BLOCK_BUCKET_MAX has no effect: a step may read all columns",
    ]


@st.composite
def given_settings(draw: st.DrawFn) -> Settings:
    """Settings of any generation that do not contradict each other."""
    max_total = draw(st.integers(2, 9000))
    given: dict[str, Any] = {"max_total_tokens": max_total, "max_batch_size": draw(st.integers(1, 70))}
    max_input = draw(st.none() | st.integers(1, max_total - 1))
    if max_input:
        given |= {"max_input_tokens": max_input, "max_batch_prefill_tokens": draw(st.integers(max_input, 8 * max_total))}
    optional: dict[str, st.SearchStrategy[Any]] = {
        "pad_sequence_to_multiple_of": st.integers(1, 512),
        "prefill_batch_bucket_size": st.integers(1, 9),
        "batch_size_exponent_base": st.floats(1.1, 4),
        "seq_len_exponent_base": st.floats(1.1, 4),
        "vllm_prompt_bs_bucket_min": st.integers(1, 8),
        "vllm_prompt_bs_bucket_max": st.integers(8, 80),
        "vllm_prompt_seq_bucket_min": st.integers(1, 600),
        "vllm_decode_block_bucket_min": st.integers(1, 600),
        "vllm_exponential_bucketing": st.booleans(),
    }
    for name in ("prompt_bs", "prompt_seq", "decode_block"):
        optional[f"vllm_{name}_bucket_{draw(st.sampled_from(('step', 'limit')))}"] = st.integers(1, 200)
    given |= {name: draw(optional[name]) for name in draw(st.sets(st.sampled_from(sorted(optional))))}
    if any(name.endswith("limit") for name in given):
        given["vllm_exponential_bucketing"] = True
    return Settings(**given)


@given(given_settings(), st.integers(2, 10_000), st.data())
def test_every_request_and_every_resume_has_a_warmed_prefill(settings: Settings, max_positions: int, data: st.DataObject) -> None:
    """vllm-fork PR #100, vllm-gaudi PR #424: the table that is warmed is the table that serves."""
    made = plan(settings, max_positions)
    shape = Shape(made.batch_size, made.max_length, made.prefills)
    assert made.max_input <= shape.max_bucket <= made.max_length <= max_positions
    n_input = data.draw(st.integers(1, made.max_input))
    resumed = data.draw(st.integers(n_input, made.max_length))
    for n_tokens in (n_input, resumed):
        assert smallest_bucket([prefill_length(n_tokens, shape)], shape) in made.prefills
    assert prefill_length(n_input, shape) == n_input, "what is admitted is prefilled whole"


def test_no_length_is_longer_than_the_longest_prompt_needs() -> None:
    """The first steps double up to the step: those that no prompt reaches are left out."""
    env = {"MAX_BATCH_SIZE": "2", "MAX_TOTAL_TOKENS": "3", "MAX_INPUT_TOKENS": "1", "MAX_BATCH_PREFILL_TOKENS": "2"}
    steps = {"PAD_SEQUENCE_TO_MULTIPLE_OF": "1", "VLLM_PROMPT_SEQ_BUCKET_STEP": "3"}
    assert plan(Settings.from_env({"FARM_BACKEND": "gaudi", **env, **steps}), 3).prefills == (Bucket(1, 1), Bucket(2, 1))


@given(given_settings(), st.integers(2, 10_000))
def test_pairs_and_columns_stay_within_what_was_asked(settings: Settings, max_positions: int) -> None:
    made = plan(settings, max_positions)
    budget = settings.max_batch_prefill_tokens or max(4096, made.max_input)
    step = settings.vllm_prompt_seq_bucket_step or settings.pad_sequence_to_multiple_of
    assert len(set(made.prefills)) == len(made.prefills)
    for pair in made.prefills:
        assert 1 <= pair.rows <= made.batch_size
        padding = step - 1 if pair.length == made.prefills[-1].length else 0
        assert pair.rows == 1 or pair.rows * (pair.length - padding) <= budget
    assert list(made.columns) == sorted(set(made.columns)) and made.columns[-1] == made.max_length


@given(st.integers(1, 500), st.integers(1, 300), st.floats(1.1, 4), st.integers(1, 100_000))
def test_a_factor_is_respected_and_gives_few_shapes(least: int, step: int, factor: float, most: int) -> None:
    values = Growth(least, step, factor).up_to(most)
    assert values[-1] == most and list(values) == sorted(set(values))
    for smaller, larger in pairwise(values):
        assert larger < max(smaller, smaller * factor) + step + 1
    assert len(values) <= 2 + 1 / (factor - 1) + log(max(most / least, 1), factor)


@given(st.integers(1, 500), st.integers(1, 300), st.integers(1, 100_000))
def test_steps_double_up_to_the_step_and_then_add_it(least: int, step: int, most: int) -> None:
    values = Growth(least, step).up_to(most)
    assert values[-1] == most and list(values) == sorted(set(values))
    for smaller, larger in pairwise(values):
        assert larger == most or larger == 2 * smaller <= step or (larger % step == 0 and larger - smaller <= max(step, smaller))
    assert len(values) <= 2 + ceil(log(step, 2)) + most // step


@given(st.integers(1, 500), st.integers(1, 300), st.integers(1, 20), st.integers(1, 100_000))
def test_a_number_of_shapes_is_not_exceeded(least: int, step: int, n_values: int, most: int) -> None:
    values = Growth(least, step, n_values=n_values).up_to(most)
    assert values[-1] == most and len(values) <= n_values and list(values) == sorted(set(values))
