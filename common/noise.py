"""Stateless noise: what a token draws depends on seed, position and token id alone (design §7).

SplitMix64 (Steele, Lea and Flood 2014, with Stafford's mix 13): no state, so nothing to migrate to another worker.
"""

from __future__ import annotations

MASK64 = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15
MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
SHIFTS = (30, 27, 31)
COARSE_BITS, FINE_BITS = 16, 32
DRAW_BITS = COARSE_BITS + FINE_BITS
"""Four tokens share a word for their upper bits, enough to rule nearly all of them out; few need their lower bits."""


def mix64(x: int) -> int:
    """A bijection of 64-bit integers in which every input bit moves half of the output bits."""
    x = ((x ^ (x >> SHIFTS[0])) * MULTIPLIERS[0]) & MASK64
    x = ((x ^ (x >> SHIFTS[1])) * MULTIPLIERS[1]) & MASK64
    return x ^ (x >> SHIFTS[2])


def stream(seed: int, pos: int) -> int:
    """Where the SplitMix64 stream of generated position `pos` under the 64-bit `seed` starts."""
    return mix64((mix64(seed) + (pos + 1) * GAMMA) & MASK64)


def draw(seed: int, pos: int, i: int) -> int:
    """Token `i`'s draw, uniform in 0 … 2^48 − 1: a quarter of word i ÷ 4 of one stream, then the upper half of word i of another."""
    start = stream(seed, pos)
    coarse = word(start, i // 4) >> (COARSE_BITS * (i % 4)) & ((1 << COARSE_BITS) - 1)
    return coarse << FINE_BITS | word(mix64(start), i) >> (64 - FINE_BITS)


def word(start: int, n: int) -> int:
    """Word `n` of a SplitMix64 stream."""
    return mix64((start + (n + 1) * GAMMA) & MASK64)
