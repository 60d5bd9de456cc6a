"""One cell as a gateway serves it: who may submit, who looks on, who left (design §8). `mending.py` folds and repairs."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from time import monotonic

from common.broker import UNREACHABLE, Broker, Census, Submitted
from common.errors import RequestError, invalid, overloaded
from common.messages import VERSION, Submit, Want
from gateway.live import Live
from gateway.mending import Counts, Mending

MOST_PATIENCE_S = 5.0
LEAST_WAITING = 128

BLIND_S = 5.0
"""Without an answer of the broker for this long nothing new is taken."""

RESUMABLE_S = 30.0
"""How long a resumable request goes on without a viewer."""

UNKNOWN_RATE_S = 10.0
"""When to come back to a full queue of which nothing has finished yet."""

UNSERVED_S = 30.0
"""How long a queued request waits for a worker of its lane to come back."""


class CellRelay:
    """All live requests of one cell on this gateway."""

    def __init__(self, broker: Broker, gateway: str, queue_factor: float, counts: Counts, queue_when_cold: bool = False) -> None:
        self._queue_when_cold = queue_when_cold
        self._last_lanes: tuple[int, ...] = ()
        self._rate = 0.0  # finished requests per second, as last known
        self.broker = broker
        self.gateway = gateway
        self.census = Census("", ())
        self.live: dict[bytes, Live] = {}
        self._queue_factor = queue_factor
        self._counts = counts
        self._seen_s = -1e9
        self.mending = Mending(broker, self.live, counts)
        self._leaving: set[bytes] = set()

    def lanes(self) -> tuple[int, ...]:
        """Lengths that some worker serves now."""
        return tuple(sorted({lane for worker in self.census.workers if worker.serves for lane in worker.lanes}))

    def lanes_when_cold(self, longest: int) -> tuple[int, ...]:
        """Where a request may wait while no worker is ready: the lanes that were served last, else the model's longest."""
        return (self._last_lanes or (longest,)) if self._queue_when_cold else ()

    def ready(self) -> bool:
        """Whether a worker is ready and Redis answered in the last seconds."""
        return bool(self.lanes()) and monotonic() - self._seen_s < BLIND_S

    def max_waiting(self, lane: int) -> int:
        """How many requests may wait in a lane."""
        slots = sum(worker.batch_size for worker in self.census.workers if lane in worker.lanes)
        return max(LEAST_WAITING, int(self._queue_factor * slots))

    def retry_after_s(self, waiting: int) -> float:
        """How long the entries ahead will take, from the measured rate of the workers."""
        self._rate = sum(worker.finished_per_s for worker in self.census.workers) or self._rate
        return waiting / self._rate if self._rate else UNKNOWN_RATE_S

    async def submit(self, request: Submit, lane: int, digest: str = "") -> Live:
        """Queues a request, or joins the one that was queued under this id; raises `RequestError` when it is not taken."""
        here = self.live.get(request.rid)
        if here is not None:
            _same(here.digest, digest)
            here.viewers += 1
            return here
        live = Live(request, lane, self._leave, digest)
        self.live[request.rid] = live
        queueing = asyncio.ensure_future(self._queue(live))
        try:
            await asyncio.shield(queueing)  # a client that leaves now must not cut a command in half
        except RequestError:
            self.live.pop(request.rid, None)
            if not digest:
                self._leaving.add(request.rid)
            raise
        except asyncio.CancelledError:
            queueing.add_done_callback(lambda task: task.exception())
            queueing.add_done_callback(lambda task: self._cancel(live))
            raise
        if request.ttl_ms:
            asyncio.get_running_loop().call_later(request.ttl_ms / 1000, self._too_late, live)
        return live

    async def resume(self, rid: bytes, caller: str) -> Live | None:
        """A further viewer of a request that runs or whose result is kept; None when this caller has no such request."""
        here = self.live.get(rid)
        if here is not None:
            here.viewers += here.submit.caller == caller
            return here if here.submit.caller == caller else None
        try:
            known = await self.broker.request(rid)
            if known.state and known.caller != caller:
                return None
            queued = await self.broker.queued(known) if known.state else None
            submit = queued or Submit(VERSION, rid, (), 0, caller=caller, want=int(Want.RESULT | Want.RESUMABLE))
            live = Live(submit._replace(gateway=self.gateway), _length(known.lane), self._leave)
            if known.state:
                self.live[rid], live.queued = live, True
                await self.broker.submit(live.submit, live.lane, how="attach")
                await self.mending.look_up(live)
                return live
            result = await self.broker.result(rid)
        except UNREACHABLE:
            raise overloaded() from None
        if result is None or result.caller != caller:
            return None
        self.mending.fold_one(live, "", result.events)
        return live

    async def _queue(self, live: Live) -> None:
        try:
            try:
                submitted = await self._submit_once(live)
            except UNREACHABLE:
                submitted = await self._submit_once(live)
        except UNREACHABLE:
            raise overloaded() from None
        if submitted.status == "full":
            raise overloaded(self.retry_after_s(submitted.waiting))
        live.queued = True
        self.mending.note_boot(submitted.boot, new=live)
        if submitted.status == "known" and live.digest:
            _same(submitted.digest, live.digest)
            await self.mending.look_up(live)

    async def _submit_once(self, live: Live) -> Submitted:
        return await self.broker.submit(live.submit, live.lane, max_waiting=self.max_waiting(live.lane), digest=live.digest)

    def _too_late(self, live: Live) -> None:
        """A request that nobody started before its deadline ends here; one that runs is ended by its worker."""
        if not live.worker and not live.ended:
            self._cancel(live)
            live.fail(RequestError("deadline", "Deadline exceeded while waiting", {"x-should-retry": "false"}))

    async def _leave(self, live: Live) -> None:
        """Plain requests end with their last viewer, resumable ones a while later, detached ones never."""
        want, rid = live.submit.want, live.submit.rid
        if live.viewers > 0 or self.live.get(rid) is not live:
            return
        if live.fold.ended or want & Want.DETACHED:
            del self.live[rid]
        elif want & Want.RESUMABLE and live.error is None:
            asyncio.get_running_loop().call_later(RESUMABLE_S, self._give_up, live)
        else:
            self._cancel(live)

    def _give_up(self, live: Live) -> None:
        if live.viewers <= 0:
            self._cancel(live)

    def _cancel(self, live: Live) -> None:
        if self.live.pop(live.submit.rid, None) is not None and not live.fold.ended:
            self._counts.cancelled += 1
            self._leaving.add(live.submit.rid)
            self.mending.start(self._cancel_leaving())

    async def _cancel_leaving(self) -> None:
        """Tells the farm who has left, and that this gateway is here."""
        rids = list(self._leaving)
        with suppress(*UNREACHABLE):
            await self.broker.cancel(rids, self.gateway)
            self._leaving.difference_update(rids)

    async def tick(self) -> None:
        """Once a second: census, boot word, silent requests, cancels that did not get through."""
        self.census, self._seen_s = await self.broker.census(), monotonic()
        self._last_lanes = self.lanes() or self._last_lanes
        self.mending.note_boot(self.census.boot)
        await self._cancel_leaving()
        self.mending.forget_workers({worker.id for worker in self.census.workers})
        for live in list(self.live.values()):
            self._check_served(live)
            if not live.ended and monotonic() - live.touched_s > live.patience_s:
                live.touched_s, live.patience_s = monotonic(), min(MOST_PATIENCE_S, live.patience_s * 2)
                self.mending.mend(live, self.mending.look_up)

    def _check_served(self, live: Live) -> None:
        """A queued request whose lane nobody serves any more ends, unless it may wait for a worker."""
        if live.worker or live.ended or live.lane in self.lanes():
            live.unserved_since_s = None
        elif live.unserved_since_s is None:
            live.unserved_since_s = monotonic()
        elif monotonic() - live.unserved_since_s > UNSERVED_S and not self._queue_when_cold:
            self._cancel(live)
            live.fail(overloaded(5.0))


def _same(known: str, digest: str) -> None:
    if known != digest:
        raise invalid("`Idempotency-Key` was used with another request")


def _length(lane: str) -> int:
    """Tokens of a lane's name; 0 for a lane that has none."""
    match = re.match(r"L(\d+):", lane)
    return int(match[1]) if match else 0
