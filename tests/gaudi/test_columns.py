"""The shared write column against a plain list of what each row holds."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from common.shapes import Bucket
from workers.engines.base import DecodeRow, PrefillRow
from workers.gaudi.columns import Columns

BATCH, LENGTH, PAD = 3, 16, 0
BUCKETS = [Bucket(rows, length) for rows in (1, 2) for length in (4, 8, 16)]

moves = st.lists(
    st.one_of(
        st.tuples(
            st.just("prefill"),
            st.sampled_from(BUCKETS),
            st.lists(st.integers(1, 16), min_size=1, max_size=2),
            st.permutations(range(BATCH)),
        ),
        st.tuples(st.just("decode")),
        st.tuples(st.just("release"), st.integers(0, BATCH - 1)),
    ),
    max_size=60,
)


@settings(max_examples=200)
@given(moves)
def test_every_row_sees_its_own_tokens_in_order_whatever_its_neighbours_do(plan: list[tuple[object, ...]]) -> None:
    columns = Columns(BATCH, LENGTH, PAD)
    cache = torch.full((BATCH, LENGTH), -1)
    places = torch.full((BATCH, LENGTH), -1)
    rows: dict[int, list[int]] = {}
    counter = 100
    for move, *what in plan:
        if move == "prefill":
            bucket, lengths, order = what
            slots = [slot for slot in order if slot not in rows][: min(bucket.rows, len(lengths))]
            if not slots:
                continue
            prompts = []
            for slot, length in zip(slots, lengths, strict=False):
                n = min(length, bucket.length)
                prompts.append(PrefillRow(slot, list(range(counter, counter + n))))
                rows[slot] = list(range(counter, counter + n))
                counter += n
            ids, mask, positions, targets = columns.prefill_inputs(bucket, prompts)
            assert ids.shape == mask.shape == positions.shape == (bucket.rows, bucket.length)
            assert targets.tolist()[len(prompts) :] == [prompts[-1].slot] * (bucket.rows - len(prompts))
            cache[targets, : bucket.length] = ids
            places[targets, : bucket.length] = positions
            columns.place(bucket, prompts)
        elif move == "decode":
            running = [slot for slot, tokens in rows.items() if len(tokens) < LENGTH]
            for slot in [slot for slot in rows if slot not in running]:
                del rows[slot]
                columns.release(slot)
            if not running:
                continue
            if columns.wants_compaction():
                index = columns.compact()
                cache, places = cache.gather(1, index), places.gather(1, index)
                assert columns.next == max(len(rows[slot]) for slot in running)
            step = [DecodeRow(slot, counter + slot, len(rows[slot])) for slot in running]
            ids, mask, positions, token_idx = columns.decode_inputs(step)
            column = int(token_idx) - 1
            assert 0 <= column < LENGTH and mask[:, column].all()
            cache[:, column], places[:, column] = ids[:, 0], positions[:, 0]
            columns.wrote(step)
            for row in step:
                rows[row.slot].append(row.token)
                seen = sorted(
                    zip(places[row.slot][mask[row.slot] == 1].tolist(), cache[row.slot][mask[row.slot] == 1].tolist(), strict=True)
                )
                assert seen == list(enumerate(rows[row.slot]))
            counter += BATCH
        else:
            (slot,) = what
            rows.pop(slot, None)  # type: ignore[call-overload]
            columns.release(slot)  # type: ignore[arg-type]
            assert rows or columns.next == 0


def test_a_row_without_a_token_looks_at_what_it_writes() -> None:
    columns = Columns(2, 8, PAD)
    columns.place(Bucket(1, 4), [PrefillRow(0, [5, 6])])
    ids, mask, positions, token_idx = columns.decode_inputs([DecodeRow(0, 7, 2)])
    assert mask.tolist() == [[0, 0, 1, 1, 1, 0, 0, 0], [0, 0, 0, 0, 1, 0, 0, 0]]
    assert (ids.tolist(), positions.tolist(), int(token_idx)) == ([[7], [PAD]], [[2], [0]], 5)


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
