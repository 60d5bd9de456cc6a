"""The exponential race: the winner is argmax p / −log(1 − w), with `common.noise` as w (design §7).

−log(1 − w) is exponential, so token i wins with probability p_i. Everything is decided on single tokens: the winner stays
the same when losers are left out, whatever order, batch or slot they were in.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from common.noise import DRAW_BITS, FINE_BITS, GAMMA, MULTIPLIERS, SHIFTS, mix64, stream

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
        n_words = (vocab_size + 3) // 4
        self._vocab_size = vocab_size
        self._offsets = np.arange(1, n_words + 1, dtype=np.uint64) * np.uint64(GAMMA)
        self._words = np.empty(n_words, np.uint64)
        self._spare = np.empty(CHUNK_WORDS, np.uint64)
        self._ratios = np.empty(vocab_size, np.float32)

    def coarse(self, seed: int, pos: int) -> npt.NDArray[np.uint16]:
        """The upper 16 bits of every token's draw, `[vocab]`; valid until the next call."""
        start = np.uint64(stream(seed, pos))
        for at in range(0, len(self._words), CHUNK_WORDS):  # what is mixed eight times over should stay in cache
            words = self._words[at : at + CHUNK_WORDS]
            np.add(self._offsets[at : at + CHUNK_WORDS], start, out=words)
            _mix64(words, self._spare[: len(words)])
        return self._words.view(np.uint16)[: self._vocab_size]

    def winner(self, ids: Ids | None, logits: Floats, masses: Floats, seed: int, pos: int) -> int:
        """The index of the winner among the tokens `ids` (None: all); `masses` is exp(logits), or 0 for tokens that left."""
        if len(logits) <= FEW:
            return _winner_of(np.arange(len(logits)) if ids is None else ids, logits, seed, pos)
        coarse = self.coarse(seed, pos) if ids is None else self.coarse(seed, pos)[ids]
        ratios = np.add(coarse, np.float32(0.5), out=self._ratios[: len(logits)])
        np.divide(masses, ratios, out=ratios)
        leader = ratios.argmax(keepdims=True)
        near = self._near(coarse, ratios, float(_ratio(leader if ids is None else ids[leader], masses[leader], seed, pos)))
        near = near[masses[near] > 0]
        return int(near[_winner_of(near if ids is None else ids[near], logits[near], seed, pos)])

