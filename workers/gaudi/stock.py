"""A stock `transformers` decoder as the two modules of `library.Decoder`, for models without a good class in optimum-habana."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from transformers import Cache

from workers.gaudi.library import KeysValues
from workers.supported import LAYERED


class StockDecoder:
    """Implements `workers.gaudi.library.Decoder` around a causal language model in evaluation mode."""

    cuts = True
    trims = True
    fused = False

    def __init__(self, model: Any) -> None:
        self.prefill = Prefill(model)
        self.decode = Decode(model)
        self.vocab_size = int(model.config.get_text_config().vocab_size)


class Prefill(torch.nn.Module):
    """ids, mask, positions `[n, L]`, token_idx → logits `[n, vocab]` of the last column, keys and values."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._call = Call(model)

    def forward(
        self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, token_idx: torch.Tensor
    ) -> tuple[torch.Tensor, KeysValues]:
        length = ids.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=ids.device).tril()
        itself = torch.eye(length, dtype=torch.bool, device=ids.device)  # a pad looks at itself: a row of nothing would be NaN
        seen = Collected()
        logits = self._call(ids, positions, (causal & mask.bool()[:, None]) | itself, seen)
        return logits, tuple(seen.pairs)


class Decode(torch.nn.Module):
    """ids `[B, 1]`, mask `[B, T]`, positions `[B, 1]`, token_idx, keys and values, n_columns → logits `[B, vocab]`."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._call = Call(model)

    def forward(
        self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, token_idx: torch.Tensor, kv: KeysValues, n_columns: int | None
    ) -> torch.Tensor:
        cache = Written(kv, (token_idx - 1).view(1), n_columns or mask.shape[1])
        logits: torch.Tensor = self._call(ids, positions, mask.bool()[:, None, : cache.n_columns], cache)
        return logits


class Call(torch.nn.Module):
    """A forward pass that keeps the last column's logits, with a mask `[n, queries, columns]` of what may be looked at."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self._model = model
        self._dtype = next(model.parameters()).dtype
        self._cache_argument = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
        config = model.config
        self._layer_types = sorted(set(config.layer_types)) if config.model_type in LAYERED and getattr(config, "layer_types", None) else []

    def forward(self, ids: torch.Tensor, positions: torch.Tensor, visible: torch.Tensor, cache: Cache) -> torch.Tensor:
        hidden = torch.zeros((), dtype=self._dtype, device=ids.device)
        mask = hidden.where(visible, torch.finfo(self._dtype).min)[:, None]
        output = self._model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=dict.fromkeys(self._layer_types, mask) or mask,
            use_cache=True,
            logits_to_keep=1,
            return_dict=True,
            **{self._cache_argument: cache},
        )
        return output.logits[:, -1]  # type: ignore[no-any-return]


class _Cache(Cache):
    """What models of transformers 4.55 and 5 ask a cache besides `update`."""

    is_compileable = False

    def __init__(self) -> None:
        self.layers: list[Any] = []  # the base class's own, unused

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def __len__(self) -> int:
        return 0


class Collected(_Cache):
    """Hands a prompt's own keys and values back and keeps them."""

    def __init__(self) -> None:
        super().__init__()
        self.pairs: list[tuple[torch.Tensor, torch.Tensor]] = []

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.pairs.append((key_states, value_states))
        return key_states, value_states


class Written(_Cache):
    """Writes one column of every row in place and shows the first `n_columns`."""

    def __init__(self, kv: KeysValues, column: torch.Tensor, n_columns: int) -> None:
        super().__init__()
        self._kv = kv
        self._column = column
        self.n_columns = n_columns

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        all_keys, all_values = self._kv[layer_idx]
        all_keys.index_copy_(2, self._column, key_states)
        all_values.index_copy_(2, self._column, value_states)
        return all_keys[:, :, : self.n_columns], all_values[:, :, : self.n_columns]
