"""The exponential race: the winner is argmax p / −log(1 − w), with `common.noise` as w (design §7).

−log(1 − w) is exponential, so token i wins with probability p_i. Everything is decided on single tokens: the winner stays
the same when losers are left out, whatever order, batch or slot they were in.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from common.noise import DRAW_BITS, GAMMA, MULTIPLIERS, SHIFTS, stream

Floats = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

ROUNDING = 1e-5
"""More than the relative error of a float32 ratio, so the exact winner is always looked at."""

_DRAW = (1 << DRAW_BITS) - 1
_DRAWS = np.uint64(_DRAW << 32 | _DRAW)


class Race:
    """Races over one vocabulary; owns its buffers, so one thread at a time."""

    def __init__(self, vocab_size: int) -> None:
        n_words = (vocab_size + 1) // 2
        self._vocab_size = vocab_size
        self._offsets = np.arange(1, n_words + 1, dtype=np.uint64) * np.uint64(GAMMA)
        self._words = np.empty(n_words, np.uint64)
        self._spare = np.empty(n_words, np.uint64)
        self._ratios = np.empty(vocab_size, np.float32)

    def draws(self, seed: int, pos: int) -> npt.NDArray[np.int32]:
        """`common.noise.draw` of every token, int32 `[vocab]`; valid until the next call."""
        np.add(self._offsets, np.uint64(stream(seed, pos)), out=self._words)
        _mix64(self._words, self._spare)
        return self._words.view(np.int32)[: self._vocab_size]

    def draws_of(self, ids: Ids, seed: int, pos: int) -> npt.NDArray[np.int32]:
        """The same for the tokens `ids` only, int32 `[n]`."""
        words = self._offsets[ids >> 1] + np.uint64(stream(seed, pos))
        _mix64(words, np.empty_like(words))
        halves: npt.NDArray[np.int32] = words.view(np.int32)[2 * np.arange(len(ids)) + (ids & 1)]
        return halves

    def winner(self, logits: Floats, masses: Floats, seed: int, pos: int) -> int:
        """The winning token of the whole vocabulary; `masses` is exp(logits), times any constant."""
        ratios = self._ratios
        np.copyto(ratios, self.draws(seed, pos), casting="same_kind")
        ratios += np.float32(0.5)
        np.divide(masses, ratios, out=ratios)
        # −log(1 − w) ≥ w: p / w bounds the race from above, so few tokens need a logarithm.
        leader = int(ratios.argmax())
        w = _uniform(self.draws_of(np.array([leader]), seed, pos))
        bound = ratios[leader] * float((w / -np.log1p(-w))[0]) * (1 - ROUNDING)
        ids = np.flatnonzero(ratios >= np.float32(bound))
        return int(ids[self.winner_of(ids, logits[ids], seed, pos)])

    def winner_of(self, ids: Ids, logits: Floats, seed: int, pos: int) -> int:
        """The winner's index in `ids`; the lowest of equals."""
        w = _uniform(self.draws_of(ids, seed, pos))
        return int((logits.astype(np.float64) - np.log(-np.log1p(-w))).argmax())


def _uniform(draws: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
    return (draws.astype(np.float64) + 0.5) / (1 << DRAW_BITS)


def _mix64(words: Words, spare: Words) -> None:
    """`common.noise.mix64` of every word in place, then both halves cut to draws."""
    for shift, multiplier in zip(SHIFTS[:2], MULTIPLIERS, strict=True):
        np.right_shift(words, np.uint64(shift), out=spare)
        words ^= spare
        words *= np.uint64(multiplier)
    np.right_shift(words, np.uint64(SHIFTS[2]), out=spare)
    words ^= spare
    words &= _DRAWS
