"""The gateway's side of the farm: which models there are, and one relay per cell."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from secrets import token_hex

from redis.asyncio import Redis

from common import registry
from common.broker import UNREACHABLE, Broker, connect_single
from common.config import Settings
from common.errors import RequestError, overloaded
from common.keys import Cell
from common.messages import Card, Frame, Malformed, NewerVersion, Submit, Worker, decode
from gateway.cell import CellRelay
from gateway.live import Live
from gateway.mending import Counts
from gateway.subscription import Subscription

log = logging.getLogger(__name__)

TICK_S = 1.0

MOST_MEMORY = 0.8
"""Share of Redis' memory above which nothing new is admitted: what runs must be able to finish."""


@dataclass(frozen=True)
class ServedModel:
    """A model that some worker serves or served. Limits in tokens."""

    name: str
    card: Card
    cell: CellRelay

    @property
    def lanes(self) -> tuple[int, ...]:
        return self.cell.lanes() or self.cell.lanes_when_cold(self.max_total_tokens)

    @property
    def max_total_tokens(self) -> int:
        return self.card.limits["max_total_tokens"]

    @property
    def max_input_tokens(self) -> int:
        return self.card.limits["max_input_tokens"]

    @property
    def capabilities(self) -> frozenset[str]:
        return frozenset(self.card.capabilities)


class Relay:
    """Start `run()` as a task of the process; everything else may be called once it runs."""

    def __init__(self, redis: Redis, settings: Settings) -> None:
        self.gateway = settings.gateway_id or f"{socket.gethostname()}-{token_hex(4)}"
        self.counts = Counts()
        self.on_model: Callable[[ServedModel], None] = lambda model: None
        self._redis = redis
        self._quick = connect_single(settings.broker_url)
        self._settings = settings
        self.broker_bytes = (0, 0)
        self._silent = False
        self._cards: dict[str, Card] = {}
        self._models: dict[str, ServedModel] = {}
        self._cells: dict[str, CellRelay] = {}
        self._channels: dict[bytes, CellRelay] = {}
        self._subscription = Subscription(redis, self._deliver, self._restored)

    def model(self, name: str | None = None) -> ServedModel | None:
        """The model of that name; any other name means the first one. None: no worker has published a card yet."""
        found = self._models.get(name) if name else None
        ready = (model for model in self._models.values() if model.cell.ready())
        return found or next(ready, None) or next(iter(self._models.values()), None)

    def models(self) -> tuple[ServedModel, ...]:
        return tuple(self._models.values())

    def workers(self) -> tuple[Worker, ...]:
        """The live workers of all cells."""
        return tuple(worker for cell in self._cells.values() for worker in cell.census.workers)

    def ready(self) -> bool:
        """Whether the farm can serve now."""
        return any(cell.ready() for cell in self._cells.values())

    def n_waiting(self) -> int:
        """This gateway's requests that no worker has answered yet."""
        return sum(not live.worker for cell in self._cells.values() for live in cell.live.values())

    async def submit(self, request: Submit, lane: int, model: ServedModel | None = None, digest: str = "") -> Live:
        """Queues a request; raises `RequestError` overloaded when no worker is ready, the lane or Redis is full.

        With a `digest` of its body the request may be known already: then this is a further viewer of it.
        """
        served = model or self.model()
        if served is None or not (served.cell.ready() or self._settings.queue_when_cold):
            raise overloaded(5.0)
        used_bytes, most_bytes = self.broker_bytes
        if most_bytes and used_bytes > MOST_MEMORY * most_bytes:
            raise overloaded(5.0)
        return await served.cell.submit(request._replace(gateway=self.gateway), lane, digest)

    async def resume(self, rid: bytes, caller: str) -> Live:
        """A further viewer of a request, on whichever gateway it began; raises 404 for anybody else's."""
        for cell in self._cells.values():
            live = await cell.resume(rid, caller)
            if live is not None:
                return live
        raise RequestError("not_found", "There is no such request")

    async def broker_answers(self) -> bool:
        """True, or raises one of `UNREACHABLE`."""
        return bool(await self._redis.ping())

    async def run(self) -> None:
        """Serves until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._subscription.run())
            while True:
                await self._tick()
                await asyncio.sleep(TICK_S)

    def end_all(self, error: RequestError) -> None:
        """Ends every live request of this gateway with one error."""
        for cell in self._cells.values():
            for live in list(cell.live.values()):
                live.fail(error)

    async def leave(self) -> None:
        """Signs off, so that nobody waits for this gateway."""
        for cell in self._cells.values():
            try:
                await cell.broker.forget_gateway(self.gateway)
            except UNREACHABLE:
                return

    async def _tick(self) -> None:
        try:
            self._cards = await registry.read(self._redis, self._settings.farm, self._cards)
            for card in self._cards.values():
                await self._serve(card)
            for cell in self._cells.values():
                await cell.tick()
            memory = await self._redis.info("memory")
            self.broker_bytes = memory["used_memory"], memory["maxmemory"]
            await self._subscription.ping()
            self._note_silence("")
        except UNREACHABLE as error:
            self._note_silence(f"{type(error).__name__}: {error}")
        except (Malformed, NewerVersion) as error:
            log.warning("a record of the farm cannot be read: %s", error)

    def _note_silence(self, why: str) -> None:
        """One line when the broker stops to answer and one when it does again."""
        if bool(why) != self._silent:
            self._silent = bool(why)
            log.warning("the broker does not answer: %s", why) if why else log.info("the broker answers again")

    async def _serve(self, card: Card) -> None:
        served = self._models.get(card.model)
        if served is not None and served.card == card:
            return
        cell = self._cells.get(card.fingerprint)
        if cell is None:
            broker = Broker(self._redis, Cell(self._settings.farm, card.model, card.fingerprint), self._quick)
            cell = CellRelay(broker, self.gateway, self._settings.queue_factor, self.counts, self._settings.queue_when_cold)
            channel = broker.cell.events(self.gateway)
            self._channels[channel.encode()] = cell
            async with asyncio.timeout(TICK_S):
                await self._subscription.subscribe(channel)
            self._cells[card.fingerprint] = cell
        served = self._models[card.model] = ServedModel(card.model, card, cell)
        self.on_model(served)
        log.info("model %s fingerprint=%s", card.model, card.fingerprint)

    def _deliver(self, channel: bytes, data: bytes) -> None:
        cell = self._channels.get(channel)
        if cell is None:
            return
        try:
            cell.mending.receive(decode(Frame, data))
        except (Malformed, NewerVersion) as error:
            log.warning("a frame cannot be read: %s", error)

    def _restored(self) -> None:
        for cell in self._cells.values():
            cell.mending.restored()
