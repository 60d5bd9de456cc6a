"""Rows that end by NaN in a batch, whatever they were doing: they end at once, alone, and leave nothing in their slot."""

from __future__ import annotations

import pytest

from common import metrics
from common.messages import VERSION, Event, First, Submit, Want
from tests.neuron.doubles import ARTIFACT, VOCAB, engine_over
from workers.batch import Batch
from workers.device import Device
from workers.double_tokens import HashTokens, hashed_token
from workers.emitter import Output
from workers.engines.base import artifact_of
from workers.neuron.artifact import Artifact
from workers.sampling import Sampler
from workers.scheduler import Idle, Knobs, Prefill, next_call
from workers.slots import Row, State

pytestmark = pytest.mark.anyio

NAN = 9
ONE_ROW = ARTIFACT._replace(batch_size=1, continuous_batching=False)
SHORT = ONE_ROW._replace(max_context_length=8)
SHAPES = pytest.mark.parametrize("artifact", [ONE_ROW, SHORT, ONE_ROW._replace(prefill_chunk_size=5)], ids=["whole", "short", "chunks"])


def batch(artifact: Artifact) -> Batch:
    """One slot, so that each request gets what the one before left."""
    return Batch(engine_over(artifact, HashTokens(VOCAB, not_a_number=NAN)), Device(), Sampler(VOCAB), 256, metrics.worker())


def row(number: int, prompt: list[int], shown: tuple[int, ...] = (), artifact: str = "") -> Row:
    """A request; with what it had `shown`, by an engine of that artifact, it is to be replayed."""
    rid, first = number.to_bytes(16, "big"), First(0.0, 0.0, 0, artifact)
    events = [Event(rid, 1, pos, token, 0.0, "", first=None if pos else first) for pos, token in enumerate(shown)]
    made = Row(rid, 1, Submit(VERSION, rid, tuple(prompt), len(shown) + 3, want=Want.EXACT), ("g",), events, 0.0)
    made.n_tokens = made.n_adopted = len(shown)
    return made


async def call(packed: Batch) -> list[Output] | None:
    """One device call as the loop makes it; None when there is nothing to do."""
    plan = next_call(packed.fresh(), packed.n_running, 0.0, packed._engine.shape, Knobs())
    if isinstance(plan, Idle):
        return None
    return await (packed.prefill(plan) if isinstance(plan, Prefill) else packed.decode())


async def run(packed: Batch) -> list[Output]:
    """Until nothing runs; slots are free again."""
    outputs: list[Output] = []
    while True:
        packed.free([slot.row for slot in packed.slots if slot.state is State.ENDED and slot.row])
        if (more := await call(packed)) is None:
            return outputs
        outputs += more


async def assert_slot_is_clean(packed: Batch, prompt: list[int]) -> None:
    packed.place(row(99, prompt))
    tokens = list(prompt)
    for _ in range(3):
        tokens.append(hashed_token(tuple(tokens), VOCAB))
    assert [output.picked.token for output in await run(packed)] == tokens[len(prompt) :]


@SHAPES
@pytest.mark.parametrize("prompt", [[7], [7] * 12], ids=["one token", "twelve"])
async def test_a_client_that_leaves_during_the_call_leaves_no_nan(artifact: Artifact, prompt: list[int]) -> None:
    packed = batch(artifact)
    slot = packed.place(leaves := row(1, [5, 6, NAN]))
    computing = packed.prefill(Prefill(packed._engine.shape.buckets[0], (0,)))
    packed.end(slot)
    packed.free([leaves])
    assert await computing == []
    await assert_slot_is_clean(packed, prompt)


@SHAPES
async def test_nan_among_replayed_tokens_ends_the_row_at_once(artifact: Artifact) -> None:
    packed = batch(artifact)
    packed.place(row(1, [5, 6], shown=(6, NAN, 7, 8, 10, 11), artifact=artifact_of(packed._engine)))
    await assert_ends(packed, n_calls=3)


async def test_nan_in_a_prefill_that_is_to_be_continued_ends_the_row_at_once() -> None:
    packed = batch(SHORT)
    packed.place(row(1, [5] * 7 + [NAN, 6, 6, 6, 6]))
    await assert_ends(packed, n_calls=1)


async def assert_ends(packed: Batch, n_calls: int) -> None:
    """With one error, after so many calls; its slot is clean."""
    outputs = [output for _ in range(n_calls) for output in await call(packed) or ()]
    assert [(output.picked.bad, output.reason) for output in outputs] == [(True, "error")]
    assert await run(packed) == []
    await assert_slot_is_clean(packed, [7])
