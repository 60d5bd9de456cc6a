"""The self-test on a Gaudi card: against the CPU, captured against uncaptured, and nothing compiles afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from common.config import Settings
from tests.neuron.doubles import plain
from tests.parity.tiny import tiny_model
from workers import selftest
from workers.engines.gaudi_double import DoubleLibrary
from workers.gaudi.columns import Columns
from workers.gaudi.double import CapturedGraphs


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = plain(tmp_path_factory.mktemp("gaudi") / "model")
    tiny_model("llama").save_pretrained(folder)
    return folder


def report(folder: Path, soak_s: float = 0.0, **env: str) -> selftest.Report:
    small = {"MAX_BATCH_SIZE": "4", "MAX_TOTAL_TOKENS": "64", "PAD_SEQUENCE_TO_MULTIPLE_OF": "16", "HF_HOME": str(folder / "hf")}
    settings = Settings.from_env({"FARM_BACKEND": "gaudi-double", "MODEL_ID": str(folder), **small, **env})
    return selftest.selftest(settings, folder, soak_s)


def test_a_good_card_passes_and_compiles_nothing_in_200_requests(folder: Path) -> None:
    made = report(folder, soak_s=0.1)
    assert (made.verdict, made.failures, made.cpu_agreement, made.graphs_agree) == ("pass", [], 1.0, True)
    assert made.n_requests >= 200
    assert made.n_unwarmed == 0
    assert made.memory_bytes["used"] > 0


def test_graphs_that_compute_something_else_fail(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replay = CapturedGraphs.__call__

    def shifted(graphs: CapturedGraphs, *args: Any, bypass_hpu_graphs: bool = False) -> Any:
        output = replay(graphs, *args, bypass_hpu_graphs=bypass_hpu_graphs)
        return output if bypass_hpu_graphs else output.roll(1, -1)

    monkeypatch.setattr(CapturedGraphs, "__call__", shifted)
    made = report(folder)
    assert made.verdict == "fail"
    assert "captured steps and uncaptured ones give different tokens" in made.failures


def test_a_mask_that_is_wrong_in_one_slot_fails(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = Columns.decode_inputs

    def forgetful(columns: Columns, rows: Any) -> Any:
        ids, mask, positions, token_idx = inputs(columns, rows)
        mask[2, : int(token_idx) - 1] = 0
        return ids, mask, positions, token_idx

    monkeypatch.setattr(Columns, "decode_inputs", forgetful)
    made = report(folder)
    assert made.verdict == "fail"
    assert "are those of the CPU" in made.failures[0]


def test_a_card_that_compiles_while_it_serves_fails(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    n_compiled = DoubleLibrary.n_compilations
    calls = []

    def growing(library: DoubleLibrary) -> int:
        calls.append(1)
        return n_compiled(library) + (len(calls) // 200)

    monkeypatch.setattr(DoubleLibrary, "n_compilations", growing)
    made = report(folder, soak_s=0.1)
    assert made.verdict == "fail"
    assert made.n_unwarmed > 0
