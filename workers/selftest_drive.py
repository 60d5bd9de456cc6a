"""Greedy rounds over an engine for its self-test: the same prompt in every slot, started one after the other."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import TypeVar

import numpy as np

from common.shapes import smallest_bucket
from workers.engines.base import DecodeRow, Engine, PrefillRow, Step
from workers.selftest_reference import Text, good, good_elsewhere

T = TypeVar("T")

N_NEW = 16
N_PROMPTS = 4
LONGEST_PROMPT = 64


class Drive:
    """Runs prompts through an engine and keeps the time. `busy_s` is that of device calls."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._equal_slots = getattr(engine, "equal_slots", True)
        self.n_tokens = 0
        self.busy_s = 0.0
        self.prefill_ms = 0.0
        self.decode_ms = 0.0

    def every_length(self) -> None:
        """One prefill at both ends of each bucket, in the last slot."""
        slot, least = self._engine.shape.batch_size - 1, max(1, self._engine.shape.min_prefill)
        for bucket in self._engine.shape.buckets:
            for n_tokens in sorted({least, bucket.length}):
                self._prefill(slot, self.prompt(random.Random(n_tokens), n_tokens))
                self._engine.release(slot)

    def prompt(self, rng: random.Random, n_tokens: int) -> list[int]:
        return [rng.randrange(self._engine.vocab_size) for _ in range(n_tokens)]

    def length(self, rng: random.Random) -> int:
        """A prompt's length that leaves room for `N_NEW` tokens."""
        shape = self._engine.shape
        longest = min(LONGEST_PROMPT, shape.max_bucket, shape.max_length - N_NEW)
        return rng.randrange(max(1, shape.min_prefill), longest + 1)

    def round(self, number: int) -> list[str]:
        """What was wrong in one round: slot i starts i steps after slot 0."""
        rng = random.Random(number)
        prompt = self.prompt(rng, self.length(rng))
        texts = self.staggered(prompt)
        if any(token < 0 for text in texts for token in text):
            return [f"round {number}: an output is not a number"]
        if not self._equal_slots:
            return []
        odd = [slot for slot, text in enumerate(texts) if text != texts[0]]
        return [f"round {number}: slots {odd} differ from slot 0 for a prompt of {len(prompt)} tokens"] if odd else []

    def staggered(self, prompt: list[int]) -> list[list[int]]:
        """`N_NEW` greedy tokens of this prompt in each slot."""
        n_slots = self._engine.shape.batch_size
        texts: list[list[int]] = [[] for _ in range(n_slots)]
        for step in range(n_slots + N_NEW):
            if step < n_slots:
                texts[step].append(self._prefill(step, prompt))
            running = [slot for slot in range(n_slots) if 0 < len(texts[slot]) < N_NEW]
            if running:
                self._decode(texts, running, len(prompt))
        for slot in range(n_slots):
            self._engine.release(slot)
        return texts

    def _prefill(self, slot: int, prompt: list[int]) -> int:
        bucket = smallest_bucket([len(prompt)], self._engine.shape)
        assert bucket is not None
        step, self.prefill_ms = self._timed(lambda: self._engine.prefill(bucket, [PrefillRow(slot, prompt)]))
        return _token(step, 0)

    def _decode(self, texts: list[list[int]], running: list[int], n_prompt: int) -> None:
        rows = [DecodeRow(slot, max(0, texts[slot][-1]), n_prompt + len(texts[slot]) - 1) for slot in running]
        step, self.decode_ms = self._timed(lambda: self._engine.decode(rows))
        for index, slot in enumerate(running):
            texts[slot].append(_token(step, index))
        self.n_tokens += len(running)

    def _timed(self, work: Callable[[], T]) -> tuple[T, float]:
        started_s = monotonic()
        result = work()
        seconds = monotonic() - started_s
        self.busy_s += seconds
        return result, round(seconds * 1000, 3)


def reference_agreement(drive: Drive, engine: Engine, folder: Path) -> float | None:
    """Share of greedy tokens that a stock model on the CPU would take too, given the same text before; None without plain weights."""
    if not any(folder.glob("*.safetensors")):
        return None
    rng = random.Random(0)
    texts: list[Text] = []
    for _ in range(N_PROMPTS):
        prompt = drive.prompt(rng, drive.length(rng))
        texts += [Text(prompt, tokens) for tokens in sorted(set(map(tuple, drive.staggered(prompt))))]
    agreed = good_elsewhere(folder, texts) if getattr(engine, "replaces_transformers", False) else good(folder, texts)
    return sum(agreed) / len(agreed)


def graph_agreement(drive: Drive, engine: Engine) -> bool | None:
    """Whether steps through device graphs give the tokens of steps without; None for an engine that has none."""
    without_graphs = getattr(engine, "without_graphs", None)
    if without_graphs is None:
        return None
    rng = random.Random(1)
    prompt = drive.prompt(rng, drive.length(rng))
    captured = drive.staggered(prompt)
    with without_graphs():
        bypassed = drive.staggered(prompt)
    engine.ledger.take_unwarmed()  # what runs without graphs may be compiled now
    return captured == bypassed


def _token(step: Step, row: int) -> int:
    """The greedy token, -1 for a row that is not a number."""
    if step.tokens is not None:
        return step.tokens[row]
    logits = np.asarray(step.logits[row])
    return int(logits.argmax()) if np.isfinite(logits.max()) else -1
