"""A decoder of optimum-habana as the two modules of `workers.gaudi.library.Decoder` (gaudi.md §3.2)."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from workers.gaudi.library import KeysValues


class HabanaDecoder:
    """Implements `workers.gaudi.library.Decoder` around a model in evaluation mode; `flags` are those that the model may know."""

    def __init__(self, model: Any, flags: Mapping[str, bool]) -> None:
        known = inspect.signature(model.forward).parameters  # it swallows what it does not know
        asked = {name: value for name, value in flags.items() if name in known}
        self.cuts = "cache_idx" in known
        self.trims = "trim_logits" in known
        self.fused = asked.get("use_flash_attention", False)
        self.prefill = Prefill(model, asked | ({"trim_logits": True} if self.trims else {}))
        self.decode = Decode(model, asked | ({"first_token": False} if "first_token" in known else {}))
        self.vocab_size = int(model.config.vocab_size)


class Prefill(torch.nn.Module):
    """ids, mask, positions `[n, L]`, token_idx → logits `[n, vocab]` of the last column, keys and values.

    Flags never change: a graph's key has the value of each.
    """

    def __init__(self, model: Any, flags: Mapping[str, bool]) -> None:
        super().__init__()
        self._model = model
        self._flags = dict(flags)

    def forward(
        self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, token_idx: torch.Tensor
    ) -> tuple[torch.Tensor, KeysValues]:
        output = self._model(
            input_ids=ids, attention_mask=mask, position_ids=positions, token_idx=token_idx, use_cache=True, return_dict=True, **self._flags
        )
        return output.logits[:, -1], tuple((keys, values) for keys, values in output.past_key_values)


class Decode(torch.nn.Module):
    """ids `[B, 1]`, mask `[B, T]`, positions `[B, 1]`, token_idx, keys and values, n_columns → logits `[B, vocab]`.

    The cache is written in place and is not among the outputs: each graph would keep a copy of it.
    """

    def __init__(self, model: Any, flags: Mapping[str, bool]) -> None:
        super().__init__()
        self._model = model
        self._flags = dict(flags)

    def forward(
        self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, token_idx: torch.Tensor, kv: KeysValues, n_columns: int | None
    ) -> torch.Tensor:
        output = self._model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=kv,
            token_idx=token_idx,
            use_cache=True,
            return_dict=True,
            **({} if n_columns is None else {"cache_idx": n_columns}),
            **self._flags,
        )
        return output.logits[:, -1]  # type: ignore[no-any-return]
