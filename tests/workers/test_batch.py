"""The packing of rows over a real engine: greedy rows equal `generate` whatever happens beside them, and take-overs change nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from common import metrics
from common.messages import VERSION, Event, First, Params, Submit, Want
from tests.gaudi.doubles import engine_over as gaudi_engine
from tests.parity.drive import Job, expected, tiny_engine
from tests.parity.tiny import MAX_LENGTH, VOCAB_SIZE, tiny_model
from workers.batch import Batch
from workers.device import Device
from workers.engines.base import artifact_of
from workers.engines.cpu import CpuEngine
from workers.sampling import Sampler
from workers.scheduler import Idle, Knobs, Prefill, next_call
from workers.slots import Row, State

pytestmark = pytest.mark.anyio
SAMPLED = Params(do_sample=True, temperature=0.9)


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model("llama")


@pytest.fixture(scope="module")
def engine(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CpuEngine]:
    yield tiny_engine(model, tmp_path_factory.mktemp("batch"))


def batch(engine: CpuEngine) -> Batch:
    for slot in range(engine.shape.batch_size):
        engine.scrub(slot)
        engine.release(slot)
    return Batch(engine, Device(), Sampler(VOCAB_SIZE), 256, metrics.worker())


def row(number: int, prompt: list[int], n_new: int, params: Params = Params(), seed: int = 0, want: int = 0) -> Row:  # noqa: B008
    rid = number.to_bytes(16, "big")
    return Row(rid, 1, Submit(VERSION, rid, tuple(prompt), n_new, params, seed=seed, want=want), ("g",), [], 0.0)


def shown(tokens: list[int], rid: bytes, artifact: str) -> list[Event]:
    """Events as an owner with this artifact journaled them."""
    first = First(0.0, 0.0, 0, artifact)
    return [Event(rid, 1, pos, token, 0.0, "", first=None if pos else first) for pos, token in enumerate(tokens)]


async def step(packed: Batch, tokens: dict[bytes, list[int]]) -> bool:
    """One device call as the loop makes it; False when there is nothing to do."""
    call = next_call(packed.fresh(), packed.n_running, 0.0, packed._engine.shape, Knobs())
    if isinstance(call, Idle):
        return False
    for output in await (packed.prefill(call) if isinstance(call, Prefill) else packed.decode()):
        tokens.setdefault(output.row.rid, []).append(output.picked.token)
    packed.free([slot.row for slot in packed.slots if slot.state is State.ENDED and slot.row])
    return True


@pytest.mark.parametrize("seed", range(4))
async def test_greedy_rows_equal_generate_beside_any_neighbours(model: Any, engine: CpuEngine, seed: int) -> None:
    """Neighbours: none, shorter, longer, seeded, top-k, ending in the same step, cancelled; joins at any time, slots reused."""
    pick = random.Random(seed)
    bucket = engine.shape.buckets[1].length
    lengths = [1, bucket - 1, bucket, bucket + 1, 60, MAX_LENGTH - 12]
    kinds = [Params(), SAMPLED, Params(do_sample=True, top_k=5), Params(repetition_penalty=1.3)]
    jobs = {}
    for number in range(14):
        prompt = [pick.randrange(3, VOCAB_SIZE) for _ in range(pick.choice(lengths))]
        n_new = pick.choice([1, 4, 4, 9, 11])
        greedy = number % 2 == 0
        jobs[number.to_bytes(16, "big")] = (row(number, prompt, n_new, Params() if greedy else pick.choice(kinds), number), greedy)
    packed, tokens, waiting = batch(engine), {}, [one for one, _ in jobs.values()]
    cancelled: set[bytes] = set()
    while waiting or packed.n_free < len(packed.slots):
        if waiting and packed.n_free and pick.random() < 0.6:
            packed.place(_prepared(waiting.pop(0)))
        await step(packed, tokens)
        for slot in packed.slots:
            if slot.running and slot.row and not jobs[slot.row.rid][1] and pick.random() < 0.05:
                cancelled.add(slot.row.rid)
                packed.end(slot)
                packed.free([slot.row])
    for rid, (one, greedy) in jobs.items():
        if greedy:
            job = Job(list(one.submit.input_ids), 0, 0, one.submit.n_max_new)
            assert tokens[rid] == expected(model, job), f"row {rid[-1]}"
        elif rid not in cancelled:
            assert len(tokens[rid]) == one.submit.n_max_new
    assert engine.ledger.n_unwarmed == 0


def _prepared(one: Row) -> Row:
    from workers.sampling import Context, penalises

    if penalises(one.submit.params):
        one.context = Context(one.submit.input_ids)
    return one


async def test_eos_ends_a_row_unless_it_is_to_be_ignored(engine: CpuEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "eos_ids", frozenset({9}))
    packed, tokens = batch(engine), {}
    biased = Params(logit_bias=((9, 100.0),))
    ended, ignoring = row(1, [5, 6], 6, biased), row(2, [5, 6], 6, biased._replace(ignore_eos=True))
    packed.place(ended)
    packed.place(ignoring)
    while await step(packed, tokens):
        continue
    assert tokens == {ended.rid: [9], ignoring.rid: [9] * 6}


@pytest.mark.parametrize("n_shown", [1, 5, 19])
async def test_an_exact_takeover_continues_as_if_nothing_had_happened(engine: CpuEngine, n_shown: int) -> None:
    prompt, tokens = list(range(5, 45)), {}
    packed = batch(engine)
    packed.place(row(1, prompt, 20, SAMPLED, seed=7, want=Want.EXACT))
    while await step(packed, tokens):
        continue
    (undisturbed,) = tokens.values()
    again = row(2, prompt, 20, SAMPLED, seed=7, want=Want.EXACT)
    again.events = shown(undisturbed[:n_shown], again.rid, artifact_of(engine))
    again.n_tokens = again.n_adopted = n_shown
    packed.place(again)
    assert again.n_prefill == len(prompt)
    while await step(packed, tokens):
        continue
    assert undisturbed[:n_shown] + tokens[again.rid] == undisturbed


@pytest.mark.parametrize("artifacts", [("another",), ("", ""), ("mine", "another"), ("another", "mine"), ()])
async def test_what_another_artifact_computed_is_not_replayed(engine: CpuEngine, artifacts: tuple[str, ...]) -> None:
    """Each owner so far signed its first event: one that differs, or none, and a replay could show other bits."""
    packed = batch(engine)
    again = row(1, list(range(5, 45)), 20, SAMPLED, seed=7, want=Want.EXACT)
    again.events = shown([50] * 4, again.rid, "")
    for pos, name in enumerate(artifacts):
        again.events[pos] = again.events[pos]._replace(first=First(0.0, 0.0, 0, artifact_of(engine) if name == "mine" else name))
    before = packed._metrics.inexact_resumes._value.get()
    packed.place(again)
    assert again.n_prefill == 44, "all of it, in one prefill"
    assert packed._metrics.inexact_resumes._value.get() == before + 1


def test_an_artifact_is_its_engines_build_and_shape(model: Any, tmp_path: Path, engine: CpuEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert artifact_of(tiny_engine(model, tmp_path)) == artifact_of(engine)
    assert artifact_of(tiny_engine(model, tmp_path, MAX_BATCH_SIZE="2")) != artifact_of(engine)
    before = artifact_of(engine)
    monkeypatch.setattr(engine, "precision", "float16")
    assert artifact_of(engine) != before


async def test_a_fast_takeover_prefills_what_was_shown(model: Any, engine: CpuEngine) -> None:
    job = Job(list(range(5, 45)), 0, 0, 12)
    whole = expected(model, job)
    packed, tokens = batch(engine), {}
    again = row(1, job.prompt, 12)
    again.events = shown(whole[:6], again.rid, artifact_of(engine))
    again.n_tokens = again.n_adopted = 6
    packed.place(again)
    assert again.n_prefill == len(job.prompt) + 6
    while await step(packed, tokens):
        continue
    assert tokens[again.rid] == whole[6:]


async def test_a_batch_that_is_over_leaves_nothing_in_its_engine() -> None:
    """A fenced worker goes on with the same engine under a new id; what ran is not this batch's any more."""
    shared = gaudi_engine()
    packed = Batch(shared, Device(), Sampler(shared.vocab_size), 256, metrics.worker())
    for number in range(2):
        packed.place(row(number, [20, 21, 22], 9))
    for _ in range(3):
        await step(packed, {})
    assert shared._columns.live > 0
    packed.settle()
    assert (shared._columns.live, shared._columns.next) == (0, 0)


async def test_who_was_cancelled_during_a_call_gives_no_token_and_harms_nobody(model: Any, engine: CpuEngine) -> None:
    packed = batch(engine)
    stays, leaves = row(1, [7, 8, 9], 8), row(2, [10, 11, 12, 13], 8)
    tokens: dict[bytes, list[int]] = {}
    for one in (stays, leaves):
        packed.place(one)
    for _ in range(3):
        await step(packed, tokens)
    computing = packed.decode()
    slot = packed.find(leaves.rid)
    assert slot is not None
    packed.end(slot)
    packed.free([leaves])
    late = row(3, [20, 21, 22], 4)
    packed.place(late)
    outputs = await computing
    assert [output.row for output in outputs] == [stays]
    for output in outputs:
        tokens[output.row.rid].append(output.picked.token)
    while await step(packed, tokens):
        continue
    assert tokens[stays.rid] == expected(model, Job([7, 8, 9], 0, 0, 8))
    assert tokens[late.rid] == expected(model, Job([20, 21, 22], 0, 0, 4))
