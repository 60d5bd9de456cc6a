"""The per-slot static KV cache that stock `transformers` decoders are handed, and the masks that go with it.

Each layer owns one key and one value tensor `[slots, heads, max_length, width]`, written in place. Pads are right of a
row's tokens: a later step overwrites their column before its mask opens.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import Cache


class StaticCache(Cache):  # a subclass because some models take nothing else
    """What a model takes as its cache; `select_prefill` or `select_decode` says where the next forward pass writes.

    Tensors are allocated at a layer's first update, so their shapes come from the model (MLA keys and values differ in width).
    """

    is_compileable = False

    def __init__(self, n_slots: int, max_length: int) -> None:
        self.layers: list[Any] = []  # the base class's own, unused
        self.n_slots = n_slots
        self.max_length = max_length
        self._layers: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._slot = 0
        self._positions: torch.Tensor | None = None
        self._n_columns = max_length
        self._flat_index: dict[int, torch.Tensor] = {}

    def select_prefill(self, slot: int) -> None:
        """The next pass writes one row's columns 0 … S-1 of `slot`."""
        self._slot = slot
        self._positions = None

    def select_decode(self, positions: torch.Tensor, n_columns: int) -> None:
        """The next pass writes one column per slot at `positions` `[slots]` and sees the first `n_columns`."""
        self._positions = positions
        self._n_columns = n_columns
        self._flat_index.clear()

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Writes `[rows, heads, S, width]` and returns the keys and values this pass may look at."""
        keys, values = self._layer(layer_idx, key_states, value_states)
        if self._positions is None:
            length = key_states.shape[2]
            keys[self._slot, :, :length] = key_states[0]
            values[self._slot, :, :length] = value_states[0]
            return key_states, value_states
        index = self._index(key_states.shape[1])
        keys.view(-1, keys.shape[-1]).index_copy_(0, index, key_states.reshape(-1, keys.shape[-1]))
        values.view(-1, values.shape[-1]).index_copy_(0, index, value_states.reshape(-1, values.shape[-1]))
        return keys[:, :, : self._n_columns], values[:, :, : self._n_columns]

    def scrub(self, slot: int) -> None:
        """Zeroes one slot, so that nothing (a NaN) of it reaches its next request."""
        for keys, values in self._layers.values():
            keys[slot].zero_()
            values[slot].zero_()

    @property
    def n_bytes(self) -> int:
        """What the tensors allocated so far occupy."""
        return sum(tensor.nbytes for pair in self._layers.values() for tensor in pair)

    def _layer(self, layer_idx: int, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if layer_idx not in self._layers:
            self._layers[layer_idx] = (
                key.new_zeros(self.n_slots, key.shape[1], self.max_length, key.shape[-1]),
                value.new_zeros(self.n_slots, value.shape[1], self.max_length, value.shape[-1]),
            )
        return self._layers[layer_idx]

    def _index(self, n_heads: int) -> torch.Tensor:
        """Row numbers of this step's columns in a layer seen as `[slots * heads * max_length, width]`."""
        if n_heads not in self._flat_index:
            assert self._positions is not None
            first = torch.arange(self.n_slots * n_heads).view(self.n_slots, n_heads) * self.max_length
            self._flat_index[n_heads] = (first + self._positions[:, None]).view(-1)
        return self._flat_index[n_heads]

    # The rest is what models and mask builders of transformers 4.55 … 5.x ask a cache.

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_max_cache_shape(self, layer_idx: int = 0) -> int:
        return self.max_length

    def get_mask_sizes(self, *_args: Any) -> tuple[int, int]:
        return self._n_columns, 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return 0

    def has_previous_state(self, *_args: Any) -> bool:
        return False

    @property
    def is_sliding(self) -> list[bool]:
        return [False] * len(self._layers)

    def __len__(self) -> int:
        return len(self._layers)


def additive_mask(positions: torch.Tensor, n_columns: int, dtype: torch.dtype, window: int | None = None) -> torch.Tensor:
    """0 where a query at `positions` `[rows, queries]` may look, -inf elsewhere: `[rows, 1, queries, n_columns]`.

    Causal; with a window also `position - column < window`. Additive because `sdpa` and `eager` both take it as it is.
    """
    behind = positions[:, None, :, None] - torch.arange(n_columns)
    visible = behind >= 0 if window is None else (behind >= 0) & (behind < window)
    return torch.zeros((), dtype=dtype).where(visible, float("-inf"))
