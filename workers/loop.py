"""The worker loop: decide, run, emit. While the device runs a step, the I/O side of the one before is done (design §3)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from time import monotonic

from common.messages import Event
from common.metrics import WorkerMetrics
from common.shapes import Shape
from workers.batch import Batch
from workers.emitter import Emitter, Output
from workers.intake import Intake
from workers.journal import Journal
from workers.load import Load
from workers.sampling import penalises
from workers.scheduler import Decode, Idle, Knobs, Prefill, PrefillShare, demand, next_call
from workers.slots import Row, State

log = logging.getLogger(__name__)

EQUAL_RUN = 64


class Loop:
    """Runs one worker id until it is drained or fenced."""

    def __init__(
        self, batch: Batch, shape: Shape, emitter: Emitter, journal: Journal, intake: Intake, knobs: Knobs, load: Load,
        metrics: WorkerMetrics,
    ) -> None:  # fmt: skip
        self._batch = batch
        self._shape = shape
        self._emitter = emitter
        self._journal = journal
        self._intake = intake
        self._knobs = knobs
        self._load = load
        self._metrics = metrics
        self._share = PrefillShare()
        self._steps_since_prefill = 0
        self._wake = asyncio.Event()
        self._pulling: asyncio.Task[tuple[list[Row], list[Row]]] | None = None
        self.taking = True
        self._stop_at_s: float | None = None
        journal.on_mail = self._read_mail
        journal.on_ended = self._free

    async def run(self) -> None:
        """Returns when drained; raises an exception group with `Fenced`, or with what broke the device."""
        async with asyncio.TaskGroup() as tasks:
            helpers = [tasks.create_task(self._journal.run()), tasks.create_task(self._intake.run(self._news))]
            await self._steps()
            await self._journal.drained()
            for helper in helpers:
                helper.cancel()

    def drain(self, grace_s: float) -> None:
        """Takes nothing new from now on; what still runs after the grace is left for others."""
        stop_at_s = monotonic() + grace_s
        self._stop_at_s = min(stop_at_s, self._stop_at_s or stop_at_s)
        asyncio.get_running_loop().call_later(grace_s, self._wake.set)
        self._wake.set()

    async def _steps(self) -> None:
        outputs: list[Output] = []
        while not self._over():
            await self._journal.room()  # before the plan: who leaves meanwhile is no part of it
            self._place_pulled()
            call = next_call(self._batch.fresh(), self._batch.n_running, self._share.value, self._shape, self._knobs)
            if isinstance(call, Idle):
                self._metrics.current_size.set(0)
                self._emit(outputs)
                outputs = []
                await self._rest()
                continue
            self._count(call)
            started_s = monotonic()
            computing = self._batch.prefill(call) if isinstance(call, Prefill) else self._batch.decode()
            self._emit(outputs)
            self._ask()
            outputs = await computing
            self._spend(isinstance(call, Prefill), monotonic() - started_s)
        self._emit(outputs)

    def _over(self) -> bool:
        if self._stop_at_s is None:
            return False
        empty = self._pulling is None and self._batch.n_free == len(self._batch.slots)
        return empty or monotonic() >= self._stop_at_s

    async def _rest(self) -> None:
        """Until something may have changed: a bell, a finished pull, a freed slot, mail, the end of the grace."""
        self._ask()
        await self._wake.wait()
        self._wake.clear()

    def _spend(self, prefill: bool, seconds: float) -> None:
        self._share.spend(seconds, prefill)
        self._steps_since_prefill = 0 if prefill else self._steps_since_prefill + 1
        self._load.spend(seconds, prefill)

    def _count(self, call: Prefill | Decode) -> None:
        n_running = self._batch.n_running
        self._metrics.current_size.set(n_running)
        self._metrics.current_max_tokens.set(sum(len(row.submit.input_ids) + row.submit.n_max_new for row in self._batch.rows()))
        if isinstance(call, Prefill) and n_running:
            waited = self._steps_since_prefill >= self._knobs.max_waiting_tokens
            self._metrics.concats["wait_exceeded" if waited else "backpressure"].inc()

    def _ask(self) -> None:
        """Pulls for the next prefill while the device works, or listens for the bell."""
        if self._pulling is not None or self._stop_at_s is not None or not self.taking or any(row.solo for row in self._batch.rows()):
            return
        wanted = demand(
            self._batch.n_free, self._batch.n_running, len(self._batch.fresh()), self._steps_since_prefill, self._share.value, self._shape,
            self._knobs,
        )  # fmt: skip
        if self._intake.worthwhile(wanted):
            self._pulling = asyncio.ensure_future(self._intake.pull(wanted, self._batch.rows))
            self._pulling.add_done_callback(lambda task: self._wake.set())
        elif wanted.maximum:
            self._intake.listen()

    def _place_pulled(self) -> None:
        if self._pulling is None or not self._pulling.done():
            return
        (rows, lost), self._pulling = self._pulling.result(), None
        for row in lost:
            self._drop(row)
        with self._metrics.concat_s["decode"].time():
            self._place(rows)
        self._journal.commit()

    def _place(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._batch.place(row)
            if not row.over and penalises(row.submit.params):
                self._emitter.prepare(row)
            if row.over:
                self._journal.add(row, row.events[row.n_adopted :])
                self._journal.end(row)

    def _emit(self, outputs: Sequence[Output]) -> None:
        """The I/O side of a step: text, stop strings, events to the journal."""
        started_s = monotonic()
        for output in outputs:
            row = output.row
            event = self._emitter.event(output)
            self._watch_repeats(row, event)
            row.events.append(event)
            self._journal.add(row, (event,))
            ended = output.reason or event.finish is not None
            slot = self._batch.find(row.rid)
            if ended and slot is not None and slot.state is not State.ENDED:
                self._batch.end(slot)
            if ended:
                self._journal.end(row)
        self._journal.free = self._batch.n_free
        self._journal.commit()
        if outputs:
            self._metrics.tokens.inc(len(outputs))
            self._metrics.filter_s["decode"].observe(monotonic() - started_s)

    def _watch_repeats(self, row: Row, event: Event) -> None:
        """Healthy small models repeat themselves, broken devices too: people shall see it."""
        row.n_equal = row.n_equal + 1 if row.events and row.events[-1].token == event.token else 1
        if row.n_equal == EQUAL_RUN:
            self._metrics.equal_runs.inc()
            log.warning("Repeats rid=%s: token %d came %d times in a row", row.rid.hex(), event.token, EQUAL_RUN)

    def _free(self, rows: Sequence[Row]) -> None:
        self._batch.free(rows)
        self._load.n_finished += len(rows)
        self._news()

    def _news(self) -> None:
        """A freed slot or a ring: asks at once, not at the next step."""
        self._ask()
        if self._stop_at_s is not None:
            self._wake.set()

    def _read_mail(self, letters: Sequence[str]) -> None:
        for letter in letters:
            what, rid, detail = letter.split(" ", 2)
            slot = self._batch.find(bytes.fromhex(rid))
            if slot is None or slot.row is None:
                continue
            if what == "gateways":
                slot.row.gateways = tuple(detail.split(","))
            elif what == "cancel" and slot.row.epoch <= int(detail):
                self.cancel(slot.row)
        self._journal.commit()

    def cancel(self, row: Row) -> None:
        """Nobody waits for this row any more: its slot is free with the next flush."""
        slot = self._batch.find(row.rid)
        if slot is not None and slot.state is not State.ENDED:
            self._batch.end(slot)
            self._journal.end(row)
            self._journal.commit()

    def _drop(self, row: Row) -> None:
        """The row belongs to somebody else by now: nothing is said about it."""
        slot = self._batch.find(row.rid)
        if slot is not None and slot.state is not State.ENDED:
            self._batch.end(slot)
            self._batch.free([row])
