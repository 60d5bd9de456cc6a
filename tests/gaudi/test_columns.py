"""The shared write column against a plain list of what each row holds."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from common.shapes import Bucket
from workers.engines.base import DecodeRow, PrefillRow
from workers.gaudi.columns import Columns

BATCH, LENGTH, PAD = 3, 16, 0
BUCKETS = [Bucket(rows, length) for rows in (1, 2) for length in (4, 8, 16)]

prefills = st.tuples(st.sampled_from(BUCKETS), st.lists(st.integers(1, 16), min_size=1, max_size=2), st.permutations(range(BATCH)))
moves = st.lists(st.one_of(prefills, st.just("decode"), st.integers(0, BATCH - 1)), max_size=60)


class Model:
    """A cache of tokens and positions beside the columns, and what each row should hold."""

    def __init__(self) -> None:
        self.columns = Columns(BATCH, LENGTH, PAD)
        self.tokens = torch.full((BATCH, LENGTH), -1)
        self.places = torch.full((BATCH, LENGTH), -1)
        self.rows: dict[int, list[int]] = {}
        self._fresh = 100

    def token(self) -> int:
        self._fresh += 1
        return self._fresh

    def prefill(self, bucket: Bucket, lengths: list[int], slots: list[int]) -> None:
        joining = [slot for slot in slots if slot not in self.rows][: min(bucket.rows, len(lengths))]
        if not joining:
            return
        prompts = [
            PrefillRow(slot, [self.token() for _ in range(min(n, bucket.length))]) for slot, n in zip(joining, lengths, strict=False)
        ]
        ids, mask, positions, targets = self.columns.prefill_inputs(bucket, prompts)
        assert ids.shape == mask.shape == positions.shape == (bucket.rows, bucket.length)
        assert targets.tolist()[len(prompts) :] == [prompts[-1].slot] * (bucket.rows - len(prompts))
        self.tokens[targets, : bucket.length] = ids
        self.places[targets, : bucket.length] = positions
        self.columns.place(bucket, prompts)
        self.rows |= {row.slot: list(row.ids) for row in prompts}

    def release(self, slot: int) -> None:
        self.rows.pop(slot, None)
        self.columns.release(slot)
        assert self.rows or self.columns.next == 0

    def decode(self) -> None:
        for slot in [slot for slot, tokens in self.rows.items() if len(tokens) == LENGTH]:
            self.release(slot)
        if not self.rows:
            return
        if self.columns.wants_compaction():
            index = self.columns.compact()
            self.tokens, self.places = self.tokens.gather(1, index), self.places.gather(1, index)
            assert self.columns.next == max(map(len, self.rows.values()))
        step = [DecodeRow(slot, self.token(), len(tokens)) for slot, tokens in self.rows.items()]
        ids, mask, positions, token_idx = self.columns.decode_inputs(step)
        column = int(token_idx) - 1
        assert 0 <= column < LENGTH
        assert mask[:, column].all()
        self.tokens[:, column], self.places[:, column] = ids[:, 0], positions[:, 0]
        self.columns.wrote(step)
        for row in step:
            self.rows[row.slot].append(row.token)
            live = mask[row.slot] == 1
            seen = sorted(zip(self.places[row.slot][live].tolist(), self.tokens[row.slot][live].tolist(), strict=True))
            assert seen == list(enumerate(self.rows[row.slot]))


@settings(max_examples=200)
@given(moves)
def test_every_row_sees_its_own_tokens_in_order_whatever_its_neighbours_do(plan: list[Any]) -> None:
    model = Model()
    for move in plan:
        if move == "decode":
            model.decode()
        elif isinstance(move, int):
            model.release(move)
        else:
            model.prefill(*move)


def test_a_row_without_a_token_looks_at_what_it_writes() -> None:
    columns = Columns(2, 8, PAD)
    columns.place(Bucket(1, 4), [PrefillRow(0, [5, 6])])
    ids, mask, positions, token_idx = columns.decode_inputs([DecodeRow(0, 7, 2)])
    assert mask.tolist() == [[0, 0, 1, 1, 1, 0, 0, 0], [0, 0, 0, 0, 1, 0, 0, 0]]
    assert (ids.tolist(), positions.tolist(), int(token_idx)) == ([[7], [PAD]], [[2], [0]], 5)


def test_a_row_that_a_step_does_not_name_keeps_what_it_holds() -> None:
    columns = Columns(2, 8, PAD)
    columns.place(Bucket(2, 4), [PrefillRow(0, [5, 6]), PrefillRow(1, [7, 8, 9])])
    step = [DecodeRow(0, 7, 2)]
    _, mask, _, _ = columns.decode_inputs(step)
    columns.wrote(step)
    assert mask[1].tolist() == [0, 0, 0, 0, 1, 0, 0, 0]
    _, mask, _, _ = columns.decode_inputs([DecodeRow(1, 4, 3)])
    assert mask[1].tolist() == [0, 1, 1, 1, 0, 1, 0, 0]


def test_the_longest_row_reaches_the_last_column_with_one_compaction() -> None:
    """After a compaction the longest row needs as many columns as it has tokens, so it always ends before the columns do."""
    columns = Columns(2, 16, PAD)
    columns.place(Bucket(1, 8), [PrefillRow(0, [1] * 8)])
    columns.place(Bucket(1, 16), [PrefillRow(1, [1] * 3)])
    n_compactions = 0
    for at in range(8, 16):
        if columns.wants_compaction():
            columns.compact()
            n_compactions += 1
        columns.decode_inputs([DecodeRow(0, 1, at)])
        columns.wrote([DecodeRow(0, 1, at), DecodeRow(1, 1, at - 5)])
    assert (n_compactions, columns.next) == (1, 16)
