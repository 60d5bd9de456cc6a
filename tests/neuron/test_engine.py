"""The engine over the device double: slots do not touch each other, faults end what they must end, shapes are those of the table."""

from __future__ import annotations

import math
import random

import pytest
import torch

from common.errors import DeviceLost
from common.messages import Params
from common.shapes import Bucket, prefill_length, smallest_bucket
from tests.neuron.doubles import ARTIFACT, VOCAB, device_of, engine_over
from tests.parity.tiny import tiny_model
from tests.schedule import Job, greedy, hashed, jobs, picked, run
from workers.double_tokens import HashTokens, ModelTokens, hashed_token
from workers.engines.base import DecodeRow, EngineFault, PrefillRow, artifact_of
from workers.neuron.artifact import Artifact
from workers.neuron.double import DeviceDouble, Faults, SlotClobbered
from workers.neuron.engine import StaticEngine
from workers.neuron.rows import GREEDY, decode_inputs
from workers.neuron.status import DeviceError

BUCKET = Bucket(1, 32)

ARTIFACTS = {
    "four rows": ARTIFACT,
    "one row": ARTIFACT._replace(batch_size=1, continuous_batching=False),
    "short context": ARTIFACT._replace(max_context_length=8),
    "chunks": ARTIFACT._replace(prefill_chunk_size=5),
    "sampled on the device": ARTIFACT._replace(on_device_sampling=True, max_topk=50),
    "chunks, sampled": ARTIFACT._replace(on_device_sampling=True, max_topk=50, prefill_chunk_size=7),
}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("artifact", ARTIFACTS.values(), ids=ARTIFACTS)
def test_random_schedules_give_each_request_what_it_gets_alone(artifact: Artifact, seed: int) -> None:
    engine = engine_over(artifact)
    rng = random.Random(seed)
    wanted = jobs(rng, 40, artifact.sequence_length, VOCAB)
    run(engine, wanted, rng, lambda occupied: setattr(device_of(engine), "occupied", occupied))
    assert [job.tokens for job in wanted] == [hashed(job, VOCAB) for job in wanted]
    assert engine.ledger.n_unwarmed == 0


def test_a_real_model_in_place_of_the_hash_equals_hf_greedy() -> None:
    model = tiny_model("llama")
    engine = engine_over(tokens=ModelTokens(model))
    rng = random.Random(11)
    wanted = jobs(rng, 10, 32, VOCAB)
    run(engine, wanted, rng)
    assert [job.tokens for job in wanted] == [greedy(model, job) for job in wanted]


@pytest.mark.parametrize("n_prompt", [30, 31])
def test_h7_a_row_may_fill_its_slot_to_the_last_position(n_prompt: int) -> None:
    """Issue transformers-neuronx #61: prompts near the limit."""
    engine = engine_over()
    job = Job([3] * n_prompt, 32 - n_prompt)
    run(engine, [job], random.Random(0))
    assert job.tokens == hashed(job, VOCAB)
    with pytest.raises(AssertionError, match="ends at the compiled length"):
        engine.decode([DecodeRow(0, 1, 32)])


def test_h2_a_prompt_of_one_token_starts_as_a_row_of_a_decode() -> None:
    engine = engine_over()
    engine.prefill(BUCKET, [PrefillRow(0, [5, 6, 7])])
    device_of(engine).occupied = {0: 3}
    n_calls = len(device_of(engine).calls)
    run(engine, [job := Job([40], 1)], random.Random(0))
    assert device_of(engine).calls[n_calls:] == ["decode"] and job.tokens == hashed(job, VOCAB)


def test_h5_a_slot_named_twice_is_our_bug() -> None:
    with pytest.raises(AssertionError, match="every row exactly once"):
        engine_over().decode([DecodeRow(0, 1, 0), DecodeRow(0, 2, 1)])


def test_a_row_that_is_left_out_keeps_its_cache() -> None:
    engine = engine_over()
    engine.prefill(BUCKET, [PrefillRow(1, [5, 6, 7])])
    device_of(engine).occupied = {1: 3}
    for at in range(3, 9):
        engine.decode([DecodeRow(0, 9, at)])
    assert picked(engine.decode([DecodeRow(1, 8, 3)]), 0) == hashed_token((5, 6, 7, 8), VOCAB)


def test_the_double_sees_a_cache_that_is_overwritten() -> None:
    engine = engine_over()
    engine.prefill(BUCKET, [PrefillRow(1, [5, 6, 7])])
    device_of(engine).occupied = {1: 3}
    with pytest.raises(SlotClobbered, match="position 1 of slot 1"):
        device_of(engine)(*decode_inputs([], [0, 1, 0, 0], 0, {}))


def test_a_prompt_token_that_the_model_does_not_have_is_its_rows_fault() -> None:
    engine = engine_over()
    with pytest.raises(EngineFault, match=r"token 120 is not in the model's vocabulary of 120") as fault:
        engine.prefill(BUCKET, [PrefillRow(2, [5, VOCAB])])
    assert fault.value.slots == (2,)


def test_a_decoded_token_that_the_model_does_not_have_spoils_no_other_row() -> None:
    engine = engine_over()
    engine.prefill(BUCKET, [PrefillRow(0, [5, 6])])
    logits = engine.decode([DecodeRow(3, -1, 0), DecodeRow(0, 7, 2)]).logits
    assert logits[0].isnan().all() and int(logits[1].argmax()) == hashed_token((5, 6, 7), VOCAB)


def test_logits_are_float32_without_padding_of_the_vocabulary() -> None:
    class Padded(HashTokens):
        def __call__(self, slot: int, tokens: tuple[int, ...]) -> torch.Tensor:
            return torch.cat([super().__call__(slot, tokens), torch.full((8,), 1e9)]).bfloat16()

    step = engine_over(tokens=Padded(VOCAB)).prefill(BUCKET, [PrefillRow(0, [5, 6])])
    assert step.logits.dtype is torch.float32 and step.logits.shape == (1, VOCAB)


def test_an_exact_resume_needs_the_same_compilation() -> None:
    mine = artifact_of(engine_over())
    assert artifact_of(engine_over()) == mine
    for other in ({"compiler": "2.22"}, {"library": "0.4.4"}, {"dtype": "bfloat16"}, {"tp_degree": 2}, {"batch_size": 3}):
        assert artifact_of(engine_over(ARTIFACT._replace(**other))) != mine, other


def test_host_sampling_offers_everything_and_the_device_little() -> None:
    assert engine_over().capabilities.names() == ("seed", "logprobs", "penalties", "reproducible")
    assert engine_over(ARTIFACTS["sampled on the device"]).capabilities.names() == ()


def test_the_device_samples_with_each_rows_own_parameters() -> None:
    engine = engine_over(ARTIFACTS["sampled on the device"], tokens=lambda *_: torch.zeros(VOCAB))
    wild, tame = Params(do_sample=True), Params()
    steps = [engine.decode([DecodeRow(0, 1, 0, wild), DecodeRow(1, 1, 0, tame)]) for _ in range(40)]
    first, second = zip(*(step.tokens or () for step in steps), strict=True)
    assert len(set(first)) > 10 and len(set(second)) == 1


@pytest.mark.parametrize(("status", "kind"), [(1006, DeviceError), (1003, DeviceError), (5, DeviceLost), (101, DeviceLost)])
def test_a_failed_call_ends_the_process_and_never_single_requests(status: int, kind: type[Exception]) -> None:
    engine = engine_over(faults=Faults(fail_at=6, status=status))
    with pytest.raises(kind, match=f"prefill failed, status {status}"):
        engine.prefill(BUCKET, [PrefillRow(0, [5, 6])])


def test_nan_reaches_the_sampler_as_nan() -> None:
    engine = engine_over(faults=Faults(nan_at=6))
    assert math.isnan(engine.prefill(BUCKET, [PrefillRow(0, [5, 6])]).logits[0, 0])


NAN = 9


def spoiled(artifact: Artifact, n_written: int) -> StaticEngine:
    """An engine whose slot 0 holds that many tokens of a request, the last of them with an output that is not a number."""
    engine = engine_over(artifact, HashTokens(VOCAB, not_a_number=NAN))
    ids = [5] * (n_written - 1) + [NAN]
    n_prefill = prefill_length(n_written, engine.shape)
    bucket = smallest_bucket([n_prefill], engine.shape)
    assert bucket is not None
    step = engine.prefill(bucket, [PrefillRow(0, ids[:n_prefill])]) if n_prefill else None
    for at in range(n_prefill, n_written):
        step = engine.decode([DecodeRow(0, ids[at], at)])
    assert step is not None and step.logits.isnan().all()
    engine.release(0)
    return engine


def afterwards(engine: StaticEngine, n_prompt: int) -> int:
    """How many of twelve requests, in all slots, get what they get alone."""
    wanted = [Job([7] * n_prompt, 5) for _ in range(12)]
    run(engine, wanted, random.Random(2))
    return sum(job.tokens == hashed(job, VOCAB) for job in wanted)


HEALED = [
    *[("four rows", n) for n in (1, 2, 20, 32)],
    *[("one row", n) for n in (1, 32)],
    *[("short context", n) for n in (1, 2, 8)],
    *[("chunks", n) for n in (1, 2, 5, 6, 31, 32)],
]


@pytest.mark.parametrize(("name", "n_written"), HEALED)
@pytest.mark.parametrize("n_prompt", [1, 2, 7, 20])
def test_nan_never_reaches_the_slots_next_request(name: str, n_written: int, n_prompt: int) -> None:
    engine = spoiled(ARTIFACTS[name], n_written)
    engine.scrub(0)
    assert afterwards(engine, n_prompt) == 12


@pytest.mark.parametrize(("name", "n_prompt"), [("four rows", 1), ("short context", 2), ("chunks", 20)])
def test_without_scrub_it_would(name: str, n_prompt: int) -> None:
    """Masked columns are read: the prompt's own positions do not matter."""
    assert afterwards(spoiled(ARTIFACTS[name], 32), n_prompt) < 12


@pytest.mark.parametrize("name", ["four rows", "short context", "chunks"])
def test_scrub_changes_no_other_row(name: str) -> None:
    engine = spoiled(ARTIFACTS[name], 8)
    engine.prefill(engine.shape.buckets[0], [PrefillRow(1, [5, 6, 7])])
    device_of(engine).occupied = {1: 3}
    engine.scrub(0)
    assert picked(engine.decode([DecodeRow(1, 8, 3)]), 0) == hashed_token((5, 6, 7, 8), VOCAB)


@pytest.mark.parametrize(("name", "n_layers"), [("short context", 3), ("chunks", 33)])
def test_where_overwriting_takes_too_long_the_process_ends_instead(name: str, n_layers: int) -> None:
    engine = spoiled(ARTIFACTS[name], 9)
    engine._model.n_layers = n_layers
    with pytest.raises(DeviceError, match="cannot be scrubbed: no graph overwrites its 9 positions"):
        engine.scrub(0)


def test_the_double_refuses_what_the_chip_refuses() -> None:
    device = DeviceDouble(ARTIFACT, HashTokens(VOCAB))
    good = decode_inputs([], [0] * 4, 0, {})
    for index, value, status in (
        (2, torch.tensor([0, 1, 2, 2], dtype=torch.int32), 1006),
        (1, torch.full((4, 1), 32, dtype=torch.int32), 1006),
        (1, torch.full((4, 1), -1, dtype=torch.int32), 1006),
        (3, torch.tensor([GREEDY, GREEDY, (-1.0, 1.0, 1.0), GREEDY]), 1002),
    ):
        with pytest.raises(RuntimeError, match=f"status={status}"):
            device(*good[:index], value, *good[index + 1 :])
