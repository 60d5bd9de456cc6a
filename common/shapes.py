"""Static shapes: what a worker compiled and which bucket a group of prompts takes. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Bucket(NamedTuple):
    """One prefill shape."""

    rows: int
    length: int


class Shape(NamedTuple):
    """`max_length` is what a request may use (prompt + output, tokens); `buckets` are warmed prefill pairs.

    `max_input`: most tokens of a prompt; 0: all but one of `max_length`.
    """

    batch_size: int
    max_length: int
    buckets: tuple[Bucket, ...]
    min_prefill: int = 1
    max_input: int = 0

    @property
    def longest_input(self) -> int:
        return self.max_input or self.max_length - 1

    @property
    def max_rows(self) -> int:
        return max(bucket.rows for bucket in self.buckets)

    @property
    def max_bucket(self) -> int:
        return max(bucket.length for bucket in self.buckets)


def prefill_length(n_tokens: int, shape: Shape) -> int:
    """How many of a row's tokens go through prefill; the others are replayed through decode (design §6)."""
    if n_tokens < shape.min_prefill:
        return 0
    return min(n_tokens, shape.max_bucket)


def smallest_bucket(lengths: Sequence[int], shape: Shape) -> Bucket | None:
    """The smallest warmed pair that holds rows of these lengths, by area; None when no pair does."""
    fitting = [b for b in shape.buckets if b.rows >= len(lengths) and b.length >= max(lengths)]
    return min(fitting, key=lambda b: (b.rows * b.length, b.length), default=None)


def doubling(smallest: int, largest: int) -> tuple[int, ...]:
    """`smallest`, twice that, … and exactly `largest` at the end."""
    lengths: list[int] = []
    length = smallest
    while length < largest:
        lengths.append(length)
        length *= 2
    return (*lengths, largest)


def lane_for(n_input: int, n_max_new: int | None, lengths: Sequence[int], reserve: int = 1024) -> int | None:
    """The smallest lane that fits a request; None when none does.

    An unset `n_max_new` takes the smallest lane with room for `reserve` tokens, or the largest lane.
    """
    ordered = sorted(lengths)
    if not ordered:
        return None
    if n_max_new is None:
        fitting = [length for length in ordered if length >= n_input + reserve]
        return fitting[0] if fitting else (ordered[-1] if ordered[-1] > n_input else None)
    return next((length for length in ordered if length >= n_input + n_max_new), None)
