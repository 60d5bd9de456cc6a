"""Stateless noise: what a token draws depends on seed, position and token id alone (design §7).

SplitMix64 (Steele, Lea and Flood 2014, with Stafford's mix 13): no state, so nothing to migrate to another worker.
"""

from __future__ import annotations

MASK64 = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15
MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
SHIFTS = (30, 27, 31)
DRAW_BITS = 31
"""Bits of one draw: an int32 that is never negative, so wide arrays of draws turn into float32 in one pass."""


def mix64(x: int) -> int:
    """A bijection of 64-bit integers in which every input bit moves half of the output bits."""
    x = ((x ^ (x >> SHIFTS[0])) * MULTIPLIERS[0]) & MASK64
    x = ((x ^ (x >> SHIFTS[1])) * MULTIPLIERS[1]) & MASK64
    return x ^ (x >> SHIFTS[2])


def stream(seed: int, pos: int) -> int:
    """Where the SplitMix64 stream of generated position `pos` under the 64-bit `seed` starts."""
    return mix64((mix64(seed) + (pos + 1) * GAMMA) & MASK64)


def draw(seed: int, pos: int, i: int) -> int:
    """Token `i`'s draw, uniform in 0 … 2^31 − 1: the low half of word i ÷ 2 for even ids, the high half for odd ones."""
    word = mix64((stream(seed, pos) + (i // 2 + 1) * GAMMA) & MASK64)
    return (word >> (32 * (i % 2))) & ((1 << DRAW_BITS) - 1)
