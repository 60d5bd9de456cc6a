from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from common.fold import Fold, Verdict, history, snapshot
from common.messages import Event, Flag

RID = b"r" * 16


def event(pos: int, token: int = 0, epoch: int = 1, flags: int = 0) -> Event:
    return Event(RID, epoch, pos, token or pos + 100, -0.5, f" {pos}", flags)


def test_verdicts() -> None:
    fold = Fold()
    assert fold.offer(event(0)) is Verdict.NEXT
    assert fold.offer(event(2)) is Verdict.HOLE
    assert fold.offer(event(1)) is Verdict.NEXT
    assert fold.offer(event(1)) is Verdict.DUPLICATE
    assert fold.offer(event(1, token=7)) is Verdict.DIVERGED
    assert fold.offer(event(2, epoch=2)) is Verdict.NEXT
    assert fold.offer(event(3, epoch=1)) is Verdict.STALE
    assert [shown.pos for shown in fold.shown] == [0, 1, 2]


def test_an_error_ends_a_request_wherever_it_stands() -> None:
    fold = Fold([event(0), event(1)])
    assert fold.offer(event(0, token=-1, flags=Flag.ERROR)) is Verdict.NEXT
    assert fold.ended


@given(st.lists(st.integers(0, 9), max_size=40), st.randoms(use_true_random=False))
def test_any_order_and_repetition_shows_each_position_once(repeats: list[int], random_: random.Random) -> None:
    """What a lossy channel delivers, followed by one read of the journal, shows exactly the journal."""
    fold = Fold()
    delivered = [event(pos) for pos in repeats]
    random_.shuffle(delivered)
    for one in [*delivered, *(event(pos) for pos in range(10))]:
        fold.offer(one)
    assert [(shown.pos, shown.token) for shown in fold.shown] == [(pos, pos + 100) for pos in range(10)]


def test_history_follows_the_row_that_started_again() -> None:
    first = [event(0, 7), event(1, 8)]
    again = snapshot([event(0, 9)], epoch=5)
    entries = [first, again, [event(1, 10, epoch=5)]]
    assert [shown.token for shown in history(RID, entries)] == [9, 10]
    assert history(b"other" + b"0" * 11, entries) == []


def test_a_snapshot_changes_nothing_but_epoch_and_flag() -> None:
    (again,) = snapshot([event(0, flags=Flag.FIRST)], epoch=9)
    assert again == event(0, epoch=9, flags=Flag.FIRST | Flag.SNAPSHOT)
