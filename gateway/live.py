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

    def __init__(self, submit: Submit, lane: int, leave: Callable[[Live], Awaitable[None]]) -> None:
        self.submit = submit
        self.lane = lane
        self.fold = Fold(submit.prefix)
        self.worker = ""
        self.takeovers = 0
        self.touched_s = monotonic()
        self.patience_s = 1.0
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

    async def __aiter__(self) -> AsyncIterator[Event]:
        """Every event once, in order of position; raises the request's error. A reader far behind loses the stream."""
        read = 0
        while True:
            shown = self.fold.shown
            if len(shown) - read > MAX_LAG_EVENTS:
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
        """The client is gone or served: what still runs is cancelled. Safe to repeat."""
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
