"""One request as its gateway sees it: what was shown, who runs it, who reads along."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from time import monotonic

from common.errors import RequestError
from common.fold import Fold, Verdict
from common.messages import Event, Flag, Submit

MAX_LAG_EVENTS = 1024


class Live:
    """The gateway's copy of a request is the second journal: it can submit the request again with all that was shown."""

    def __init__(self, submit: Submit, lane: int, leave: Callable[[Live], Awaitable[None]], digest: str = "") -> None:
        self.submit = submit
        self.digest = digest
        self.viewers = 1
        self.queued = False  # Redis has it: from now on it may be looked up and submitted again
        self.lane = lane
        self.fold = Fold(submit.prefix)
        self.worker = ""
        self.takeovers = 0
        self.touched_s = monotonic()
        self.patience_s = 1.0
        self.unserved_since_s: float | None = None
        self.error: RequestError | None = None
        self._leave = leave
        self._waiting: set[asyncio.Future[None]] = set()

    @property
    def ended(self) -> bool:
        return self.error is not None or self.fold.ended

    def offer(self, event: Event, worker: str) -> Verdict:
        """Folds one event and wakes the readers."""
        verdict = self.fold.offer(event)
        if verdict is Verdict.NEXT:
            self.touched_s, self.patience_s = monotonic(), 1.0
            if worker != self.worker:
                self.takeovers += bool(self.worker)
                self.worker = worker
            self._wake()
        return verdict

    def fail(self, error: RequestError) -> None:
        """Ends the request with one error, unless it has ended."""
        if not self.ended:
            self.error = error
            self._wake()

    def __aiter__(self) -> AsyncIterator[Event]:
        return self.follow()

    async def follow(self, read: int = 0) -> AsyncIterator[Event]:
        """Every event from position `read` on, once and in order; raises the request's error. A reader far behind loses the stream."""
        shown = self.fold.shown
        backlog = len(shown)
        while True:
            if len(shown) - max(read, backlog) > MAX_LAG_EVENTS:
                self.fail(RequestError("generation", "Request failed during generation: the client reads too slowly"))
            while read < len(shown):
                event = shown[read]
                read += 1
                if event.flags & Flag.ERROR and event.error is not None:
                    raise RequestError(event.error.kind, event.error.message)
                yield event
                if event.flags & Flag.FINISH:
                    return
            if self.error is not None:
                raise self.error
            await self._more()

    async def close(self) -> None:
        """One viewer is gone or served; without viewers, what still runs is cancelled. Call once for each viewer."""
        self.viewers -= 1
        await self._leave(self)

    async def _more(self) -> None:
        future = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await future
        finally:
            self._waiting.discard(future)

    def _wake(self) -> None:
        for future in self._waiting:
            if not future.done():
                future.set_result(None)
