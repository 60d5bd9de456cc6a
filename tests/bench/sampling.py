"""What one row's sampling costs at 128 k vocabulary, as multiples of `torch.argmax` over the same logits.

Two kinds of logits: `peaked` like a language model's, `flat` where a nucleus holds tens of
thousands of tokens. Microseconds are printed too: torch's argmax is itself slow, and differs between CPUs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from common.messages import Params
from tests.bench.figures import Figure
from workers.engines.base import DecodeRow, Step
from workers.sampling import Context, Sampler

VOCAB_SIZE = 128_256
N_ROWS = 8
N_ROUNDS = 200
N_PROMPT_TOKENS = 1_000

CASES: dict[str, tuple[Params, float | None]] = {
    "greedy with logprob": (Params(), 3),
    "temperature 0.7": (Params(temperature=0.7), 8),
    "top-k 50": (Params(top_k=50), 8),
    "top-p 0.9": (Params(top_p=0.9), 8),
    "penalties + top-n 5": (Params(repetition_penalty=1.2, frequency_penalty=0.5, top_n_tokens=5), 8),
    "typical-p 0.9": (Params(typical_p=0.9), None),
    "everything": (Params(True, 0.7, 50, 0.9, 0.95, 1.2, 0.5, 5), None),
}
"""Name → parameters and the bar in multiples of argmax; None: reported only."""


def logits(kind: str) -> torch.Tensor:
    """float32 `[rows, vocab]`: a bell, and for `peaked` also Zipf's law, under which about 80 tokens hold nine tenths of the mass."""
    generator = torch.Generator().manual_seed(0)
    bell = torch.randn(N_ROWS, VOCAB_SIZE, generator=generator)
    if kind == "peaked":
        bell[:, :1000] += 20 - 1.6 * torch.arange(1, 1001).log()
        bell = bell[:, torch.randperm(VOCAB_SIZE, generator=generator)].contiguous()
    return bell


def microseconds_per_row(run: Callable[[int], object]) -> float:
    """The fastest of many calls for all rows, divided by their number."""
    fastest_s = float("inf")
    for pos in range(N_ROUNDS):
        start_s = time.perf_counter()
        run(pos)
        fastest_s = min(fastest_s, time.perf_counter() - start_s)
    return fastest_s * 1e6 / N_ROWS


def measure(kind: str, sampler: Sampler, context: Context) -> list[Figure]:
    values = logits(kind)

    def argmax(pos: int) -> object:
        return values.argmax(-1)

    def pick(params: Params, pos: int) -> object:
        rows = [DecodeRow(slot, 0, 0, params, seed=slot, pos=pos) for slot in range(N_ROWS)]
        return sampler.pick(Step(logits=values), rows, [context] * N_ROWS)

    argmax_us = microseconds_per_row(argmax)
    figures = []
    for name, (params, bar) in CASES.items():
        cost_us = microseconds_per_row(partial(pick, params))
        figures.append(
            Figure(f"sampling ÷ argmax, 128 k, {kind}: {name}", cost_us / argmax_us, bar, note=f"{cost_us:.0f} ÷ {argmax_us:.0f} µs")
        )
    return figures


def sampling(folder: Path) -> list[Figure]:
    """Each case on both kinds of logits."""
    torch.set_num_threads(2)
    return [figure for kind in ("peaked", "flat") for figure in measure(kind, Sampler(VOCAB_SIZE), Context(range(N_PROMPT_TOKENS)))]
