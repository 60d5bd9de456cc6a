from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import pytest

from common.noise import GAMMA, MASK64, draw, mix64, stream

N_BINS = 16
LIMIT = 60.0
"""Chi-square of 15 degrees of freedom passes this once in 10^7 draws of a fair die."""


def chi_square(counts: Counter[int], n_bins: int) -> float:
    expected = counts.total() / n_bins
    return sum((counts[number] - expected) ** 2 / expected for number in range(n_bins))


def test_mix64_gives_the_published_splitmix64_sequence() -> None:
    first_of_state_0 = [mix64(n * GAMMA & MASK64) for n in (1, 2, 3)]
    assert first_of_state_0 == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_every_input_bit_moves_half_of_the_output_bits() -> None:
    words = [stream(7, n) for n in range(200)]
    for bit in range(64):
        flips = sum((mix64(word) ^ mix64(word ^ 1 << bit)).bit_count() for word in words)
        assert 30 < flips / len(words) < 34


def test_draws_are_frozen() -> None:
    """Another value here is another text under the same seed after an upgrade."""
    assert [draw(42, 0, 0), draw(42, 0, 1), draw(42, 1, 0), draw(2**64 - 1, 10**6, 128_255)] == [
        0x332733D3B322,
        0x6D07CC0AAF5E,
        0xA31D0D42AB9A,
        0x8C49BCEDAACF,
    ]


ALONG: dict[str, Callable[[int], tuple[int, int, int]]] = {
    "seed": lambda n: (n, 0, 0),
    "pos": lambda n: (1, n, 5),
    "token": lambda n: (1, 2, n),
    "every fourth token": lambda n: (1, 2, 4 * n),
}


@pytest.mark.parametrize("along", ALONG)
def test_draws_are_uniform_and_neighbours_independent(along: str) -> None:
    draws = [draw(*ALONG[along](n)) for n in range(8_000)]
    assert all(0 <= value < 2**48 for value in draws)
    high = [value >> 44 for value in draws]
    low = [value & 15 for value in draws]
    middle = [value >> 28 & 15 for value in draws]
    quarters = [value >> 46 for value in draws]
    pairs = [4 * one + other for one, other in pairwise(quarters)]
    for numbers in (high, middle, low, pairs):
        assert chi_square(Counter(numbers), N_BINS) < LIMIT
