"""The static batch: which request sits in which slot, and the two device calls that advance them (design §6)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from time import monotonic

from common.messages import Want
from common.metrics import WorkerMetrics
from common.shapes import prefill_length
from workers.device import Device
from workers.emitter import Output
from workers.engines.base import DecodeRow, Engine, EngineFault, PrefillRow, Step, artifact_of
from workers.sampling import BAD, Context, Picked, Sampler
from workers.scheduler import Fresh, Prefill
from workers.slots import Row, Slot, State


class Batch:
    """Slots of one engine. Only `prefill` and `decode` touch the device."""

    def __init__(self, engine: Engine, device: Device, sampler: Sampler, exact_max_tokens: int, metrics: WorkerMetrics) -> None:
        self._engine = engine
        self._artifact = artifact_of(engine)
        self._metrics = metrics
        self._device = device
        self._sampler = sampler
        self._exact_max_tokens = exact_max_tokens
        self.slots = [Slot(index) for index in range(engine.shape.batch_size)]
        self._arrived: list[Slot] = []
        self._chores: deque[Callable[[], None]] = deque()  # for the device thread, before its next call

    def rows(self) -> Iterator[Row]:
        return (slot.row for slot in self.slots if slot.row is not None)

    def find(self, rid: bytes) -> Slot | None:
        return next((slot for slot in self.slots if slot.row is not None and slot.row.rid == rid), None)

    @property
    def n_free(self) -> int:
        return sum(slot.state is State.FREE for slot in self.slots)

    @property
    def n_running(self) -> int:
        return sum(slot.running for slot in self.slots)

    def fresh(self) -> list[Fresh]:
        """Rows that wait for their prefill, first come first."""
        self._arrived = [slot for slot in self._arrived if slot.state is State.PREFILL]
        return [Fresh(slot.index, slot.row.n_prefill, slot.row.suspect) for slot in self._arrived if slot.row is not None]

    def place(self, row: Row) -> Slot:
        """Puts a request into a free slot, by the start rule: prefill what fits, replay the rest (design §6)."""
        slot = next(slot for slot in self.slots if slot.state is State.FREE)
        if row.over:
            slot.move(State.ENDED, row)
            return slot
        prompt, shown = row.submit.input_ids, [event.token for event in row.events]
        tokens = [*prompt, *shown]
        exact = bool(row.submit.want & Want.EXACT and shown)
        if exact and not self._can_replay(row):
            self._metrics.inexact_resumes.inc()
            exact = False
        row.n_prefill = prefill_length(len(prompt) if exact else len(tokens), self._engine.shape)
        row.replay.extend(tokens[row.n_prefill :])
        row.started_s = monotonic()
        slot.move(State.PREFILL if row.n_prefill else State.REPLAY, row)
        if row.n_prefill:
            self._arrived.append(slot)
        return slot

    def _can_replay(self, row: Row) -> bool:
        """Whether all that was shown came from an artifact like this one, whose bits a replay gives again."""
        artifacts = {event.first.artifact for event in row.events if event.first is not None}
        return self._engine.capabilities.reproducible and len(row.events) <= self._exact_max_tokens and artifacts == {self._artifact}

    def end(self, slot: Slot) -> None:
        """The row is computed no further; its slot is free once `free` is called."""
        slot.move(State.ENDED)
        self._chores.append(lambda: self._engine.release(slot.index))

    def settle(self) -> None:
        """In the device thread, when this batch is over and its engine goes on: no slot keeps anything for the next batch."""
        self._do_chores()
        for slot in self.slots:
            self._engine.release(slot.index)

    def free(self, rows: Sequence[Row]) -> None:
        for slot in self.slots:
            if slot.row in rows:
                slot.move(State.FREE)

    def prefill(self, call: Prefill) -> Coroutine[None, None, list[Output]]:
        """Starts one prefill and gives what awaits it; a row that the engine faults ends as if its output were not a number."""
        slots = [self.slots[index] for index in call.slots]
        pairs = [(slot, slot.row) for slot in slots if slot.row is not None]
        rows = [self._prefill_row(slot, row) for slot, row in pairs]
        return self._prefilled(
            call, pairs, self._device.start(lambda: self._compute_prefill(call, rows, pairs), [row.rid for _, row in pairs])
        )

    async def _prefilled(
        self, call: Prefill, pairs: list[tuple[Slot, Row]], computing: asyncio.Future[tuple[Step, list[Picked]]]
    ) -> list[Output]:
        started_s = monotonic()
        try:
            step, picked = await computing
        except EngineFault as fault:
            broken = [(slot, row) for slot, row in pairs if slot.index in fault.slots]
            return [Output(row, BAD, "error", str(fault)) for slot, row in broken if self._broke(slot, row)]
        outputs = []
        for index, ((slot, row), pick) in enumerate(zip(pairs, picked, strict=True)):
            row.at, row.bucket, row.prefill_ms = row.n_prefill, call.bucket.length, (monotonic() - started_s) * 1000
            replays = bool(row.replay) and not pick.bad
            if slot.row is row and slot.state is State.PREFILL:
                slot.move(State.REPLAY if replays else State.DECODE)
            if not replays:
                outputs.append((slot, row, pick))
            if index < len(step.prompt_logprobs):
                row.prompt_logprobs = step.prompt_logprobs[index] or ()
            if index < len(step.prompt_best):
                row.prompt_best = step.prompt_best[index] or ()
        return self._commit(outputs)

    def decode(self) -> Coroutine[None, None, list[Output]]:
        """Starts one step of every running row; rows in replay give no output until the last known token is fed."""
        pairs = [(slot, slot.row) for slot in self.slots if slot.running and slot.row is not None]
        rows = [self._decode_row(slot, row) for slot, row in pairs]
        return self._decoded(pairs, self._device.start(lambda: self._compute_decode(rows, pairs), [row.rid for _, row in pairs]))

    async def _decoded(self, pairs: list[tuple[Slot, Row]], computing: asyncio.Future[list[Picked]]) -> list[Output]:
        outputs = []
        for (slot, row), pick in zip(pairs, await computing, strict=True):
            row.at += 1
            if slot.row is row and slot.state is State.REPLAY:
                row.replay.popleft()
                if row.replay and not pick.bad:
                    continue
                slot.move(State.DECODE)
            outputs.append((slot, row, pick))
        return self._commit(outputs)

    def _prefill_row(self, slot: Slot, row: Row) -> PrefillRow:
        shown = [event.token for event in row.events]
        ids = [*row.submit.input_ids, *shown][: row.n_prefill]
        wants_prompt = bool(row.submit.want & Want.PREFILL_LOGPROBS) and not row.events
        return PrefillRow(slot.index, ids, 0, not row.replay, row.submit.params, row.submit.seed, row.n_tokens, wants_prompt, row.rid)

    def _decode_row(self, slot: Slot, row: Row) -> DecodeRow:
        token = row.replay[0] if slot.state is State.REPLAY else row.token
        return DecodeRow(slot.index, token, row.at, row.submit.params, row.submit.seed, row.n_tokens, row.rid)

    def _compute_prefill(self, call: Prefill, rows: list[PrefillRow], pairs: list[tuple[Slot, Row]]) -> tuple[Step, list[Picked]]:
        self._metrics.next_size.observe(len(rows))
        self._metrics.prefill_tokens.inc(sum(len(row.ids) for row in rows))
        self._metrics.prefill_computed_tokens.inc(call.bucket.rows * call.bucket.length)
        return self._measured("prefill", lambda: self._engine.prefill(call.bucket, rows), rows, _contexts(pairs))

    def _compute_decode(self, rows: list[DecodeRow], pairs: list[tuple[Slot, Row]]) -> list[Picked]:
        return self._measured("decode", lambda: self._engine.decode(rows), rows, _contexts(pairs))[1]

    def _do_chores(self) -> None:
        while self._chores:
            self._chores.popleft()()

    def _measured(
        self, method: str, forward: Callable[[], Step], rows: Sequence[PrefillRow | DecodeRow], contexts: list[Context | None]
    ) -> tuple[Step, list[Picked]]:
        self._do_chores()
        metrics, started_s = self._metrics, monotonic()
        metrics.calls[method].inc()
        try:
            step = forward()
            forward_s = monotonic()
            picked = self._sampler.pick(step, rows, contexts)
        except Exception:
            metrics.calls_failed[method].inc()
            raise
        ended_s = monotonic()
        metrics.forward_s[method].observe(forward_s - started_s)
        metrics.decode_s[method].observe(ended_s - forward_s)
        metrics.call_s[method].observe(ended_s - started_s)
        metrics.calls_done[method].inc()
        return step, picked

    def _commit(self, outputs: Sequence[tuple[Slot, Row, Picked]]) -> list[Output]:
        """Advances rows by their token; who left meanwhile, or stopped one step ago, drops it."""
        committed = []
        for slot, row, picked in outputs:
            if picked.bad:
                self._metrics.nan_rows.inc()
                if self._broke(slot, row):
                    committed.append(Output(row, picked, "error"))
                continue
            if slot.row is not row or slot.state is not State.DECODE:
                continue
            row.token = picked.token
            row.n_tokens += 1
            if row.context is not None:
                row.context.append(picked.token)
            reason = self._reason(row, picked)
            if reason:
                self.end(slot)
            committed.append(Output(row, picked, reason))
        return committed

    def _reason(self, row: Row, picked: Picked) -> str:
        """Why the row ends with this token, in TGI's order; stop strings are found later, from text."""
        row.late = row.deadline_s is not None and monotonic() > row.deadline_s
        if row.late or row.n_tokens >= row.submit.n_max_new:
            return "length"
        ends = picked.token in self._engine.eos_ids and not row.submit.params.ignore_eos
        return "eos_token" if ends else ""

    def _broke(self, slot: Slot, row: Row) -> bool:
        """Ends a row whose cache cannot be trusted; whether it was still here. The next request of its slot finds nothing of it."""
        was_here = slot.row is row and slot.state is not State.ENDED
        if was_here:
            self.end(slot)
        self._chores.append(lambda: self._engine.scrub(slot.index))
        return was_here


def _contexts(pairs: Sequence[tuple[Slot, Row]]) -> list[Context | None]:
    return [row.context for _, row in pairs]
