"""Flush and mail: each step is written to the journal and published by one script, late but never lost (design §3.6, §8)."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from time import monotonic

from common.broker import UNREACHABLE, Batch, Broker, Ended, Flushed
from common.fold import snapshot
from common.messages import VERSION, Event, Frame, Result, Want, Worker, encode, encode_events
from workers.slots import Row

IDLE_TICK_S = 1.0
KEEP_S = 60.0
MAX_ROW_ENTRIES = 1024
MAX_UNFLUSHED_STEPS = 4


class Fenced(Exception):
    """This worker lost its lease: what it runs belongs to others now."""


class Journal:
    """One worker id's write-ahead stream. One flush in flight; steps that wait for it merge into the next one."""

    def __init__(
        self, broker: Broker, worker: str, lease_ms: int, rows: Callable[[], Iterable[Row]], busy: Callable[[], bool],
        record: Callable[[], Worker],
    ) -> None:  # fmt: skip
        self.worker = worker
        self._record = record
        self._recorded_s = 0.0
        self.ownership = asyncio.Lock()  # a pull between a flush and its finish would count rows that are already gone
        self.unbroken_since_s: float | None = monotonic()
        self.free = 0
        self._broker = broker
        self._lease_ms = lease_ms
        self._rows = rows
        self._busy = busy
        self._pending: list[tuple[Row, Sequence[Event]]] = []
        self._ending: list[Row] = []
        self._n_unflushed = 0
        self._dirty = asyncio.Event()
        self._flushed = asyncio.Event()
        self._step = 0
        self._last_step = 0
        self._n_mail = 0
        self._sent: dict[str, tuple[int, float]] = {}
        self._marks: deque[tuple[float, int]] = deque()
        self.on_mail: Callable[[Sequence[str]], None] = lambda letters: None
        self.on_ended: Callable[[Sequence[Row]], None] = lambda rows: None

    def add(self, row: Row, events: Sequence[Event]) -> None:
        """Takes events of a row; `commit` sends them."""
        self._pending.append((row, events))

    def end(self, row: Row) -> None:
        """The row ends once everything added so far is journaled."""
        self._ending.append(row)

    def commit(self) -> None:
        """One step is complete."""
        if self._pending or self._ending:
            self._n_unflushed += 1
            self._dirty.set()

    @property
    def n_unflushed(self) -> int:
        """Steps that nobody can see yet."""
        return self._n_unflushed

    async def room(self) -> None:
        """Returns while the journal keeps up; a broker that is slow for longer stops the device."""
        while self._n_unflushed > MAX_UNFLUSHED_STEPS:
            self._flushed.clear()
            await self._flushed.wait()

    async def drained(self) -> None:
        """Returns when everything added is journaled."""
        while self._pending or self._ending or self._n_unflushed:
            self._flushed.clear()
            await self._flushed.wait()

    async def run(self) -> None:
        """Flushes until cancelled; raises `Fenced`."""
        self._dirty.set()  # the first flush says that this worker is here
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._tick())
            while True:
                await self._dirty.wait()
                await self._flush()

    async def _tick(self) -> None:
        """An idle worker flushes each second; not beside a device call, or one that hangs would keep its lease."""
        while True:
            step = self._step
            await asyncio.sleep(min(IDLE_TICK_S, self._lease_ms / 4000))
            if step == self._step and not self._busy():
                self._dirty.set()

    async def _flush(self) -> None:
        self._dirty.clear()
        pending, self._pending = self._pending, []
        ending, self._ending = self._ending, []
        n_steps, self._n_unflushed = self._n_unflushed, 0
        self._n_unflushed += bool(n_steps)
        self._step += 1
        flushed = await self._deliver(self._batch(pending, self._last_step))
        if flushed.status == "short":
            for row in self._rows():
                row.journal_step = 0
            flushed = await self._deliver(self._batch(pending, 0))
        self._last_step = self._step
        self._n_mail = len(flushed.mail)
        if ending:
            await self._finish(ending)
        self._n_unflushed -= bool(n_steps)
        self._flushed.set()
        if flushed.mail:
            self.on_mail(flushed.mail)
        if ending:
            self.on_ended(ending)

    def _batch(self, pending: Sequence[tuple[Row, Sequence[Event]]], last_step: int) -> Batch:
        now_s = monotonic()
        new: dict[Row, list[Event]] = defaultdict(list)
        for row, events in pending:
            new[row].extend(events)
        for row in self._rows():
            if row.journal_step and self._step - row.journal_step > MAX_ROW_ENTRIES:
                row.journal_step = 0
            if row.journal_step == 0 and row not in new and row.n_flushed > row.n_adopted:
                new[row] = []
        adopted = [row for row in new if row.journal_step == 0]
        for row in adopted:
            before = row.events[: new[row][0].pos if new[row] else row.n_flushed]
            new[row] = [*snapshot(before, row.epoch), *new[row]]
            row.journal_step = self._step
        for row, events in pending:
            row.n_flushed = max(row.n_flushed, events[-1].pos + 1 if events else 0)
        progressed = [row for row in new if not row.progressed and row.n_flushed > row.n_adopted]
        for row in progressed:
            row.progressed = True
        self._marks.append((now_s, self._step))
        while self._marks[0][0] < now_s - KEEP_S:
            self._marks.popleft()
        min_step = min([self._marks[0][1], *(row.journal_step for row in self._rows() if row.journal_step)])
        events = [event for row_events in new.values() for event in row_events]
        rids = tuple(row.rid for row in adopted)
        frames = tuple(self._frames(new, now_s))
        return Batch(
            self._step,
            last_step,
            min_step,
            encode_events(events),
            self._n_mail,
            self._record_due(now_s),
            rids,
            tuple(r.rid for r in progressed),
            frames,
        )

    def _record_due(self, now_s: float) -> bytes:
        """The worker's record, once a second."""
        if now_s - self._recorded_s < IDLE_TICK_S / 2:
            return b""
        self._recorded_s = now_s
        return encode(self._record())

    def _frames(self, new: dict[Row, list[Event]], now_s: float) -> Iterable[tuple[str, bytes]]:
        self._sent = {gateway: sent for gateway, sent in self._sent.items() if now_s - sent[1] < KEEP_S}
        by_gateway: dict[str, list[Event]] = {g: [] for g in self._sent if not new}
        for row, events in new.items():
            for gateway in row.gateways:
                by_gateway.setdefault(gateway, []).extend(events)
        for gateway, events in by_gateway.items():
            previous, at_s = self._sent.get(gateway, (0, now_s))
            self._sent[gateway] = (self._step, now_s if events else at_s)
            yield gateway, encode(Frame(VERSION, self.worker, self._step, previous, self.free, tuple(events)))

    async def _deliver(self, batch: Batch) -> Flushed:
        """Repeats a flush byte for byte until its outcome is known."""
        while True:
            try:
                flushed = await self._broker.flush(self.worker, self._lease_ms, batch)
            except UNREACHABLE:
                self.unbroken_since_s = None
                await asyncio.sleep(0.1)
                continue
            if self.unbroken_since_s is None:
                self.unbroken_since_s = monotonic()
            if flushed.status == "fenced":
                raise Fenced(self.worker)
            return flushed

    async def _finish(self, rows: Sequence[Row]) -> None:
        ended = [Ended(row.rid, row.epoch, _result(row)) for row in rows]
        async with self.ownership:
            while True:
                try:
                    if not await self._broker.finish(self.worker, ended):
                        raise Fenced(self.worker)
                    return
                except UNREACHABLE:
                    await asyncio.sleep(0.1)


def _result(row: Row) -> bytes:
    if not row.submit.want & Want.RESULT:
        return b""
    return encode(Result(VERSION, row.rid, tuple(row.events), row.submit.caller))
