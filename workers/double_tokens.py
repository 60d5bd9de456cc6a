"""What a device double computes: a hash of the row's tokens, or a real model on the CPU."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any
from zlib import crc32

import torch

from common.noise import mix64

PEAK = 100.0

NextToken = Callable[[int, tuple[int, ...]], torch.Tensor]
"""(slot, tokens from position 0) → float32 logits `[vocab]`."""


def hashed_token(tokens: tuple[int, ...], vocab_size: int, first: int = 0, salt: str = "") -> int:
    """The token after `tokens`: depends on each of them and its place; never one below `first`."""
    value = crc32(salt.encode())
    for token in tokens:
        value = mix64(value ^ (token + 1))
    return first + value % (vocab_size - first)


class HashTokens:
    """Logits that leave no choice; with a salt nobody else can regenerate a lost run."""

    def __init__(self, vocab_size: int, first: int = 0, salt: Callable[[], str] = str, not_a_number: int = -1) -> None:
        self.vocab_size = vocab_size
        self._salt = salt
        self._not_a_number = not_a_number
        self._first = first

    def __call__(self, slot: int, tokens: tuple[int, ...]) -> torch.Tensor:
        if self._not_a_number in tokens:
            return torch.full((self.vocab_size,), float("nan"))
        logits = torch.zeros(self.vocab_size)
        logits[hashed_token(tokens, self.vocab_size, self._first, self._salt())] = PEAK
        return logits


class ModelTokens:
    """Logits of a stock `transformers` decoder; a slot's cache is used only while the tokens it came from are still there."""

    def __init__(self, model: Any) -> None:
        from transformers import DynamicCache  # where there is a model it is imported already

        self._new_cache = DynamicCache
        self._model = model.eval()
        self._argument = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
        self._seen: dict[int, tuple[tuple[int, ...], Any, torch.Tensor]] = {}
        self.vocab_size = int(model.config.get_text_config().vocab_size)

    @torch.inference_mode()
    def __call__(self, slot: int, tokens: tuple[int, ...]) -> torch.Tensor:
        logits: torch.Tensor
        seen, cache, logits = self._seen.get(slot, ((), None, torch.empty(0)))
        if tokens == seen:
            return logits
        if not seen or tokens[: len(seen)] != seen:
            seen, cache = (), self._new_cache()
        output = self._model(input_ids=torch.tensor([tokens[len(seen) :]]), use_cache=True, **{self._argument: cache})
        logits = output.logits[0, -1].float()
        self._seen[slot] = (tokens, cache, logits)
        return logits
