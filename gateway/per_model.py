"""Things made from a model's card, once for each fingerprint and off the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Generic, TypeVar

from common.messages import Card

N_KEPT = 4

T = TypeVar("T")


class PerModel(Generic[T]):
    """Keeps what was made for the last few models."""

    def __init__(self, make: Callable[[Card], T], threads: Executor) -> None:
        self._make = make
        self._threads = threads
        self._made: dict[str, asyncio.Future[T]] = {}

    def prepare(self, card: Card) -> asyncio.Future[T]:
        """Starts to make it, once."""
        making = self._made.get(card.fingerprint)
        if making is None:
            making = asyncio.get_running_loop().run_in_executor(self._threads, self._make, card)
            self._made[card.fingerprint] = making
            while len(self._made) > N_KEPT:
                del self._made[next(iter(self._made))]
        return making

    async def of(self, card: Card) -> T:
        """The thing of a card; a request that leaves meanwhile does not stop its making."""
        making = self.prepare(card)
        return making.result() if making.done() else await asyncio.shield(making)
