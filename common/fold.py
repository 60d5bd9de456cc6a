"""Folding events by position: the one rule behind streaming, repair, takeover and late reading (design §3.7). Pure."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto

from common.messages import Event, Flag


class Verdict(Enum):
    """What an offered event turned out to be."""

    NEXT = auto()  # shown now
    DUPLICATE = auto()  # shown before, the same token
    STALE = auto()  # written under an epoch that is over
    HOLE = auto()  # something before it is missing
    DIVERGED = auto()  # another token than the one shown


class Fold:
    """The events of one request as a reader has shown them, in order of position."""

    def __init__(self, shown: Iterable[Event] = (), epoch: int = 0) -> None:
        self.shown = list(shown)
        self.epoch = epoch

    def offer(self, event: Event) -> Verdict:
        """Judges one event; keeps it when it is the next one. An error counts as next wherever it stands."""
        if event.epoch < self.epoch:
            return Verdict.STALE
        n = len(self.shown)
        if event.pos > n:
            return Verdict.HOLE
        self.epoch = event.epoch
        if event.pos < n and not event.flags & Flag.ERROR:
            return Verdict.DUPLICATE if self.shown[event.pos].token == event.token else Verdict.DIVERGED
        self.shown.append(event)
        return Verdict.NEXT

    @property
    def ended(self) -> bool:
        return bool(self.shown) and bool(self.shown[-1].flags & (Flag.FINISH | Flag.ERROR))


def history(rid: bytes, entries: Iterable[Iterable[Event]]) -> list[Event]:
    """A request's events as one journal has them; a row that starts again under a higher epoch replaces the older one."""
    fold = Fold()
    for events in entries:
        for event in events:
            if event.rid != rid:
                continue
            if event.epoch > fold.epoch and event.pos == 0:
                fold = Fold(epoch=event.epoch)
            fold.offer(event)
    return fold.shown


def snapshot(events: Iterable[Event], epoch: int) -> list[Event]:
    """Earlier events again, unchanged but for the epoch they are now vouched for."""
    return [event._replace(epoch=epoch, flags=event.flags | Flag.SNAPSHOT) for event in events]
