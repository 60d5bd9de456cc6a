"""H1 to H13 cannot occur by construction: what the engine hands to a graph, for any rows."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from common.messages import Params
from workers.engines.base import DecodeRow
from workers.neuron.artifact import Artifact
from workers.neuron.graphs import graphs, require_compiled
from workers.neuron.rows import chunk_inputs, decode_inputs, prefill_inputs, sampling_row

ARTIFACT = Artifact(4, 32, 1, "float32", 32, True)
TABLE = graphs(ARTIFACT)


@given(st.lists(st.tuples(st.integers(0, 99), st.integers(0, 31)), min_size=4, max_size=4), st.sets(st.integers(0, 3)))
def test_h1_h5_h6_h8_h11_h13_every_decode_names_every_slot_once_and_in_order(places: list[tuple[int, int]], named: set[int]) -> None:
    rows = [DecodeRow(slot, *places[slot]) for slot in sorted(named, reverse=True)]
    next_pos = [at for _, at in places]
    inputs = decode_inputs(rows, next_pos, 0, {})
    require_compiled("decode", inputs, TABLE)
    ids, positions, seq_ids, _ = inputs
    assert seq_ids.tolist() == [0, 1, 2, 3]
    for slot, (token, at) in enumerate(places):
        assert int(positions[slot]) == at, "a slot that is not named writes where its own next token comes"
        assert int(ids[slot]) == (token if slot in named else 0)


@given(st.lists(st.integers(0, 99), min_size=2, max_size=32), st.integers(0, 3))
def test_h3_the_last_token_alone_has_the_largest_position(ids: list[int], slot: int) -> None:
    inputs = prefill_inputs(slot, ids, 32, 7, (1.0, 1.0, 1.0))
    require_compiled("prefill", inputs, TABLE)
    tokens, positions, seq_ids, _ = inputs
    assert int(positions[0].argmax()) == len(ids) - 1 and (positions[0] == len(ids) - 1).sum() == 1
    assert tokens[0].tolist() == ids + [7] * (32 - len(ids)) and seq_ids.tolist() == [slot]


@pytest.mark.parametrize("n_tokens", [0, 1, 33])
def test_h2_h4_a_prefill_of_no_one_or_too_many_tokens_is_never_built(n_tokens: int) -> None:
    with pytest.raises(AssertionError):
        prefill_inputs(0, [1] * n_tokens, 32, 0, (1.0, 1.0, 1.0))


def test_chunks_repeat_their_last_token() -> None:
    tokens, positions, *_ = chunk_inputs(1, [5, 6], 8, 4, (1.0, 1.0, 1.0))
    assert (tokens.tolist(), positions.tolist()) == ([[5, 6, 6, 6]], [[8, 9, 9, 9]])


params = st.builds(
    Params,
    do_sample=st.booleans(),
    temperature=st.floats(1e-30, 1e30),
    top_k=st.integers(-5, 10**6),
    top_p=st.floats(-1, 2, allow_nan=False),
    typical_p=st.floats(0, 1),
)


@given(params, st.sampled_from([1, 50, 256]))
def test_h9_h10_any_parameters_become_ones_that_the_graph_takes(params: Params, max_topk: int) -> None:
    top_k, top_p, temperature = sampling_row(params, max_topk)
    assert 1 <= top_k <= max_topk and top_k == int(top_k)
    assert 0 < top_p <= 1 and temperature >= 0.01
    if not params.samples:
        assert (top_k, top_p, temperature) == (1.0, 1.0, 1.0)


def test_sampling_without_a_top_k_takes_the_most_there_is() -> None:
    assert sampling_row(Params(do_sample=True), 256) == (256.0, 1.0, 1.0)
    assert sampling_row(Params(do_sample=True, top_k=20, top_p=0.5, temperature=0.7), 256) == (20.0, 0.5, 0.7)


def test_rows_of_a_decode_carry_their_own_sampling() -> None:
    *_, sampling = decode_inputs([DecodeRow(2, 1, 3)], [0, 0, 3, 0], 0, {2: (5.0, 0.5, 2.0)})
    assert torch.equal(sampling, torch.tensor([[1.0, 1, 1], [1, 1, 1], [5, 0.5, 2], [1, 1, 1]]))
