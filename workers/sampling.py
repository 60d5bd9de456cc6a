"""From one step's logits to one token per row: TGI's order of operations, stateless noise (design §7, TGI reference §3).

A row's result depends on its logits, parameters, seed and position only: never on its neighbours, its slot or the batch.
NumPy, not torch: on one row in cache its passes cost the same on one thread and leave the other cores to the engine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from common.messages import Params
from workers.engines.base import DecodeRow, PrefillRow, Step
from workers.race import Floats, Ids, Race
from workers.warping import Mask, largest, nucleus, typical

TINIEST, GREATEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)

MANY = 4096


class Picked(NamedTuple):
    """`logprob` and `top` ((token, logprob), descending) are of the distribution drawn from, float32.

    `bad`: NaN or Inf made the row unusable; `token` is −1.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    bad: bool = False


BAD = Picked(-1, 0.0, bad=True)


def penalises(params: Params) -> bool:
    """Whether rows with these parameters need a `Context` and full logits."""
    return params.repetition_penalty != 1.0 or params.frequency_penalty != 0.0 or params.presence_penalty != 0.0


class Context:
    """The tokens of one request so far, prompt and output, counted for penalties."""

    def __init__(self, prompt_ids: Sequence[int], generated: Sequence[int] = ()) -> None:
        ids, counts = np.unique(np.asarray(prompt_ids, np.int64), return_counts=True)
        self._ids: Ids = ids
        self._counts = counts.astype(np.float64)
        self._generated = np.zeros(len(ids))
        self._index = {int(token): index for index, token in enumerate(ids)}
        self._n_tokens = len(prompt_ids)
        for token in generated:
            self.append(token)

    def append(self, token: int) -> None:
        index = self._index.setdefault(token, len(self._index))
        if index == len(self._ids):
            self._ids = np.concatenate([self._ids, np.empty_like(self._ids, shape=index + 64)])
            self._counts = np.concatenate([self._counts, np.zeros(index + 64)])
            self._generated = np.concatenate([self._generated, np.zeros(index + 64)])
        self._ids[index] = token
        self._counts[index] += 1
        self._generated[index] = 1
        self._n_tokens += 1

    def penalise(self, logits: Floats, params: Params) -> None:
        """Applies TGI's repetition and frequency penalties in place; the latter is divided by the length and counts the prompt.

        The presence penalty is OpenAI's: of generated tokens only.
        """
        n = len(self._index)
        ids = self._ids[:n]
        values = logits[ids].astype(np.float64)
        penalty = params.repetition_penalty
        penalised = np.where(values < 0, values * penalty, values / penalty)
        penalised -= params.frequency_penalty * self._counts[:n] / max(1, self._n_tokens)
        penalised -= params.presence_penalty * self._generated[:n]
        logits[ids] = np.where(np.isneginf(values), values, np.clip(penalised, -GREATEST, GREATEST))


class Sampler:
    """Picks tokens for the rows of a step; owns its buffers, so one thread at a time."""

    def __init__(self, vocab_size: int) -> None:
        self._race = Race(vocab_size)
        self._logits = np.empty(vocab_size, np.float32)
        self._masses = np.empty(vocab_size, np.float32)

    def pick(self, step: Step, rows: Sequence[PrefillRow | DecodeRow], contexts: Sequence[Context | None]) -> list[Picked]:
        """One `Picked` per row of `step`, in its order. Rows that penalise need their context and full logits.

        With candidates, tokens outside count only where their mass is known: in probabilities at temperature 1.
        """
        if step.tokens is not None:
            return [Picked(token, 0.0) if token >= 0 else BAD for token in step.tokens]
        if step.candidates is not None:
            candidates = zip(*map(np.asarray, step.candidates), rows, strict=True)
            return [self._pick_candidate(ids, logits, float(total), row) for ids, logits, total, row in candidates]
        return [self._pick(*each) for each in zip(np.asarray(step.logits), rows, contexts, strict=True)]

    def _pick(self, logits: Floats, row: PrefillRow | DecodeRow, context: Context | None) -> Picked:
        best = int(logits.argmax())
        if not math.isfinite(logits[best]):
            return BAD
        warped = self._logits
        if row.params.logit_bias or penalises(row.params):
            np.copyto(warped, logits)
            _bias(warped, row.params)
            if penalises(row.params):
                assert context is not None, "penalties need a context"
                context.penalise(warped, row.params)
            best = int(warped.argmax())
            logits = warped
        np.subtract(logits, logits[best], out=warped)
        _cool(warped, row.params.temperature)
        return self._finish(None, warped, best, None, row)

    def _pick_candidate(self, ids: Ids, logits: Floats, logsumexp: float, row: PrefillRow | DecodeRow) -> Picked:
        assert not (row.params.logit_bias or penalises(row.params)), "penalties and biases need full logits"
        order = np.argsort(ids, kind="stable")
        ids, logits = ids[order].astype(np.int64), logits[order].astype(np.float32)
        best = int(logits.argmax())
        if not (math.isfinite(logits[best]) and math.isfinite(logsumexp)):
            return BAD
        total = math.exp(logsumexp - float(logits[best])) if row.params.temperature == 1.0 else None
        warped = logits - logits[best]
        _cool(warped, row.params.temperature)
        return self._finish(ids, warped, best, total, row)

    def _finish(self, ids: Ids | None, logits: Floats, best: int, known_total: float | None, row: PrefillRow | DecodeRow) -> Picked:
        """`logits`: 0 at `best`, lower elsewhere, of the tokens `ids` (None: all); `known_total`: mass with tokens not at hand."""
        params = row.params
        if 0 < params.top_k < len(logits):
            at_most = largest(logits, params.top_k)
            ids, logits, known_total = _tokens(ids, at_most), logits[at_most], None
        masses = np.exp(logits, out=self._masses[: len(logits)])
        in_place = params.top_n_tokens == 0
        if params.top_p < 1.0:
            kept = nucleus(logits, masses, params.top_p, known_total)
            ids, logits, masses, known_total = *_keep(ids, logits, masses, kept, in_place), None
        if params.min_p > 0:
            kept = logits >= np.float32(math.log(params.min_p))
            ids, logits, masses, known_total = *_keep(ids, logits, masses, kept, in_place), None
        if params.typical_p < 1.0:
            kept = typical(logits, masses, params.typical_p)
            ids, logits, masses, known_total = *_keep(ids, logits, masses, kept, in_place), None
        log_total = np.float32(math.log(known_total or float(masses.sum())))
        at = self._race.winner(ids, logits, masses, row.seed, row.pos) if params.samples else best
        top = _top(ids, logits, log_total, params.top_n_tokens)
        return Picked(_token(ids, at), float(logits[at] - log_total), top)


def _bias(logits: Floats, params: Params) -> None:
    """Adds the biases in place; those of tokens that do not exist or are masked change nothing."""
    for token, value in params.logit_bias:
        if token < len(logits) and math.isfinite(logits[token]):
            logits[token] = np.clip(logits[token] + np.float32(value), -GREATEST, GREATEST)


def _cool(logits: Floats, temperature: float) -> None:
    """Divides in place. The largest is 0 already, so no temperature above 0 can overflow it."""
    if temperature != 1.0:
        with np.errstate(over="ignore"):
            logits /= np.float32(min(max(temperature, TINIEST), GREATEST))


def _keep(ids: Ids | None, logits: Floats, masses: Floats, kept: Mask, in_place: bool) -> tuple[Ids | None, Floats, Floats]:
    """The same three for the tokens where `kept`. When these are many, others stay if they may, without mass: copies cost more."""
    if in_place and ids is None and np.count_nonzero(kept) > MANY:
        masses *= kept
        return ids, logits, masses
    at = np.flatnonzero(kept)
    return _tokens(ids, at), logits[at], masses[at]


def _tokens(ids: Ids | None, at: Ids) -> Ids:
    return at if ids is None else ids[at]


def _token(ids: Ids | None, at: int) -> int:
    return at if ids is None else int(ids[at])


def _top(ids: Ids | None, logits: Floats, log_total: np.float32, n: int) -> tuple[tuple[int, float], ...]:
    """The n most likely tokens, descending, and all that tie with the n-th; filtered ones never."""
    if not n:
        return ()
    kept = largest(logits, n)
    kept = kept[np.argsort(-logits[kept], kind="stable")]
    return tuple((_token(ids, int(at)), float(logits[at] - log_total)) for at in kept)
