"""The card's double refuses what a card refuses, and shows what a card hides (gaudi.md §3.5, §4.4, §6)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from workers.double_tokens import HashTokens
from workers.engines.base import UnwarmedShape
from workers.gaudi.double import CardDouble
from workers.gaudi.hashed import RowClobbered, next_logits


class Doubling(torch.nn.Module):
    def forward(self, x: torch.Tensor, factor: int = 2, **_: Any) -> torch.Tensor:
        return x * factor


X = torch.ones(2, 4)


def served() -> tuple[CardDouble, Any]:
    card = CardDouble()
    module = card.capture(Doubling())
    module(X, factor=2)
    card.serving = True
    return card, module


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((torch.ones(2, 5),), {"factor": 2}),
        ((torch.ones(2, 4, dtype=torch.float64),), {"factor": 2}),
        ((torch.ones(4, 2).T,), {"factor": 2}),
        ((torch.ones(2, 8)[:, ::2],), {"factor": 2}),
        ((X,), {"factor": 3}),
        ((X,), {}),
        ((X, 2), {}),
        ((X,), {"factor": 2, "flag": True}),
        ((X,), {"flag": None, "factor": 2}),
    ],
    ids=["shape", "type", "transposed", "strided", "number", "missing", "by position", "added", "order"],
)
def test_another_layout_or_number_is_another_graph(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    card, module = served()
    with pytest.raises(UnwarmedShape, match="a graph"):
        module(*args, **kwargs)
    assert card.n_compilations == 1


def test_a_replay_overwrites_the_same_output() -> None:
    _, module = served()
    first = module(X, factor=2)
    again = module(3 * X, factor=2)
    assert first is again
    assert first[0, 0] == 6
    assert module.replays == 2


def test_what_bypasses_the_graphs_is_not_captured() -> None:
    card, module = served()
    assert module(torch.ones(3, 3), bypass_hpu_graphs=True).shape == (3, 3)
    assert card.n_compilations == 1


def test_beyond_max_graphs_nothing_is_captured_and_nothing_is_said() -> None:
    card = CardDouble(max_graphs=1)
    module = card.capture(Doubling())
    module(X)
    module(torch.ones(7))
    assert card.n_compilations == 1


def test_a_cleared_cache_captures_again() -> None:
    _, module = served()
    module.clear_cache()
    with pytest.raises(UnwarmedShape):
        module(X, factor=2)


def test_three_rows_and_four_rows_are_two_recipes() -> None:
    card = CardDouble()
    cache, fresh = torch.zeros(4, 6), torch.ones(4, 6)

    def insert(n_rows: int) -> None:
        with card.recipe():
            cache.index_copy_(0, torch.arange(4)[:n_rows], fresh[:n_rows])

    insert(4)
    insert(4)
    assert card.n_compilations == 1
    card.serving = True
    insert(4)
    with pytest.raises(UnwarmedShape, match="a recipe"):
        insert(3)


def test_a_slice_that_depends_on_a_length_is_a_recipe_for_each_length() -> None:
    card = CardDouble()
    for length in (3, 4, 3):
        with card.recipe():
            torch.zeros(8)[:length] += 1
    assert card.n_compilations == 2


def test_a_replay_adds_nothing_to_a_recipe() -> None:
    card, module = served()
    card.serving = False
    with card.recipe():
        module(X, factor=2)
    assert not card.recipes


def test_memory_is_what_was_scripted() -> None:
    card = CardDouble(memory_bytes=100, token_bytes=10)
    card.hold(60)
    with pytest.raises(RuntimeError, match="out of memory"):
        card.hold(41)
    module = card.capture(Doubling())
    module(torch.ones(1, 4))
    assert card.free_bytes == 0
    module(torch.ones(1, 4))
    with pytest.raises(RuntimeError, match="out of memory"):
        module(torch.ones(1, 1))


def test_a_row_that_sees_another_rows_columns_is_refused() -> None:
    tokens = HashTokens(50)
    ids, positions = torch.tensor([[7, 8, 9]]), torch.tensor([[0, 1, 1]])
    next_logits(tokens, ids, torch.tensor([[1, 1, 0]]), positions)
    with pytest.raises(RowClobbered, match=r"\[0, 1, 1\]"):
        next_logits(tokens, ids, torch.tensor([[1, 1, 1]]), positions)
