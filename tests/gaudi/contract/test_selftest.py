"""The self-test that an operator runs on a card, over the real library."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.gaudi.contract.real import OnStub, settings
from workers import selftest
from workers.engines import gaudi
from workers.gaudi.cards import Card, process_env
from workers.gaudi.recipes import recipe_cache

pytestmark = [pytest.mark.contract_gaudi, pytest.mark.filterwarnings("default")]


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """One whose card is the stub's, and whose bridge was imported with the right variables."""
    monkeypatch.setattr(gaudi, "OptimumHabana", OnStub)
    for name, value in process_env(Card(0, None), str(recipe_cache(settings(), folder))).items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("name", ["llama", "deepseek_v3"])
def test_a_good_card_passes(folder: Path, name: str) -> None:
    """The CPU's own classes are those of another process: here they are replaced."""
    made = selftest.selftest(settings(MODEL_ID=str(folder / name)), folder / name, soak_s=0.0)
    assert (made.verdict, made.failures, made.cpu_agreement, made.graphs_agree) == ("pass", [], 1.0, True)
    assert (made.batch_size, made.max_length, made.n_unwarmed) == (4, 64, 0)


def test_a_card_that_computes_something_else_fails(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crooked(library: OnStub, *args: object) -> object:
        decoder = load(library, *args)
        decoder.decode.register_forward_hook(lambda _module, _inputs, logits: torch.roll(logits, 1, 1))
        return decoder

    load = OnStub.load
    monkeypatch.setattr(OnStub, "load", crooked)
    made = selftest.selftest(settings(MODEL_ID=str(folder / "llama")), folder / "llama", soak_s=0.0)
    assert made.verdict == "fail" and "of the tokens are those of the CPU" in made.failures[0]
