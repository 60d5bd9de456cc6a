"""Pulling: when to ask for requests, and what a delivery means (design §3.3, §8)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from time import monotonic

from common.broker import UNREACHABLE, Broker, Delivery
from common.fold import Fold, history
from common.messages import Event, Failure, Flag, Malformed, Submit, decode
from workers.journal import Fenced, Journal
from workers.scheduler import Demand
from workers.slots import Row

log = logging.getLogger(__name__)

BELL_TIMEOUT_MS = 1000

DOUBTFUL = 2
"""Crashes after which a request is prefilled alone: only the guilty one reaches the third, whatever a prefill holds."""


class Intake:
    """Asks only when there is reason to: the bell rang, or enough is known to wait."""

    def __init__(self, broker: Broker, bell: Broker, journal: Journal, lanes: Sequence[str], lease_s: float) -> None:
        self._broker = broker
        self._bell = bell
        self._journal = journal
        self._lanes = lanes
        self._lease_s = lease_s
        self._since = "0-0"
        self._waiting = 0
        self._rang = True
        self._listen = asyncio.Event()

    def worthwhile(self, demand: Demand) -> bool:
        """Whether a pull could bring something now."""
        return demand.maximum > 0 and (self._rang or (self._waiting > 0 and self._waiting >= demand.minimum))

    def listen(self) -> None:
        """There is room: from now on the bell is worth hearing."""
        if not self._rang:
            self._listen.set()

    async def run(self, wake: Callable[[], None]) -> None:
        """Listens to the bell while told to; calls `wake` when it rang. Each second counts as a ring: leases pass silently."""
        while True:
            await self._listen.wait()
            try:
                await self._bell.wait_bell(self._since, BELL_TIMEOUT_MS)
            except UNREACHABLE:
                await asyncio.sleep(0.1)
                continue
            self._listen.clear()
            self._rang = True
            wake()

    async def pull(self, demand: Demand, rows: Callable[[], Iterable[Row]]) -> tuple[list[Row], list[Row]]:
        """Rows that are this worker's from now on, and rows it holds that are not any more; raises `Fenced`, `NewerVersion`."""
        async with self._journal.ownership:
            holding = {row.rid: row for row in rows()}
            self._rang = False
            try:
                pulled = await self._broker.pull(
                    self._journal.worker, may_expire=self._may_expire(), held=len(holding),
                    minimum=demand.minimum, maximum=demand.maximum, lanes=self._lanes,
                )  # fmt: skip
            except UNREACHABLE:
                self._rang = True
                await asyncio.sleep(0.1)
                return [], []
        if pulled.status == "fenced":
            raise Fenced(self._journal.worker)
        self._since, self._waiting = pulled.bell, pulled.waiting
        self._rang = pulled.status == "owned" or len(pulled.deliveries) == demand.maximum
        epochs = {delivery.rid: delivery.epoch for delivery in pulled.deliveries}
        lost = [row for row in holding.values() if pulled.status == "owned" and epochs.get(row.rid) != row.epoch]
        kept = holding.keys() - {row.rid for row in lost}
        return [await self._row(delivery) for delivery in pulled.deliveries if delivery.rid not in kept], lost

    def _may_expire(self) -> bool:
        since_s = self._journal.unbroken_since_s
        return since_s is not None and monotonic() - since_s >= self._lease_s

    async def _row(self, delivery: Delivery) -> Row:
        try:
            submit = decode(Submit, delivery.message)
        except Malformed as error:
            log.error("rid=%s cannot be read: %s", delivery.rid.hex(), error)
            with suppress(*UNREACHABLE):
                await self._broker.give_up(delivery, "cannot be read")
            return _ended(_row(delivery, Submit(1, delivery.rid, (), 0), []), "generation", "the queued request cannot be read")
        events = await self._earlier(delivery, submit)
        row = _row(delivery, submit, events)
        if delivery.kind == "corrupt":
            return _ended(row, "generation", "the queued request lost its record")
        if delivery.kind != "cancelled" and not Fold(events).ended:
            if delivery.remaining_ms < 0:
                return _ended(row, "deadline", "Deadline exceeded while waiting")
            if delivery.kind == "guilty":
                return _ended(row, "generation", f"its worker died {delivery.crashes} times in a row, at last alone")
        return row

    async def _earlier(self, delivery: Delivery, submit: Submit) -> list[Event]:
        """What the journal that holds this request says; without one, what its gateway had shown."""
        if not delivery.journal or delivery.kind == "cancelled":
            return list(submit.prefix)
        entries = await _until_known(lambda: self._broker.read_journal(delivery.journal, delivery.journal_from))
        return history(delivery.rid, (events for _, events in entries)) or list(submit.prefix)


async def _until_known(read: Callable[[], Awaitable[list[tuple[int, list[Event]]]]]) -> list[tuple[int, list[Event]]]:
    while True:
        try:
            return await read()
        except UNREACHABLE:
            await asyncio.sleep(0.1)


def _row(delivery: Delivery, submit: Submit, events: list[Event]) -> Row:
    deadline_s = monotonic() + delivery.remaining_ms / 1000 if delivery.remaining_ms > 0 else None
    row = Row(delivery.rid, delivery.epoch, submit, delivery.gateways, events, delivery.waited_ms, deadline_s=deadline_s)
    row.n_tokens = row.n_adopted = row.n_flushed = len(events)
    row.suspect = delivery.crashes >= DOUBTFUL
    row.solo = delivery.kind == "solo"
    row.over = delivery.kind == "cancelled" or Fold(events).ended
    return row


def _ended(row: Row, kind: str, detail: str) -> Row:
    """The row's one error event, instead of tokens."""
    message = f"Request failed during generation: {detail}" if kind == "generation" else detail
    row.events.append(Event(row.rid, row.epoch, len(row.events), -1, 0.0, "", Flag.ERROR, error=Failure(kind, message)))
    row.over = True
    return row
