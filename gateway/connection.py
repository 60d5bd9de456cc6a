"""Watches one client while its request runs: it may leave at any time, and a silent stream needs a sign of life."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from types import TracebackType
from typing import Any

from gateway import sse

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Connection:
    """Cancels the block it guards when the client leaves; `gone` says so afterwards.

    Between `open_stream` and the end of the block a comment is sent after each 15 s of silence. The body must have been read before.
    """

    def __init__(self, receive: Receive, send: Send, silence_s: float = sse.KEEP_ALIVE_S) -> None:
        self._receive = receive
        self._send = send
        self._silence_s = silence_s
        self.streaming = False
        self._closed = False
        self._sent_at = 0.0
        self.gone = False

    async def __aenter__(self) -> Connection:
        self._loop = asyncio.get_running_loop()
        self._sent_at = self._loop.time()
        self._guarded = asyncio.current_task()
        self._watch = asyncio.create_task(self._until_gone())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> bool:
        self._watch.cancel()
        await asyncio.wait((self._watch,))
        if not self.gone or self._guarded is None:
            return False
        return self._guarded.uncancel() == 0 and kind is asyncio.CancelledError

    def check(self) -> None:
        """Raises the cancellation again if something awaited in the block has swallowed it, as `wait_for` of Python 3.11 may."""
        if self.gone:
            raise asyncio.CancelledError

    async def open_stream(self, headers: list[tuple[bytes, bytes]]) -> None:
        """Sends status 200 and the headers at once."""
        await self._send({"type": "http.response.start", "status": 200, "headers": headers})
        self.streaming = True

    async def write(self, data: bytes) -> None:
        self._sent_at = self._loop.time()
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def close_stream(self, data: bytes) -> None:
        """The last bytes; what the client does afterwards is its own affair."""
        self._closed = True
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def _until_gone(self) -> None:
        left = False
        while not left:
            try:
                async with asyncio.timeout_at(self._sent_at + self._silence_s):
                    left = (await self._receive())["type"] == "http.disconnect"
            except TimeoutError:
                await self._break_silence()
        self.gone = not self._closed
        if self.gone and self._guarded is not None:
            self._guarded.cancel()

    async def _break_silence(self) -> None:
        """The deadline was set at an older write: only real silence counts."""
        now = self._loop.time()
        if now < self._sent_at + self._silence_s:
            return
        if self.streaming:
            await self.write(sse.KEEP_ALIVE)
        else:
            self._sent_at = now
