"""The self-test passes on a device that works and fails on one that does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from common.config import Settings
from tests.neuron.doubles import exported
from tests.parity.tiny import tiny_model
from workers import selftest
from workers.engines.neuron_double import DoubleLibrary
from workers.neuron.counters import memory_bytes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported model with its plain weights beside."""
    folder = tmp_path_factory.mktemp("exported")
    exported(folder, sequence_length=64)
    tiny_model("llama").save_pretrained(folder)
    return folder


def report(folder: Path, **env: str) -> selftest.Report:
    return selftest.selftest(Settings.from_env({"FARM_BACKEND": "neuron-double", "MODEL_ID": str(folder), **env}), folder, soak_s=0.0)


def test_a_good_device_passes(folder: Path) -> None:
    made = report(folder)
    assert (made.verdict, made.failures, made.cpu_agreement) == ("pass", [], 1.0)
    assert (made.batch_size, made.max_length, made.n_shapes, made.n_rounds) == (4, 64, 2, 1)
    assert made.artifact["tp_degree"] == 2 and made.tokens_per_s > 0


def test_without_plain_weights_the_cpu_is_not_asked(tmp_path: Path) -> None:
    made = report(exported(tmp_path / "model", sequence_length=64))
    assert (made.verdict, made.cpu_agreement) == ("pass", None)


@pytest.mark.parametrize(
    ("told", "words"),
    [("nan_at=105", "not a number"), ("fail_at=105,status=1006", "status 1006"), ("fail_at=105,status=101", "status 101")],
)
def test_a_bad_device_fails_with_a_reason(folder: Path, told: str, words: str) -> None:
    made = report(folder, FARM_DOUBLE=told)
    assert made.verdict == "fail" and words in " ".join(made.failures)


def test_slots_that_are_not_equal_fail(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers-neuronx #34: row 0 is right, the others are not."""
    load = DoubleLibrary.load

    def crooked(library: DoubleLibrary, folder: Path) -> Any:
        model: Any = load(library, folder)
        tokens = model.device.next_token
        model.device.next_token = lambda slot, prefix: tokens(slot, prefix[1:] if slot == 2 and len(prefix) > 1 else prefix)
        return model

    monkeypatch.setattr(DoubleLibrary, "load", crooked)
    made = report(folder)
    assert made.verdict == "fail" and "slots [2] differ from slot 0" in made.failures[0]


def test_the_command_prints_a_verdict_and_writes_one_file(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(selftest, "SOAK_S", 0.0)
    settings = Settings.from_env({"FARM_BACKEND": "neuron-double", "MODEL_ID": str(folder)}, ["--selftest"])
    assert selftest.main(settings) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("pass: ")
    assert json.loads((tmp_path / selftest.REPORT).read_text())["verdict"] == "pass"


def test_memory_by_core(tmp_path: Path) -> None:
    for core, category, n_bytes in ((0, "constants", 5), (0, "tensors", 7), (1, "tensors", 3)):
        place = tmp_path / f"sys/devices/virtual/neuron_device/neuron0/neuron_core{core}/stats/memory_usage/device_mem/{category}"
        place.mkdir(parents=True)
        (place / "present").write_text(f"{n_bytes}\n")
    assert memory_bytes(tmp_path) == {"neuron0/neuron_core0": 12, "neuron0/neuron_core1": 3}
