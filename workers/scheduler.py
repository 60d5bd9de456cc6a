"""What the device does next and what to pull: numbers in, decision out (design §7). No torch, no I/O, no clock."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from typing import NamedTuple

from common.shapes import Bucket, Shape, smallest_bucket


class Knobs(NamedTuple):
    """TGI's names and meanings (TGI reference §4.3); `max_prefill_share` bounds the stall of running rows."""

    waiting_served_ratio: float = 0.3
    max_waiting_tokens: int = 20
    max_prefill_share: float = 0.4
    waste_max: float = 0.3


class Demand(NamedTuple):
    """How many requests to pull; `maximum` 0: none now."""

    minimum: int
    maximum: int


class Fresh(NamedTuple):
    """A row that waits for its prefill, first come first; `length` tokens go through prefill, `alone` without other rows."""

    slot: int
    length: int
    alone: bool = False


class Prefill(NamedTuple):
    bucket: Bucket
    slots: tuple[int, ...]


class Decode(NamedTuple):
    """Every active row advances by one."""


class Idle(NamedTuple):
    """Nothing to do."""


class PrefillShare:
    """Moving average of prefill time ÷ total time, over about `window_s`."""

    def __init__(self, window_s: float = 2.0) -> None:
        self.value = 0.0
        self._window_s = window_s

    def spend(self, seconds: float, prefill: bool) -> None:
        keep = exp(-seconds / self._window_s)
        self.value = self.value * keep + (1 - keep) * prefill


def demand(free: int, active: int, fresh: int, steps_since_prefill: int, share: float, shape: Shape, knobs: Knobs) -> Demand:
    """What to pull for the next prefill: nothing while rows wait for theirs or while prefill has had its share.

    A group that fills the largest prefill is worth its pause at any number of running rows.
    """
    if fresh or (active and share > knobs.max_prefill_share):
        return Demand(0, 0)
    minimum = 0 if steps_since_prefill >= knobs.max_waiting_tokens else min(int(active * knobs.waiting_served_ratio), shape.max_rows)
    maximum = min(free, shape.max_rows)
    return Demand(minimum, maximum if maximum >= minimum else 0)


def next_call(fresh: Sequence[Fresh], active: int, share: float, shape: Shape, knobs: Knobs) -> Prefill | Decode | Idle:
    """The next device call. Fresh rows come first, within the prefill share; the head fixes the bucket's length."""
    if fresh and not (active and share > knobs.max_prefill_share):
        return _pack(fresh, shape, knobs.waste_max)
    return Decode() if active else Idle()


def _pack(fresh: Sequence[Fresh], shape: Shape, waste_max: float) -> Prefill:
    """Rows join the head unless alone they would take a length so much shorter that joining wastes more than `waste_max`."""
    head = fresh[0]
    group = [head]
    bucket = smallest_bucket([head.length], shape)
    assert bucket is not None, f"no bucket for {head.length} tokens in {shape.buckets}"
    for row in () if head.alone else fresh[1:]:
        lengths = [r.length for r in (*group, row)]
        wider = smallest_bucket(lengths, shape)
        alone = smallest_bucket([row.length], shape)
        if row.alone or wider is None or alone is None or wider.length > bucket.length or alone.length < (1 - waste_max) * bucket.length:
            continue
        group.append(row)
        bucket = wider
    return Prefill(bucket, tuple(row.slot for row in group))
