"""Everything is deduced from the artifact; a setting that contradicts it stops the start naming both numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from common.config import Settings
from common.errors import StartError
from common.shapes import Bucket
from workers.neuron.artifact import Artifact, Wanted, parse, read_artifact, require_agreement, wanted
from workers.neuron.graphs import ShapeNotCompiled, graphs, require_compiled, shape_of

ARTIFACT = Artifact(8, 4096, 2, "bfloat16", 4096, continuous_batching=True)


def asked(**env: str) -> Wanted:
    return wanted(Settings.from_env(env))


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"MAX_BATCH_SIZE": "16"}, ("MAX_BATCH_SIZE=16", "batch_size 8", "--batch_size 16")),  # TGI #3248
        ({"MAX_BATCH_SIZE": "4"}, ("MAX_BATCH_SIZE=4", "batch_size 8")),  # TGI #3299
        ({"HF_BATCH_SIZE": "4"}, ("MAX_BATCH_SIZE=4", "batch_size 8")),
        ({"MAX_TOTAL_TOKENS": "2048"}, ("MAX_TOTAL_TOKENS=2048", "sequence_length 4096")),
        ({"HF_SEQUENCE_LENGTH": "8192"}, ("MAX_TOTAL_TOKENS=8192", "sequence_length 4096")),
        ({"HF_NUM_CORES": "8"}, ("HF_NUM_CORES=8", "tp_degree 2")),
        ({"HF_AUTO_CAST_TYPE": "fp16"}, ("HF_AUTO_CAST_TYPE=float16", "dtype bfloat16")),
        ({"DTYPE": "float32"}, ("HF_AUTO_CAST_TYPE=float32", "dtype bfloat16")),
    ],
)
def test_a_setting_that_contradicts_the_artifact_names_both(env: dict[str, str], words: tuple[str, ...]) -> None:
    with pytest.raises(StartError) as refusal:
        require_agreement(ARTIFACT, asked(**env))
    assert refusal.value.code == 2
    assert all(word in str(refusal.value) for word in words), str(refusal.value)


def test_settings_that_agree_or_say_nothing_pass() -> None:
    require_agreement(ARTIFACT, asked())
    agreeing = {"MAX_BATCH_SIZE": "8", "MAX_TOTAL_TOKENS": "4096", "HF_NUM_CORES": "2", "HF_AUTO_CAST_TYPE": "bf16"}
    require_agreement(ARTIFACT, asked(**agreeing), max_input_tokens=4095)


def test_prompts_must_leave_room_for_one_token() -> None:
    with pytest.raises(StartError, match=r"MAX_INPUT_TOKENS=4096 must be less than the sequence_length 4096"):
        require_agreement(ARTIFACT, asked(), max_input_tokens=4096)


def test_two_names_of_the_precision_must_agree() -> None:
    assert asked(HF_AUTO_CAST_TYPE="bf16", DTYPE="bfloat16").dtype == "bfloat16"
    with pytest.raises(StartError, match="HF_AUTO_CAST_TYPE=fp16 and DTYPE=bfloat16"):
        asked(HF_AUTO_CAST_TYPE="fp16", DTYPE="bfloat16")


def test_h14_several_rows_without_continuous_batching_are_refused() -> None:
    static = ARTIFACT._replace(continuous_batching=False)
    with pytest.raises(StartError, match="continuous_batching"):
        require_agreement(static, asked())
    require_agreement(static._replace(batch_size=1), asked())  # TGI PR #3273


def fields(**more: Any) -> dict[str, Any]:
    return {"batch_size": 4, "sequence_length": 128, "tp_degree": 2, "torch_dtype": "bfloat16", **more}


def test_what_a_config_leaves_out_has_the_librarys_defaults(tmp_path: Path) -> None:
    assert read_artifact(tmp_path) is None
    (tmp_path / "neuron_config.json").write_text(json.dumps(fields()))
    assert read_artifact(tmp_path) == Artifact(4, 128, 2, "bfloat16", 128)


@pytest.mark.parametrize("broken", [{}, {"batch_size": None}, {"batch_size": 1}])
def test_a_config_of_another_kind_is_one_line(broken: dict[str, Any]) -> None:
    with pytest.raises(StartError, match=r"neuron_config\.json is not that of a text generation model"):
        parse(broken)


def test_one_bucket_of_the_context_length() -> None:
    shape = shape_of(ARTIFACT._replace(max_context_length=1024))
    assert (shape.batch_size, shape.max_length, shape.buckets, shape.min_prefill) == (8, 4096, (Bucket(1, 1024),), 2)


def test_chunks_fill_the_whole_row() -> None:
    artifact = ARTIFACT._replace(prefill_chunk_size=1500)
    assert [bucket.length for bucket in shape_of(artifact).buckets] == [1500, 3000, 4096]
    assert set(graphs(artifact)) == {"chunk", "decode"} and graphs(artifact)["chunk"][0] == ((1, 1500), "int32")


def test_only_compiled_shapes_and_types_pass() -> None:
    import torch

    table = graphs(ARTIFACT)
    good = [torch.zeros(8, 1, dtype=torch.int32)] * 2 + [torch.arange(8, dtype=torch.int32), torch.ones(8, 3)]
    require_compiled("decode", good, table)
    for index, bad in ((0, torch.zeros(7, 1, dtype=torch.int32)), (2, torch.arange(8)), (3, torch.ones(8, 3, dtype=torch.int64))):
        with pytest.raises(ShapeNotCompiled, match="decode: got"):
            require_compiled("decode", [*good[:index], bad, *good[index + 1 :]], table)
    with pytest.raises(ShapeNotCompiled):
        require_compiled("prefill", good[:3], table)
