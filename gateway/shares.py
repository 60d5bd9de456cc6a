"""What one API key may have under way on one gateway."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from common.errors import invalid, overloaded


class Share:
    """At most `max_running` requests in the farm, and `max_queued` that wait here, first come first; None: any number."""

    def __init__(self, max_running: int | None = None, max_queued: int | None = None) -> None:
        self.max_running = max_running
        self.max_queued = max_queued
        self.running = 0
        self.queued = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def take(self, n: int = 1) -> AsyncIterator[None]:
        """Room for `n` requests; raises 429 when too many wait already, 422 when there is never that much room."""
        if not self._fits(n) or self._waiting:
            await self._wait(n)
        else:
            self.running += n
        try:
            yield
        finally:
            self.running -= n
            self._admit()

    def _fits(self, n: int) -> bool:
        return self.max_running is None or self.running + n <= self.max_running

    async def _wait(self, n: int) -> None:
        if self.max_running is not None and n > self.max_running:
            raise invalid(f"this API key may run {self.max_running} generations at once. Given: {n}")
        if self.max_queued is not None and self.queued + n > self.max_queued:
            raise overloaded(detail="Too many requests of this API key")
        entry = (n, asyncio.get_running_loop().create_future())
        self._waiting.append(entry)
        self.queued += n
        try:
            await entry[1]
        except asyncio.CancelledError:
            if entry in self._waiting:
                self._waiting.remove(entry)
                self.queued -= n
            else:
                self.running -= n
            self._admit()
            raise

    def _admit(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            n, future = self._waiting.popleft()
            self.queued -= n
            self.running += n
            future.set_result(None)
