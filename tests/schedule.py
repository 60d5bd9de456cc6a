"""Random seeded schedules of prefill, decode, release and reuse, driven through an engine as a worker drives it."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from common.messages import Params
from common.shapes import prefill_length, smallest_bucket
from workers.double_tokens import hashed_token
from workers.engines.base import DecodeRow, Engine, PrefillRow, Step

Guard = Callable[[dict[int, int]], None]
"""Told before each call how many first positions of each slot must stay as they are."""


@dataclass
class Job:
    """One request; `leaves_after` tokens its client is gone. `tokens` are what it was given."""

    prompt: list[int]
    n_new: int
    leaves_after: int = 1 << 30
    tokens: list[int] = field(default_factory=list)
    at: int = 0
    forced: deque[int] = field(default_factory=deque)

    @property
    def over(self) -> bool:
        return len(self.tokens) >= min(self.n_new, self.leaves_after)


def jobs(rng: random.Random, n_jobs: int, length: int, vocab_size: int) -> list[Job]:
    """Prompts of 1, 2, the longest and random lengths; some leave early."""
    made = []
    for index in range(n_jobs):
        n_prompt = {0: 1, 1: 2, 2: length - 1}.get(index, rng.randrange(1, length))
        n_new = rng.randrange(1, min(12, length - n_prompt) + 1)
        leaves_after = rng.randrange(1, n_new + 1) if rng.random() < 0.2 else 1 << 30
        made.append(Job([rng.randrange(2, vocab_size) for _ in range(n_prompt)], n_new, leaves_after))
    rng.shuffle(made)
    return made


def run(engine: Engine, wanted: Sequence[Job], rng: random.Random, guard: Guard = lambda _: None) -> None:
    """Runs all jobs to their end, at most one per slot, rows of a decode in random order."""
    waiting, running = deque(wanted), dict[int, Job]()
    while waiting or running:
        free = [slot for slot in range(engine.shape.batch_size) if slot not in running]
        guard({slot: job.at for slot, job in running.items()})
        if waiting and free and (not running or rng.random() < 0.4):
            n_joining = rng.randint(1, min(len(free), len(waiting), engine.shape.max_rows))
            joining = dict(zip(rng.sample(free, n_joining), [waiting.popleft() for _ in range(n_joining)], strict=True))
            _start(engine, joining)
            running |= joining
        else:
            _decode(engine, running, rng)
        for slot in [slot for slot, job in running.items() if job.over]:
            del running[slot]
            engine.release(slot)


def hashed(job: Job, vocab_size: int) -> list[int]:
    """What a double without weights gives this prompt alone, as far as the job ran."""
    tokens = list(job.prompt)
    while len(tokens) < len(job.prompt) + min(job.n_new, job.leaves_after):
        tokens.append(hashed_token(tuple(tokens), vocab_size))
    return tokens[len(job.prompt) :]


def greedy(model: Any, job: Job) -> list[int]:
    """What `transformers.generate` gives for this prompt alone, as far as the job ran."""
    ids = torch.tensor([job.prompt])
    output = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=job.n_new, do_sample=False, pad_token_id=0)
    return output[0, len(job.prompt) :][: job.leaves_after].tolist()  # type: ignore[no-any-return]


def _start(engine: Engine, joining: dict[int, Job]) -> None:
    """The start rule: prefill what fits, the rest through decode (design §6); one call for all when there is a bucket for it."""
    for job in joining.values():
        job.at = prefill_length(len(job.prompt), engine.shape)
        job.forced.extend(job.prompt[job.at :])
    filled = {slot: job for slot, job in joining.items() if job.at}
    if filled and smallest_bucket([job.at for job in filled.values()], engine.shape):
        _prefill(engine, filled)
    else:
        for slot, job in filled.items():
            _prefill(engine, {slot: job})


def _prefill(engine: Engine, jobs: dict[int, Job]) -> None:
    bucket = smallest_bucket([job.at for job in jobs.values()], engine.shape)
    assert bucket is not None
    step = engine.prefill(bucket, [PrefillRow(slot, job.prompt[: job.at], params=Params()) for slot, job in jobs.items()])
    for index, job in enumerate(jobs.values()):
        if not job.forced:
            job.tokens.append(picked(step, index))


def _decode(engine: Engine, running: dict[int, Job], rng: random.Random) -> None:
    slots = list(running)
    rng.shuffle(slots)
    rows = [DecodeRow(slot, job.forced[0] if job.forced else job.tokens[-1], job.at) for slot in slots for job in (running[slot],)]
    step = engine.decode(rows)
    for index, slot in enumerate(slots):
        job = running[slot]
        job.at += 1
        if job.forced:
            job.forced.popleft()
        if not job.forced:
            job.tokens.append(picked(step, index))


def picked(step: Step, row: int) -> int:
    """The greedy token of one row."""
    return step.tokens[row] if step.tokens is not None else int(step.logits[row].argmax())
