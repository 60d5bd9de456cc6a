"""Runs the generations of one HTTP request, whole or as a stream, from permits to outcomes (design §3, §8)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Any, Protocol

from common.errors import RequestError
from common.messages import Event, Want, new_rid
from gateway import headers, outcome, sse
from gateway.call import Call
from gateway.connection import Connection
from gateway.generation import Generation
from gateway.live import Live
from gateway.session import Session


class Form(Protocol):
    """How a route shows its generations as server-sent events."""

    def show(self, index: int, generation: Generation) -> Any:
        """The JSON of the newest event of a generation."""

    def end(self) -> bytes:
        """What follows the last event of the last generation."""

    def error(self, error: RequestError) -> bytes:
        """The end of a stream that fails."""


async def complete(call: Call, generations: Sequence[Generation], session: Session) -> bool:
    """Runs all to their ends. False: nobody waits for the answer any more; the client left, or was told to come back (202)."""
    try:
        for generation in generations:
            generation.check_before_permit(stream=False)
        async with Connection(call.receive, call.send) as connection, _started(call, generations, session) as lives:
            connection.check()
            if session.want & Want.DETACHED:
                await call.answer(202, sse.dumps({"id": lives[0].submit.rid.hex()}), [headers.JSON])
                return False
            for generation, live in zip(generations, lives, strict=True):
                async for event in live:
                    generation.add(event)
    except RequestError as error:
        _all(outcome.failed, generations, error)
        raise
    if connection.gone:
        _all(outcome.dropped, generations)
    return not connection.gone


async def stream(call: Call, generations: Sequence[Generation], session: Session, form: Form) -> None:
    """Errors before the first byte have their own status, later ones are the stream's last event."""
    connection = Connection(call.receive, call.send)
    try:
        for generation in generations:
            generation.check_before_permit(stream=True)
        async with connection, _started(call, generations, session) as lives:
            connection.check()
            n_characters = sum(len(generation.inputs) for generation in generations)
            await connection.open_stream(sse.HEADERS + headers.of_stream(call.service.compute_type, n_characters))
            n_open = len(lives)
            async with aclosing(merged(lives)) as events:
                async for index, event in events:
                    generations[index].add(event)
                    name = f"{lives[index].submit.rid.hex()}/{event.pos}" if session.shows_ids else ""
                    value = form.show(index, generations[index])
                    shown = sse.event(value, name) if event.pos >= session.next_pos else b""
                    n_open -= event.finish is not None
                    if not n_open:
                        await connection.close_stream(shown + form.end())
                    elif shown:
                        await connection.write(shown)
    except RequestError as error:
        _all(outcome.failed, generations, error)
        if not connection.streaming:
            raise
        await connection.close_stream(form.error(error))
    else:
        _all(outcome.dropped if connection.gone else outcome.succeeded, generations)


async def merged(lives: Sequence[Live]) -> AsyncGenerator[tuple[int, Event], None]:
    """The events of all, with the index of whose they are, as they come."""
    if len(lives) == 1:
        async for event in lives[0]:
            yield 0, event
        return
    readers = [aiter(live) for live in lives]
    reading = {asyncio.create_task(_next(reader)): index for index, reader in enumerate(readers)}
    try:
        while reading:
            done, _ = await asyncio.wait(reading, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=lambda task: reading[task]):
                index, event = reading.pop(task), task.result()
                if event.finish is None:
                    reading[asyncio.create_task(_next(readers[index]))] = index
                yield index, event
    finally:
        for task in reading:
            task.cancel()
        if reading:
            await asyncio.wait(reading)


async def _next(reader: AsyncIterator[Event]) -> Event:
    return await anext(reader)


@asynccontextmanager
async def _started(call: Call, generations: Sequence[Generation], session: Session) -> AsyncIterator[list[Live]]:
    """All of them queued; at the end what still runs is cancelled."""
    lives: list[Live] = []
    n = len(generations)
    with call.service.permits.take(n):
        async with call.share.take(n):
            try:
                for generation in generations:
                    lives.append(await generation.start(session if n == 1 else _each(session)))
                yield lives
            finally:
                for live in lives:
                    await live.close()


def _each(session: Session) -> Session:
    """One of several generations cannot be come back for."""
    if session.resumes:
        raise RequestError("not_found", "There is no such request")
    return Session(session.caller, new_rid(), ttl_ms=session.ttl_ms)


def _all(how: Any, generations: Sequence[Generation], *arguments: Any) -> None:
    for generation in generations:
        how(generation, *arguments)
