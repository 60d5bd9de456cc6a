"""What an operator asks the broker: what became of a request, and what was given up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from common import registry
from common.broker import UNREACHABLE, Broker, connect
from common.config import Settings
from common.errors import StartError
from common.fold import history
from common.keys import Cell
from common.messages import Event

TAIL = 5


def show_request(settings: Settings, rid: str) -> int:
    """Prints state, owner and the end of the journal of a request; 1 when there is none."""
    try:
        return asyncio.run(_request(settings, bytes.fromhex(rid)))
    except ValueError:
        raise StartError(f"{rid} is no request id: it has 32 hexadecimal digits") from None


def show_dead(settings: Settings) -> int:
    """Prints the requests that were given up, oldest first."""
    return asyncio.run(_dead(settings))


async def _request(settings: Settings, rid: bytes) -> int:
    async with _brokers(settings) as brokers:
        for broker in brokers:
            known, result = await broker.request(rid), await broker.result(rid)
            if not known.state and result is None:
                continue
            entries = await broker.read_journal(known.journal, known.journal_from) if known.journal else []
            events = history(rid, (step_events for _, step_events in entries)) or list(result.events if result else ())
            state = known.state or "ended, its result is kept"
            print(f"model {broker.cell.name}\nstate {state}\nlane {known.lane}\nowner {known.owner or '-'}\njournal {known.journal or '-'}")
            print(f"tokens {len(events)}")
            for event in events[-TAIL:]:
                print(_line(event))
            return 0
    print("There is no such request; one that ended is known for a minute.")
    return 1


async def _dead(settings: Settings) -> int:
    async with _brokers(settings) as brokers:
        for broker in brokers:
            for entry, fields in await broker.redis.xrange(broker.cell.dead):
                print(f"{entry.decode()} model {broker.cell.name} rid {fields[b'rid'].decode()} {fields[b'why'].decode()}")
    return 0


def _line(event: Event) -> str:
    """An event without its text: what people wrote stays out of terminals and logs."""
    ended = event.finish.reason if event.finish else event.error.kind if event.error else ""
    return f"  pos {event.pos} epoch {event.epoch} token {event.token} {ended}".rstrip()


@asynccontextmanager
async def _brokers(settings: Settings) -> AsyncIterator[Sequence[Broker]]:
    if not settings.redis_url:
        raise StartError("REDIS_URL is not set: which broker shall be asked?")
    redis = connect(settings.broker_url)
    try:
        cards = await registry.read(redis, settings.farm, {})
        yield [Broker(redis, Cell(settings.farm, card.model, card.fingerprint)) for card in cards.values()]
    except UNREACHABLE as error:
        raise StartError(f"The broker does not answer: {type(error).__name__}", 1) from None
    finally:
        await redis.aclose()
