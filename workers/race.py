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
Draws = npt.NDArray[np.int32]

ROUNDING = 1e-5
"""More than the relative error of a float32 ratio, so the exact winner is always looked at."""

FEW = 512
CHUNK_WORDS = 8192

_DRAW = (1 << DRAW_BITS) - 1
_DRAWS = np.uint64(_DRAW << 32 | _DRAW)


class Race:
    """Races over one vocabulary; owns its buffers, so one thread at a time."""

    def __init__(self, vocab_size: int) -> None:
        n_words = (vocab_size + 1) // 2
        self._vocab_size = vocab_size
        self._offsets = np.arange(1, n_words + 1, dtype=np.uint64) * np.uint64(GAMMA)
        self._words = np.empty(n_words, np.uint64)
        self._spare = np.empty(CHUNK_WORDS, np.uint64)

    def draws(self, seed: int, pos: int) -> Draws:
        """`common.noise.draw` of every token, int32 `[vocab]`; valid until the next call."""
        start = np.uint64(stream(seed, pos))
        for at in range(0, len(self._words), CHUNK_WORDS):  # what is mixed nine times over should stay in cache
            words = self._words[at : at + CHUNK_WORDS]
            np.add(self._offsets[at : at + CHUNK_WORDS], start, out=words)
            _mix64(words, self._spare[: len(words)])
        return self._words.view(np.int32)[: self._vocab_size]

    def draws_of(self, ids: Ids, seed: int, pos: int) -> Draws:
        """The same for the tokens `ids` only, int32 `[n]`."""
        if len(ids) > self._vocab_size // 8:
            return self.draws(seed, pos).take(ids)
        words = self._offsets[ids >> 1] + np.uint64(stream(seed, pos))
        _mix64(words, np.empty_like(words))
        halves: Draws = words.view(np.int32)[2 * np.arange(len(ids)) + (ids & 1)]
        return halves

    def winner(self, ids: Ids | None, logits: Floats, masses: Floats, seed: int, pos: int) -> int:
        """The index of the winner among the tokens `ids` (None: all); `masses` is exp(logits), times any constant."""
        draws = self.draws(seed, pos) if ids is None else self.draws_of(ids, seed, pos)
        if len(draws) <= FEW:
            return int(_finish_times(logits, draws).argmin())
        ratios = draws.astype(np.float32)
        ratios += np.float32(0.5)
        np.divide(masses, ratios, out=ratios)
        # −log(1 − w) ≥ w: mass / w bounds each token's chance from above, so few need a logarithm.
        leader = int(ratios.argmax())
        w = _uniform(draws[leader : leader + 1])
        bound = float(ratios[leader]) * float((w / -np.log1p(-w))[0]) * (1 - ROUNDING)
        near = np.flatnonzero(ratios >= np.float32(bound))
        return int(near[_finish_times(logits[near], draws[near]).argmin()])


def _finish_times(logits: Floats, draws: Draws) -> npt.NDArray[np.float64]:
    """Logarithms of when each token finishes; the first wins, and of equals the lowest index."""
    times: npt.NDArray[np.float64] = np.log(-np.log1p(-_uniform(draws))) - logits
    return times


def _uniform(draws: Draws) -> npt.NDArray[np.float64]:
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
