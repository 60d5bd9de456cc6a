from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from common.shapes import Bucket, Shape
from workers.scheduler import Decode, Demand, Fresh, Idle, Knobs, Prefill, PrefillShare, demand, next_call

SHAPE = Shape(8, 256, tuple(Bucket(rows, length) for length in (16, 64, 256) for rows in (1, 4)))
KNOBS = Knobs()


def test_idle_takes_all_it_can_prefill_at_once() -> None:
    assert demand(8, 0, 0, 0, 0.0, SHAPE, KNOBS) == Demand(0, 4)
    assert demand(2, 0, 0, 0, 0.0, SHAPE, KNOBS) == Demand(0, 2)


def test_beside_running_rows_a_group_must_be_worth_the_pause() -> None:
    assert demand(1, 7, 0, 3, 0.0, SHAPE, KNOBS) == Demand(2, 0)
    assert demand(4, 4, 0, 3, 0.0, SHAPE, KNOBS) == Demand(1, 4)
    assert demand(1, 7, 0, KNOBS.max_waiting_tokens, 0.0, SHAPE, KNOBS) == Demand(0, 1)
    assert demand(1, 7, 0, 0, 0.0, SHAPE, KNOBS._replace(waiting_served_ratio=0)) == Demand(0, 1)


def test_a_full_prefill_is_worth_the_pause_whatever_runs() -> None:
    one_row = Shape(32, 256, (Bucket(1, 256),))
    assert demand(8, 24, 0, 3, 0.0, one_row, KNOBS) == Demand(1, 1)
    assert demand(8, 24, 0, 3, 0.0, SHAPE, KNOBS) == Demand(4, 4)


def test_nothing_is_pulled_ahead_of_its_prefill() -> None:
    assert demand(4, 4, 1, 99, 0.0, SHAPE, KNOBS).maximum == 0
    assert demand(4, 4, 0, 99, 0.5, SHAPE, KNOBS).maximum == 0
    assert demand(4, 0, 0, 99, 0.5, SHAPE, KNOBS).maximum == 4


def test_the_head_fixes_the_length_and_others_join_while_padding_is_small() -> None:
    rows = [Fresh(0, 60), Fresh(1, 10), Fresh(2, 50), Fresh(3, 200), Fresh(4, 64)]
    assert next_call(rows, 0, 0.0, SHAPE, KNOBS) == Prefill(Bucket(4, 64), (0, 2, 4))
    assert next_call(rows[:1], 0, 0.0, SHAPE, KNOBS) == Prefill(Bucket(1, 64), (0,))


def test_rows_that_would_take_the_same_length_alone_share_a_prefill() -> None:
    """Rows of 20 take 64 columns either way: padding is no reason to compute them one after the other."""
    rows = [Fresh(0, 20), Fresh(1, 17), Fresh(2, 64)]
    assert next_call(rows, 0, 0.0, SHAPE, KNOBS) == Prefill(Bucket(4, 64), (0, 1, 2))


def test_a_suspect_takes_nobody_into_its_prefill() -> None:
    rows = [Fresh(0, 60), Fresh(1, 60, alone=True), Fresh(2, 60)]
    assert next_call(rows, 0, 0.0, SHAPE, KNOBS) == Prefill(Bucket(4, 64), (0, 2))
    assert next_call(rows[1:], 0, 0.0, SHAPE, KNOBS) == Prefill(Bucket(1, 64), (1,))


def test_running_rows_are_not_starved_by_prefill() -> None:
    assert next_call([Fresh(0, 10)], 3, 0.41, SHAPE, KNOBS) == Decode()
    assert next_call([Fresh(0, 10)], 0, 0.41, SHAPE, KNOBS) == Prefill(Bucket(1, 16), (0,))
    assert next_call([], 0, 0.0, SHAPE, KNOBS) == Idle()


def test_the_share_follows_where_time_goes() -> None:
    share = PrefillShare(window_s=2.0)
    for _ in range(100):
        share.spend(0.1, prefill=True)
    assert share.value > 0.99
    for _ in range(100):
        share.spend(0.1, prefill=False)
    assert share.value < 0.01


@given(st.lists(st.integers(1, 256), min_size=1, max_size=8), st.integers(0, 8))
def test_every_plan_is_a_warmed_shape_that_holds_its_rows(lengths: list[int], active: int) -> None:
    rows = [Fresh(slot, length) for slot, length in enumerate(lengths)]
    plan = next_call(rows, active, 0.0, SHAPE, KNOBS)
    assert isinstance(plan, Prefill)
    assert plan.bucket in SHAPE.buckets
    assert plan.slots[0] == 0
    assert len(plan.slots) <= plan.bucket.rows
    assert all(lengths[slot] <= plan.bucket.length for slot in plan.slots)
