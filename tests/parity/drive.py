"""Drives a real `CpuEngine` greedily through a small plan of joining and leaving rows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from common.config import Settings
from common.shapes import smallest_bucket
from tests.parity.tiny import MAX_LENGTH, VOCAB_SIZE
from workers.engines.base import DecodeRow, PrefillRow
from workers.engines.cpu import CpuEngine
from workers.stock_model import load_stock_model

N_SLOTS = 3


@dataclass
class Job:
    """One row: its prompt, the step at which it joins, its slot, and how many tokens it takes."""

    prompt: list[int]
    joins_at: int
    slot: int
    n_new: int
    tokens: list[int] = field(default_factory=list)

    @property
    def done(self) -> bool:
        return len(self.tokens) == self.n_new


def tiny_engine(model: Any, folder: Path, **settings: Any) -> CpuEngine:
    """A warmed engine that read `model` back from `folder`, strict about unwarmed shapes."""
    model.save_pretrained(folder)
    given = {"MAX_BATCH_SIZE": N_SLOTS, "MAX_TOTAL_TOKENS": MAX_LENGTH, **settings}
    engine = CpuEngine(Settings.from_env({key: str(value) for key, value in given.items()}), str(folder), "tiny")
    engine.serve(load_stock_model(folder, torch.float32))
    engine.ledger.strict = True
    engine.warm_up(lambda _what, _done: None)
    return engine


def drive(engine: CpuEngine, jobs: Sequence[Job]) -> None:
    """Runs the jobs to their end as a worker does: prefill when a row joins, one decode of all running rows per step."""
    step = 0
    while not all(job.done for job in jobs):
        for job in jobs:
            if job.joins_at == step:
                _prefill(engine, job)
        running = [job for job in jobs if job.tokens and not job.done]
        if running:
            rows = [DecodeRow(job.slot, job.tokens[-1], len(job.prompt) + len(job.tokens) - 1) for job in running]
            logits = engine.decode(rows).logits
            for job, row in zip(running, logits, strict=True):
                _take(engine, job, row)
        step += 1


def expected(model: Any, job: Job) -> list[int]:
    """What `transformers.generate` gives for this row alone."""
    ids = torch.tensor([job.prompt])
    output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=job.n_new, do_sample=False, use_cache=True)
    return output[0, len(job.prompt) :].tolist()  # type: ignore[no-any-return]


def plan(seed: int = 0) -> list[Job]:
    """Ten rows over three slots: prompts of 1, bucket - 1, bucket, bucket + 1 and the maximum; neighbours none, shorter, longer.

    (length, joins at, slot, new tokens); rows of a slot follow each other, so late joiners find what others left behind.
    """
    rows = [
        (1, 0, 1, 20),
        (31, 6, 0, 12),
        (32, 9, 2, 30),
        (33, 22, 1, 14),
        (7, 23, 0, 6),
        (120, 40, 0, 20),
        (MAX_LENGTH - 1, 44, 1, 1),
        (MAX_LENGTH - 9, 48, 1, 9),
        (64, 52, 2, 12),
        (3, 66, 2, 25),
    ]
    rng = random.Random(seed)
    return [Job([rng.randrange(2, VOCAB_SIZE) for _ in range(length)], joins_at, slot, n_new) for length, joins_at, slot, n_new in rows]


def _prefill(engine: CpuEngine, job: Job) -> None:
    bucket = smallest_bucket([len(job.prompt)], engine.shape)
    assert bucket is not None
    _take(engine, job, engine.prefill(bucket, [PrefillRow(job.slot, job.prompt)]).logits[0])


def _take(engine: CpuEngine, job: Job, logits: torch.Tensor) -> None:
    job.tokens.append(int(logits.argmax()))
    if job.done:
        engine.release(job.slot)
