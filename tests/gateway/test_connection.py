from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest

from gateway.connection import Connection

pytestmark = pytest.mark.anyio


class Client:
    """The other end of an ASGI application: leaves when told."""

    def __init__(self) -> None:
        self.left = asyncio.Event()
        self.sent: list[Any] = []
        self.news = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message.get("body", message["type"]))
        self.news.set()

    async def until_sent(self, n: int) -> None:
        async with asyncio.timeout(5):
            while len(self.sent) < n:
                self.news.clear()
                await self.news.wait()


async def test_a_block_whose_client_leaves_is_cancelled_and_the_rest_runs() -> None:
    client = Client()
    cleaned = False
    async with Connection(client.receive, client.send) as connection:
        asyncio.get_running_loop().call_soon(client.left.set)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned = True
    assert connection.gone and cleaned
    await asyncio.sleep(0)


async def test_a_cancellation_that_was_swallowed_is_not_lost() -> None:
    client = Client()
    async with Connection(client.receive, client.send) as connection:
        client.left.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        connection.check()
        raise AssertionError("the block went on")
    task = asyncio.current_task()
    assert connection.gone and task is not None and task.cancelling() == 0


async def test_a_client_that_leaves_at_the_very_end_does_no_harm() -> None:
    client = Client()
    async with Connection(client.receive, client.send):
        await asyncio.sleep(0)
        client.left.set()
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0
    await asyncio.sleep(0)


async def test_a_client_that_stays_sees_the_block_end() -> None:
    client = Client()
    async with Connection(client.receive, client.send) as connection:
        await asyncio.sleep(0)
    assert not connection.gone


async def test_errors_and_cancels_from_elsewhere_pass_through() -> None:
    client = Client()
    with pytest.raises(ValueError, match="inside"):
        async with Connection(client.receive, client.send):
            raise ValueError("inside")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01), Connection(client.receive, client.send):
            await asyncio.Event().wait()


async def test_a_silent_stream_gets_a_comment_after_each_silence() -> None:
    client = Client()
    async with Connection(client.receive, client.send, silence_s=0.02) as connection:
        await connection.open_stream([])
        await connection.write(b"data: 1\n\n")
        await client.until_sent(4)
    assert client.sent[:4] == ["http.response.start", b"data: 1\n\n", b":\n\n", b":\n\n"]


async def test_no_comment_while_there_is_something_to_say_or_before_the_stream() -> None:
    client = Client()
    async with Connection(client.receive, client.send, silence_s=0.2) as connection:
        await connection.open_stream([])
        for _ in range(20):
            await connection.write(b"x")
            await asyncio.sleep(0.02)
    assert b":\n\n" not in client.sent
    async with Connection(client.receive, client.send, silence_s=0.01):
        await asyncio.sleep(0.05)
    assert b":\n\n" not in client.sent


async def test_what_a_client_does_after_the_last_bytes_is_its_own_affair() -> None:
    client = Client()
    async with Connection(client.receive, client.send) as connection:
        await connection.open_stream([])
        await connection.close_stream(b"data: 1\n\n")
        client.left.set()
        await asyncio.sleep(0.01)
    assert not connection.gone
    assert client.sent == ["http.response.start", b"data: 1\n\n"]
