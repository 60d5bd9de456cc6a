"""One cell as a gateway serves it: submit, fold what comes, repair what is missing, start again what Redis forgot (design §3.7, §8)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from time import monotonic

from redis.exceptions import OutOfMemoryError

from common.broker import UNREACHABLE, Broker, Census
from common.errors import RequestError, overloaded
from common.fold import Verdict
from common.messages import Event, Frame, Submit
from gateway.live import Live

log = logging.getLogger(__name__)

MOST_PATIENCE_S = 5.0
LEAST_WAITING = 128


@dataclass
class Counts:
    """What the gateway's metrics read."""

    holes: int = 0
    divergences: int = 0
    resubmitted: int = 0
    takeovers: int = 0
    cancelled: int = 0


class CellRelay:
    """All live requests of one cell on this gateway."""

    def __init__(self, broker: Broker, gateway: str, queue_factor: float, counts: Counts) -> None:
        self.broker = broker
        self.gateway = gateway
        self.census = Census("", ())
        self.live: dict[bytes, Live] = {}
        self._queue_factor = queue_factor
        self._counts = counts
        self._seen_s = -1e9
        self._boot = ""
        self._steps: dict[str, int] = {}
        self._holes: dict[str, int] = {}
        self._leaving: set[bytes] = set()
        self._mending: set[bytes] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def lanes(self) -> tuple[int, ...]:
        """Lengths that some ready worker serves."""
        return tuple(sorted({lane for worker in self.census.workers if worker.state == "ready" for lane in worker.lanes}))

    def ready(self) -> bool:
        """Whether a worker is ready and Redis answered in the last seconds."""
        return bool(self.lanes()) and monotonic() - self._seen_s < 3.0

    def max_waiting(self, lane: int) -> int:
        """How many requests may wait in a lane."""
        slots = sum(worker.batch_size for worker in self.census.workers if lane in worker.lanes)
        return max(LEAST_WAITING, int(self._queue_factor * slots))

    def retry_after_s(self, waiting: int) -> float:
        """How long the entries ahead will take, from the measured rate of the workers."""
        rate = sum(worker.finished_per_s for worker in self.census.workers)
        return waiting / rate if rate > 0 else 1.0

    async def submit(self, request: Submit, lane: int) -> Live:
        """Queues a request; raises `RequestError` overloaded when it is not taken."""
        live = Live(request, lane, self._leave)
        self.live[request.rid] = live
        try:
            await self._queue(live)
        except RequestError:
            self.live.pop(request.rid, None)
            self._leaving.add(request.rid)
            raise
        except BaseException:
            await self._leave(live)
            raise
        return live

    async def _queue(self, live: Live) -> None:
        try:
            try:
                submitted = await self.broker.submit(live.submit, live.lane, max_waiting=self.max_waiting(live.lane))
            except UNREACHABLE:
                submitted = await self.broker.submit(live.submit, live.lane, max_waiting=self.max_waiting(live.lane))
        except (*UNREACHABLE, OutOfMemoryError):
            raise overloaded() from None
        if submitted.status == "full":
            raise overloaded(self.retry_after_s(submitted.waiting))
        self._note_boot(submitted.boot, new=live)

    def receive(self, frame: Frame) -> None:
        """Folds one frame; a step that never came is fetched from the journal."""
        last = self._steps.get(frame.worker, 0)
        self._steps[frame.worker] = max(last, frame.step)
        if frame.prev_step > last:
            self._repair(frame.worker, last + 1)
        self._fold(frame.worker, frame.events)

    def _fold(self, worker: str, events: Iterable[Event]) -> None:
        for event in events:
            live = self.live.get(event.rid)
            if live is None:
                continue
            takeovers = live.takeovers
            verdict = live.offer(event, worker)
            self._counts.takeovers += live.takeovers - takeovers
            if verdict is Verdict.HOLE:
                self._mend(live, self._look_up)
            elif verdict is Verdict.DIVERGED:
                self._counts.divergences += 1
                log.warning("diverged rid=%s worker=%s pos=%d", event.rid.hex(), worker, event.pos)
                self._mend(live, self._submit_again)

    def _repair(self, worker: str, from_step: int) -> None:
        self._counts.holes += 1
        running = worker in self._holes
        self._holes[worker] = min(from_step, self._holes.get(worker, from_step))
        if not running:
            self._start(self._read_from_journal(worker))

    async def _read_from_journal(self, worker: str) -> None:
        """Until no hole is left: what a frame lost while this reads would report opens the hole again."""
        while (from_step := self._holes.get(worker)) is not None:
            try:
                entries = await self.broker.read_journal(worker, from_step)
            except UNREACHABLE:
                await asyncio.sleep(0.1)
                continue
            if self._holes[worker] == from_step:
                del self._holes[worker]
            for step, events in entries:
                self._steps[worker] = max(step, self._steps.get(worker, 0))
                self._fold(worker, events)

    async def _look_up(self, live: Live) -> None:
        """Asks Redis what became of one request and folds its whole journal."""
        rid = live.submit.rid
        try:
            known = await self.broker.request(rid)
            if not known.state:
                await self._submit_again(live)
            elif known.journal:
                entries = await self.broker.read_journal(known.journal, known.journal_from)
                if not all(self._fold_one(live, known.journal, events) for _, events in entries):
                    await self._submit_again(live)
            if known.state == "ended" and not live.ended:
                live.fail(RequestError("incomplete_generation", "Incomplete generation"))
        except UNREACHABLE:
            return

    def _fold_one(self, live: Live, worker: str, events: Iterable[Event]) -> bool:
        """Whether what the journal says is what was shown."""
        for event in events:
            if event.rid == live.submit.rid and live.offer(event, worker) is Verdict.DIVERGED:
                self._counts.divergences += 1
                return False
        return True

    async def _submit_again(self, live: Live) -> None:
        """Starts a request again behind all that was shown, under an epoch above all that was seen."""
        request = live.submit._replace(prefix=tuple(live.fold.shown), epoch_floor=live.fold.epoch + 1)
        try:
            submitted = await self.broker.submit(request, live.lane, how="replace")
        except (*UNREACHABLE, OutOfMemoryError):
            return
        live.fold.epoch = request.epoch_floor
        live.touched_s = monotonic()
        self._counts.resubmitted += 1
        self._note_boot(submitted.boot, new=live)

    def _note_boot(self, boot: str, new: Live | None = None) -> None:
        """Another boot word means that Redis lost its memory: everything live is submitted again."""
        before, self._boot = self._boot, boot
        if before and boot != before:
            log.warning("the broker lost its memory; %d live requests are submitted again", len(self.live))
            self._steps.clear()
            for live in list(self.live.values()):
                if live is not new:
                    self._mend(live, self._submit_again)

    async def _leave(self, live: Live) -> None:
        if self.live.pop(live.submit.rid, None) is not None and not live.fold.ended:
            self._counts.cancelled += 1
            self._leaving.add(live.submit.rid)
            self._start(self._cancel_leaving())

    async def _cancel_leaving(self) -> None:
        for rid in list(self._leaving):
            try:
                await self.broker.cancel(rid)
            except UNREACHABLE:
                return
            self._leaving.discard(rid)

    def restored(self) -> None:
        """The subscription is new: whatever was published in between is read from the journals."""
        for worker, step in self._steps.items():
            self._repair(worker, step + 1)
        for live in list(self.live.values()):
            self._mend(live, self._look_up)

    async def tick(self) -> None:
        """Once a second: census, boot word, silent requests, cancels that did not get through."""
        self.census, self._seen_s = await self.broker.census(self.gateway), monotonic()
        self._note_boot(self.census.boot)
        if self._leaving:
            await self._cancel_leaving()
        names = {worker.id for worker in self.census.workers}
        if not self.live:
            self._steps = {worker: step for worker, step in self._steps.items() if worker in names}
        for live in list(self.live.values()):
            if not live.ended and monotonic() - live.touched_s > live.patience_s:
                live.touched_s, live.patience_s = monotonic(), min(MOST_PATIENCE_S, live.patience_s * 2)
                self._mend(live, self._look_up)

    def _mend(self, live: Live, how: Callable[[Live], Coroutine[None, None, None]]) -> None:
        """Looks up or submits again, one at a time for each request."""
        if live.submit.rid not in self._mending and self.live.get(live.submit.rid) is live and not live.ended:
            self._mending.add(live.submit.rid)
            self._start(self._mended(live, how))

    async def _mended(self, live: Live, how: Callable[[Live], Coroutine[None, None, None]]) -> None:
        try:
            await how(live)
        finally:
            self._mending.discard(live.submit.rid)

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
