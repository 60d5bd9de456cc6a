"""The shared write column: which columns of each row's cache are live, and all inputs of a call, built on the host (gaudi.md §5.2 to §5.4).

The library writes one column for the whole batch at every step. So a row's tokens need not lie at their positions: a row looks
at the columns of its mask, and each token carries its position. Pure: no device, no model.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from common.shapes import Bucket
from workers.engines.base import DecodeRow, PrefillRow

PrefillInputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
"""ids, mask, positions `[rows, length]`; slots `[rows]`; int64."""

DecodeInputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
"""ids `[B, 1]`, mask `[B, T]`, positions `[B, 1]`, token_idx `[]`; int64."""


class Columns:
    """`next` is the column that the next step writes; rows that nobody named have an empty mask."""

    def __init__(self, batch_size: int, max_length: int, pad: int) -> None:
        self.next = 0
        self._mask = torch.zeros(batch_size, max_length, dtype=torch.int64)
        self._pad = pad

    @property
    def live(self) -> int:
        """How many columns the longest row needs."""
        return int(self._mask.sum(1).max())

    def holds(self, slot: int) -> bool:
        """Whether this row has tokens."""
        return bool(self._mask[slot].any())

    def release(self, slot: int) -> None:
        """Forgets a row; with the last one the batch starts over at column 0."""
        self._mask[slot] = 0
        if not self._mask.any():
            self.next = 0

    def place(self, bucket: Bucket, rows: Sequence[PrefillRow]) -> None:
        """These rows now hold the last columns below `bucket.length`."""
        for row in rows:
            self._mask[row.slot] = 0
            self._mask[row.slot, bucket.length - len(row.ids) : bucket.length] = 1
        self.next = max(self.next, bucket.length)

    def prefill_inputs(self, bucket: Bucket, rows: Sequence[PrefillRow]) -> PrefillInputs:
        """Prompts end in the last column; rows that the bucket has too many repeat the last one, slot included."""
        shape = bucket.rows, bucket.length
        ids = torch.full(shape, self._pad, dtype=torch.int64)
        mask, positions = torch.zeros(shape, dtype=torch.int64), torch.zeros(shape, dtype=torch.int64)
        filled = [*rows, *[rows[-1]] * (bucket.rows - len(rows))]
        for index, row in enumerate(filled):
            first = bucket.length - len(row.ids)
            assert 0 <= first < bucket.length, f"{len(row.ids)} tokens do not fit a bucket of {bucket.length}"
            ids[index, first:] = torch.tensor(row.ids)
            mask[index, first:] = 1
            positions[index, first:] = torch.arange(len(row.ids))
        return ids, mask, positions, torch.tensor([row.slot for row in filled])

    def decode_inputs(self, rows: Sequence[DecodeRow]) -> DecodeInputs:
        """One step of all rows. A row without a token looks only at the column it writes: at nothing would be NaN."""
        n_rows = len(self._mask)
        ids, positions = torch.full((n_rows, 1), self._pad), torch.zeros(n_rows, 1, dtype=torch.int64)
        for row in rows:
            ids[row.slot, 0] = row.token
            positions[row.slot, 0] = row.at
        mask = torch.zeros_like(self._mask)
        named = [row.slot for row in rows]
        mask[named] = self._mask[named]
        mask[:, self.next] = 1
        return ids, mask, positions, torch.tensor(self.next + 1)

    def wrote(self, rows: Sequence[DecodeRow]) -> None:
        """The step of `decode_inputs` is done."""
        for row in rows:
            self._mask[row.slot, self.next] = 1
        self.next += 1

    def wants_compaction(self) -> bool:
        """Whether the last column is used up, or more than a quarter of the length is a gap that every step reads."""
        length = self._mask.shape[1]
        return self.next == length or self.next - self.live > length // 4

    def compact(self) -> torch.Tensor:
        """Moves live columns to the left, keeping their order: the index `[B, T]` of where each column comes from.

        Exact: rotary positions are already in the keys, and attention over columns has no order but the mask.
        """
        index = torch.argsort(self._mask, dim=1, descending=True, stable=True)
        self._mask.copy_(self._mask.gather(1, index))
        self.next = self.live
        return index
