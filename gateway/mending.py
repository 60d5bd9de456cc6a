"""Making streams whole again: holes from journals, forgotten requests from what was shown (design §3.7, §8)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from time import monotonic

from common.broker import UNREACHABLE, Broker
from common.errors import RequestError
from common.fold import Verdict
from common.messages import Event, Frame
from gateway.live import Live

log = logging.getLogger(__name__)


@dataclass
class Counts:
    """What the gateway's metrics read."""

    holes: int = 0
    divergences: int = 0
    resubmitted: int = 0
    takeovers: int = 0
    cancelled: int = 0


class Mending:
    """Folds frames into live requests and fetches what they lack. One look-up at a time for each request and journal."""

    def __init__(self, broker: Broker, live: dict[bytes, Live], counts: Counts) -> None:
        self._broker = broker
        self._live = live
        self._counts = counts
        self._boot = ""
        self._steps: dict[str, int] = {}
        self._holes: dict[str, int] = {}
        self._mending: set[bytes] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    def receive(self, frame: Frame) -> None:
        """Folds one frame; a step that never came is fetched from the journal."""
        last = self._steps.get(frame.worker, 0)
        self._steps[frame.worker] = max(last, frame.step)
        if frame.prev_step > last:
            self._repair(frame.worker, last + 1)
        self._fold(frame.worker, frame.events)

    def restored(self) -> None:
        """The subscription is new: whatever was published in between is read from the journals."""
        for worker, step in self._steps.items():
            self._repair(worker, step + 1)
        for live in list(self._live.values()):
            self.mend(live, self.look_up)

    def note_boot(self, boot: str, new: Live | None = None) -> None:
        """Another boot word means that Redis lost its memory: everything live is submitted again."""
        before, self._boot = self._boot, boot
        if before and boot != before:
            log.warning("the broker lost its memory; %d live requests are submitted again", len(self._live))
            self._steps.clear()
            for live in list(self._live.values()):
                if live is not new:
                    self.mend(live, self._submit_again)

    def forget_workers(self, alive: set[str]) -> None:
        """Steps of workers that are gone matter no more once nothing is live."""
        if not self._live:
            self._steps = {worker: step for worker, step in self._steps.items() if worker in alive}

    def mend(self, live: Live, how: Callable[[Live], Coroutine[None, None, None]]) -> None:
        """Looks up or submits again, unless that is under way."""
        if live.queued and live.submit.rid not in self._mending and self._live.get(live.submit.rid) is live and not live.ended:
            self._mending.add(live.submit.rid)
            self.start(self._mended(live, how))

    def start(self, work: Coroutine[None, None, None]) -> None:
        """Runs `work` beside everything else, to its end."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def look_up(self, live: Live) -> None:
        """Asks Redis what became of one request and folds its whole journal, or its result."""
        rid = live.submit.rid
        try:
            known = await self._broker.request(rid)
            if not known.state:
                await self._submit_again(live)
            elif known.journal:
                entries = await self._broker.read_journal(known.journal, known.journal_from)
                if not all(self.fold_one(live, known.journal, events) for _, events in entries):
                    await self._submit_again(live)
            if known.state == "ended" and not live.ended and (result := await self._broker.result(rid)) is not None:
                self.fold_one(live, known.journal, result.events)
            if known.state == "ended" and not live.ended:
                live.fail(RequestError("incomplete_generation", "Incomplete generation"))
        except UNREACHABLE:
            return

    def fold_one(self, live: Live, worker: str, events: Iterable[Event]) -> bool:
        """Whether what the journal says is what was shown."""
        for event in events:
            if event.rid == live.submit.rid and live.offer(event, worker) is Verdict.DIVERGED:
                self._counts.divergences += 1
                return False
        return True

    def _fold(self, worker: str, events: Iterable[Event]) -> None:
        for event in events:
            live = self._live.get(event.rid)
            if live is None:
                continue
            takeovers = live.takeovers
            verdict = live.offer(event, worker)
            self._counts.takeovers += live.takeovers - takeovers
            if verdict is Verdict.HOLE:
                self.mend(live, self.look_up)
            elif verdict is Verdict.DIVERGED:
                self._counts.divergences += 1
                log.warning("diverged rid=%s worker=%s pos=%d", event.rid.hex(), worker, event.pos)
                self.mend(live, self._submit_again)

    def _repair(self, worker: str, from_step: int) -> None:
        self._counts.holes += 1
        running = worker in self._holes
        self._holes[worker] = min(from_step, self._holes.get(worker, from_step))
        if not running:
            self.start(self._read_from_journal(worker))

    async def _read_from_journal(self, worker: str) -> None:
        """Until no hole is left: what a frame lost while this reads would report opens the hole again."""
        while (from_step := self._holes.get(worker)) is not None:
            try:
                entries = await self._broker.read_journal(worker, from_step)
            except UNREACHABLE:
                await asyncio.sleep(0.1)
                continue
            if self._holes[worker] == from_step:
                del self._holes[worker]
            for step, events in entries:
                self._steps[worker] = max(step, self._steps.get(worker, 0))
                self._fold(worker, events)

    async def _submit_again(self, live: Live) -> None:
        """Starts a request again behind all that was shown, under an epoch above all that was seen."""
        request = live.submit._replace(prefix=tuple(live.fold.shown), epoch_floor=live.fold.epoch + 1)
        try:
            submitted = await self._broker.submit(request, live.lane, how="replace", digest=live.digest)
        except UNREACHABLE:
            return
        live.fold.epoch = request.epoch_floor
        live.touched_s = monotonic()
        self._counts.resubmitted += 1
        self.note_boot(submitted.boot, new=live)

    async def _mended(self, live: Live, how: Callable[[Live], Coroutine[None, None, None]]) -> None:
        try:
            await how(live)
        finally:
            self._mending.discard(live.submit.rid)
