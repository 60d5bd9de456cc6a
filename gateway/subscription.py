"""The gateway's one pub/sub connection. Losing it is normal: whoever listens is told, and repairs from journals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic

from redis.asyncio import Connection, Redis

from common.broker import UNREACHABLE

SILENCE_S = 3.0


class Subscription:
    """Calls `deliver(channel, data)` for each message and `restored()` after each (re)connection was confirmed."""

    def __init__(self, redis: Redis, deliver: Callable[[bytes, bytes], None], restored: Callable[[], None]) -> None:
        self._redis = redis
        self._deliver = deliver
        self._restored = restored
        self._channels: dict[bytes, asyncio.Event] = {}
        self._connection: Connection | None = None
        self._heard_s = monotonic()

    async def subscribe(self, channel: str) -> None:
        """Returns when the server has confirmed the channel: what is published from then on arrives."""
        confirmed = self._channels.setdefault(channel.encode(), asyncio.Event())
        if self._connection is not None and not confirmed.is_set():
            await self._connection.send_command("SUBSCRIBE", channel)
        await confirmed.wait()

    async def ping(self) -> None:
        """Sends a word through every channel, so that silence means loss; drops a connection that was silent too long."""
        if self._connection is not None and self._channels and monotonic() - self._heard_s > SILENCE_S:
            await self._connection.disconnect(nowait=True)
        for channel in self._channels:
            await self._redis.publish(channel, b"")

    async def run(self) -> None:
        """Reads for ever, on a new connection after each loss."""
        while True:
            connection: Connection = self._redis.connection_pool.make_connection()
            connection.socket_timeout = None
            try:
                await connection.connect()
                self._connection, self._heard_s = connection, monotonic()
                if self._channels:
                    await connection.send_command("SUBSCRIBE", *self._channels)
                while True:
                    self._receive(await connection.read_response())
            except UNREACHABLE:
                await asyncio.sleep(0.05)
            finally:
                self._connection = None
                for confirmed in self._channels.values():
                    confirmed.clear()
                await connection.disconnect(nowait=True)

    def _receive(self, message: list[bytes]) -> None:
        self._heard_s = monotonic()
        kind, channel, data = message[0], message[1], message[2]
        if kind == b"message":
            if data:
                self._deliver(channel, data)
        elif kind == b"subscribe":
            self._channels.setdefault(channel, asyncio.Event()).set()
            if all(confirmed.is_set() for confirmed in self._channels.values()):
                self._restored()
