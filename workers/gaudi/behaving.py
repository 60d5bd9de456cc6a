"""What goes wrong on a card's double, and how long its calls take."""

from __future__ import annotations

import time
from dataclasses import dataclass
from threading import Event
from typing import Any

import torch

from workers.faults import NEVER
from workers.gaudi.double import CardDouble


@dataclass(frozen=True)
class Faults:
    """What goes wrong, and how long calls take. Calls are counted from 1, warm-up included."""

    prefill_ms: float = 0.0
    step_ms: float = 0.0
    compile_ms: float = 0.0  # for each graph and recipe, warm-up included
    fail_at: int = NEVER
    nan_at: int = NEVER
    hang_at: int = NEVER
    n_cards: int = 8
    busy: int = 0  # so many attempts to take the card fail
    generation: str = "gaudi2"
    stack: str = "1.24.0"
    memory_mb: int = 96 * 1024
    token_kb: int = 0  # what a computed token takes, and a captured one keeps


class Calls:
    """Counts the calls of one card; `hurried`: they take no time."""

    def __init__(self) -> None:
        self.n = 0
        self.hurried = False


class Behaving(torch.nn.Module):
    """A prefill or decode module that takes its time, needs memory for every token it computes, and fails when told to."""

    def __init__(self, module: torch.nn.Module, card: CardDouble, faults: Faults, calls: Calls, takes_ms: float) -> None:
        super().__init__()
        self._module = module
        self._card = card
        self._faults = faults
        self._calls = calls
        self._takes_s = takes_ms / 1000

    def forward(self, ids: torch.Tensor, *inputs: Any) -> Any:
        calls, faults = self._calls, self._faults
        calls.n += 1
        if self._takes_s and not calls.hurried:
            time.sleep(self._takes_s)
        if calls.n == faults.hang_at:
            Event().wait()
        if calls.n == faults.fail_at:
            raise RuntimeError("synStatus=26 [Generic failure] synLaunch failed, as told")
        if not self._card.replaying:
            self._card.require(ids.numel() * self._card.token_bytes)
        output = self._module(ids, *inputs)
        if calls.n == faults.nan_at:
            (output[0] if isinstance(output, tuple) else output)[0] = float("nan")
        return output
