"""Every `docker run` line of TGI's Neuron page: its arguments and variables start `tokenfarm serve` with the right shapes.

`/data` is a folder here.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.neuron.doubles import exported
from tests.parity.tiny import tiny_model
from tests.start import documented
from tests.start.documented import hub
from tests.start.farm import Run, tokenfarm
from workers.engines.oracle import N_WORDS, write_model

pytestmark = pytest.mark.contract_neuron

COMMON = "-p 8080:80 -v $(pwd)/data:/data --privileged -e HF_TOKEN=${HF_TOKEN}"
IMAGE = "ghcr.io/huggingface/text-generation-inference:<VERSION>-neuron"


def served(line: str, **env: str) -> AbstractContextManager[tuple[Run, dict[str, Any]]]:
    return documented.served(line, IMAGE, FARM_BACKEND="neuron-double", **env)


def test_a_standard_model_of_the_hub(tmp_path: Path) -> None:
    folder = tmp_path / "llama"
    tiny_model("llama", vocab_size=N_WORDS, max_position_embeddings=8192).save_pretrained(folder)
    config = (folder / "config.json").read_bytes()
    write_model(folder)
    (folder / "config.json").write_bytes(config)
    (folder / "generation_config.json").write_text('{"eos_token_id": 1}')
    line = (
        f'docker run {COMMON} -e HF_AUTO_CAST_TYPE="fp16" -e HF_NUM_CORES=2 {IMAGE} --model-id meta-llama/Meta-Llama-3-8B '
        "--max-batch-size 1 --max-input-length 3164 --max-total-tokens 4096"
    )
    with hub("meta-llama/Meta-Llama-3-8B", folder) as env, served(line, **env) as (run, info):
        assert "Loading batch_size 1, sequence_length 4096, 2 cores, float16 on cores 0-1" in run.text
        assert (info["model_id"], info["max_input_tokens"], info["max_total_tokens"]) == ("meta-llama/Meta-Llama-3-8B", 3164, 4096)


def test_a_model_exported_to_a_local_path(tmp_path: Path) -> None:
    exported(tmp_path / "neuron_model", batch_size=4, sequence_length=2048)
    line = f"docker run -p 8080:80 -v $(pwd)/data:/data --privileged {IMAGE} --model-id {tmp_path}/neuron_model"
    with served(line) as (run, info):
        assert "Loading batch_size 4, sequence_length 2048, 2 cores, bfloat16 on cores 0-1" in run.text
        assert (info["max_input_tokens"], info["max_total_tokens"]) == (2047, 2048)


def test_a_neuron_model_of_the_hub(tmp_path: Path) -> None:
    folder = exported(tmp_path / "model", sequence_length=1024)
    (folder / "model.pt").write_bytes(b"compiled graphs")
    line = f"docker run {COMMON} {IMAGE} --model-id organization/neuron-model"
    with hub("organization/neuron-model", folder) as env, served(line, **env) as (run, info):
        assert "Loading batch_size 4, sequence_length 1024" in run.text
        assert (info["model_id"], info["max_total_tokens"]) == ("organization/neuron-model", 1024)


def test_only_the_first_device_mapped(tmp_path: Path) -> None:
    """`--device=/dev/neuron0`: two cores, so what needs more is refused with both numbers."""
    exported(tmp_path / "model", tp_degree=8)
    run = tokenfarm(
        "serve", "--model-id", str(tmp_path / "model"), FARM_BACKEND="neuron-double", FARM_DOUBLE="n_cores=2", PORT="0"
    )  # fmt: skip
    try:
        assert run.process.wait(60) == 2, run.text
        assert "tensor-parallel degree 8 needs 8 cores, 2 can be used by this worker" in run.text
    finally:
        run.close()


def test_listing_the_service_parameters() -> None:
    run = tokenfarm("serve", "--help")
    try:
        assert run.process.wait(30) == 0
        for name in ("--model-id", "--max-batch-size", "--max-input-tokens", "--max-total-tokens", "--max-batch-prefill-tokens"):
            assert name in run.text
    finally:
        run.close()


def test_the_rules_of_the_page_as_one_setting_each(tmp_path: Path) -> None:
    """§ Choosing service parameters: batch size, length and prefill budget as the page says to give them."""
    exported(tmp_path / "model")
    line = (
        f"docker run {COMMON} {IMAGE} --model-id {tmp_path}/model --max-batch-size 4 --max-input-length 256 --max-total-tokens 512 "
        "--max-batch-prefill-tokens 1024"
    )
    with served(line) as (run, info):
        assert run.text.count("MAX_BATCH_PREFILL_TOKENS has no effect on Neuron") == 1
        assert (info["max_input_tokens"], info["max_total_tokens"]) == (256, 512)


@pytest.mark.parametrize("words", ["--max-batch-size 16", "--max-total-tokens 4096"])
def test_what_the_page_says_must_be_equal_stops_the_start_when_it_is_not(tmp_path: Path, words: str) -> None:
    exported(tmp_path / "model")
    run = tokenfarm("serve", "--model-id", str(tmp_path / "model"), *words.split(), FARM_BACKEND="neuron-double", PORT="0")
    try:
        assert run.process.wait(60) == 2, run.text
        assert "but the model was compiled with" in run.text
    finally:
        run.close()
