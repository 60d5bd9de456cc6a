"""The exponential race: the winner is argmax p / −log(1 − w), with `common.noise` as w (design §7).

−log(1 − w) is exponential, so token i wins with probability p_i. Everything is decided on single tokens: the winner stays
the same when losers are left out, whatever order, batch or slot they were in.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from common.noise import COARSE_BITS, DRAW_BITS, FINE_BITS, GAMMA, MULTIPLIERS, SHIFTS, mix64, stream

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

ROUNDING = 1e-5
"""More than the relative error of a float32 ratio, so the exact winner is always looked at."""

FEW = 512
CHUNK_WORDS = 8192


class Race:
    """Races over one vocabulary; owns its buffers, so one thread at a time."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._offsets = _offsets(np.arange((vocab_size + 3) // 4))
        self._words = np.empty_like(self._offsets)
        self._spare = np.empty(CHUNK_WORDS, np.uint64)
        self._ratios = np.empty(vocab_size, np.float32)

    def winner(self, ids: Ids | None, logits: Floats, masses: Floats, seed: int, pos: int) -> int:
        """The index of the winner among the tokens `ids` (None: all); `masses` is exp(logits), or 0 for tokens already out."""
        near = np.arange(len(masses)) if len(masses) <= FEW else self._near(ids, masses, seed, pos)
        return int(near[_winner(near if ids is None else ids[near], logits[near], seed, pos)])

    def coarse(self, seed: int, pos: int) -> npt.NDArray[np.uint16]:
        """The upper 16 bits of every token's draw, `[vocab]`; valid until the next call."""
        start = np.uint64(stream(seed, pos))
        for at in range(0, len(self._words), CHUNK_WORDS):  # what is mixed eight times over should stay in cache
            words = self._words[at : at + CHUNK_WORDS]
            np.add(self._offsets[at : at + CHUNK_WORDS], start, out=words)
            _mix64(words, self._spare[: len(words)])
        return self._words.view(np.uint16)[: self._vocab_size]

    def _near(self, ids: Ids | None, masses: Floats, seed: int, pos: int) -> Ids:
        """Indices of the few tokens that the upper bits of their draws leave in the race.

        −log(1 − w) ≥ w, and w lies within half a unit of the upper bits: mass ÷ w bounds a token's chance from above.
        """
        coarse = self.coarse(seed, pos) if ids is None else self.coarse(seed, pos)[ids]
        ratios = np.add(coarse, np.float32(0.5), out=self._ratios[: len(masses)])
        np.divide(masses, ratios, out=ratios)
        leader = np.array([ratios.argmax()])
        w = _uniform(leader if ids is None else ids[leader], seed, pos)
        reached = float(masses[leader[0]]) / float(-np.log1p(-w[0])) / (1 << COARSE_BITS)
        near = np.flatnonzero(ratios >= np.float32(reached / 1.5 * (1 - ROUNDING)))
        lowest = np.flatnonzero(coarse == 0)  # for these alone half a unit is more than a half of w
        return np.union1d(near, lowest[masses[lowest] > 0])


def draws(ids: Ids, seed: int, pos: int) -> Words:
    """`common.noise.draw` of the tokens `ids`."""
    start = stream(seed, pos)
    coarse = _offsets(ids >> 2) + np.uint64(start)
    fine = _offsets(ids) + np.uint64(mix64(start))
    for words in (coarse, fine):
        _mix64(words, np.empty_like(words))
    quarters = coarse.view(np.uint16).reshape(-1, 4)[np.arange(len(ids)), ids & 3].astype(np.uint64)
    joined: Words = quarters << np.uint64(FINE_BITS) | fine >> np.uint64(64 - FINE_BITS)
    return joined


def _uniform(ids: Ids, seed: int, pos: int) -> npt.NDArray[np.float64]:
    return (draws(ids, seed, pos).astype(np.float64) + 0.5) / (1 << DRAW_BITS)


def _winner(ids: Ids, logits: Floats, seed: int, pos: int) -> int:
    """The index in `ids` of the first to finish, by logarithms of the times; of equals the lowest."""
    return int((np.log(-np.log1p(-_uniform(ids, seed, pos))) - logits).argmin())


def _offsets(numbers: Ids) -> Words:
    return (numbers + 1).astype(np.uint64) * np.uint64(GAMMA)


def _mix64(words: Words, spare: Words) -> None:
    """`common.noise.mix64` of every word, in place."""
    for shift, multiplier in zip(SHIFTS[:2], MULTIPLIERS, strict=True):
        np.right_shift(words, np.uint64(shift), out=spare)
        words ^= spare
        words *= np.uint64(multiplier)
    np.right_shift(words, np.uint64(SHIFTS[2]), out=spare)
    words ^= spare
