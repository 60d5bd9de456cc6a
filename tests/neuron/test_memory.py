from __future__ import annotations

import json
from pathlib import Path

import pytest

from common.errors import StartError
from workers.neuron.artifact import Artifact
from workers.neuron.memory import require_fit, row_bytes, text_config, weight_bytes

LLAMA_8B = {
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}
GIB = 2**30


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    return tmp_path


def test_sizes_of_a_known_model(folder: Path) -> None:
    artifact = Artifact(1, 4096, 2, "bfloat16", 4096)
    assert weight_bytes(folder, LLAMA_8B, artifact) == pytest.approx(8.03e9, rel=0.01)
    assert row_bytes(LLAMA_8B, artifact) == 2 * 32 * 4 * 128 * 4096 * 2


def test_heads_that_cannot_be_split_are_on_every_core(folder: Path) -> None:
    wide, wider = Artifact(1, 4096, 8, "bfloat16", 4096), Artifact(1, 4096, 32, "bfloat16", 4096)
    assert row_bytes(LLAMA_8B, wide) == row_bytes(LLAMA_8B, wider)


def test_too_many_rows_name_all_numbers_and_the_largest_batch_that_fits(folder: Path) -> None:
    artifact = Artifact(64, 4096, 2, "bfloat16", 4096, True)
    with pytest.raises(StartError) as refusal:
        require_fit(folder, artifact, 16 * GIB)
    assert refusal.value.code == 8
    assert str(refusal.value) == (
        "out of device memory: batch_size 64, sequence_length 4096 and tp_degree 2 need 23.5 GiB a core, "
        "allowed is 95% of 16 GiB; the largest batch_size that fits is 30"
    )
    require_fit(folder, artifact._replace(batch_size=30), 16 * GIB)
    with pytest.raises(StartError):
        require_fit(folder, artifact._replace(batch_size=31), 16 * GIB)


def test_weights_that_do_not_fit_at_all(folder: Path) -> None:
    with pytest.raises(StartError, match="not even one row fits"):
        require_fit(folder, Artifact(1, 4096, 1, "bfloat16", 4096), 16 * GIB)


def test_the_language_part_of_a_nested_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"text_config": LLAMA_8B}))
    assert text_config(tmp_path) == LLAMA_8B
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(StartError, match="has no hidden_size"):
        text_config(tmp_path)
