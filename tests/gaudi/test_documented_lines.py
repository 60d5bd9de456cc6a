"""Every `docker run` line of TGI's Gaudi page and of the files it links to, word for word: it starts with the right shapes, or is
refused with one line that says why. `/data` is a folder here, the card is the double.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.neuron.doubles import plain, write_config
from tests.start import documented
from tests.start.documented import hub

pytestmark = pytest.mark.contract_gaudi

RELEASED = "ghcr.io/huggingface/text-generation-inference:3.3.5-gaudi"
BUILT = "tgi-gaudi"
LLAMA = "meta-llama/Meta-Llama-3.1-8B-Instruct"

BASIC = """docker run --runtime=habana --cap-add=sys_nice --ipc=host \\
    -p 8080:80 -v $volume:/data -e HF_TOKEN=$hf_token \\
    ghcr.io/huggingface/text-generation-inference:3.3.5-gaudi \\
    --model-id $model"""

SHARDED = """docker run --runtime=habana --ipc=host --cap-add=sys_nice \\
    -p 8080:80 -v $volume:/data -e HF_TOKEN=$hf_token \\
    tgi-gaudi \\
    --model-id $model --sharded true --num-shard 8"""

VISION = """docker run -p 8080:80 \\
   --runtime=habana \\
   --cap-add=sys_nice \\
   --ipc=host \\
   -v $volume:/data \\
   ghcr.io/huggingface/text-generation-inference:3.3.5-gaudi \\
   --model-id $model \\
   --max-input-tokens 4096 --max-batch-prefill-tokens 16384 \\
   --max-total-tokens 8192 --max-batch-size 4"""

FROM_SOURCE = """docker run --runtime=habana --ipc=host --cap-add=sys_nice \\
    -p 8080:80 -v $volume:/data -e HF_TOKEN=$hf_token \\
    tgi-gaudi \\
    --model-id $model"""

README_ONE_CARD = """docker run --runtime=habana --ipc=host --cap-add=sys_nice \\
  -p 8080:80 -v $volume:/data \\
  -e LOG_LEVEL=debug -e HF_TOKEN=$hf_token \\
  tgi-gaudi --model-id $model \\
  --max-input-tokens 512 --max-total-tokens 1024 --max-batch-size 4 --max-batch-prefill-tokens 2048"""

VALIDATED_8B = """docker run -p 8080:80 \\
   --runtime=habana \\
   --cap-add=sys_nice \\
   --ipc=host \\
   -v $volume:/data \\
   -e HF_TOKEN=$hf_token \\
   ghcr.io/huggingface/text-generation-inference:3.3.5-gaudi \\
   --model-id $model \\
   --max-input-tokens 1024 --max-total-tokens 2048 \\
   --max-batch-prefill-tokens 2048 --max-batch-size 32 \\
   --max-waiting-tokens 7 --waiting-served-ratio 1.2 --max-concurrent-requests 64"""

FP8_8B = """docker run -p 8080:80 \\
   --runtime=habana \\
   --cap-add=sys_nice \\
   --ipc=host \\
   -v $volume:/data \\
   -e HF_TOKEN=$hf_token \\
   ghcr.io/huggingface/text-generation-inference:3.3.5-gaudi \\
   --model-id $model \\
   --kv-cache-dtype fp8_e4m3fn \\
   --max-input-tokens 1024 --max-total-tokens 2048 \\
   --max-batch-prefill-tokens 2048 --max-batch-size 32 \\
   --max-waiting-tokens 7 --waiting-served-ratio 1.2 --max-concurrent-requests 64"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint like the page's: a small Llama's configuration with long positions, the oracle's words."""
    folder = plain(tmp_path / "model")
    write_config(folder, max_position_embeddings=131072)
    return folder


@pytest.fixture
def asks_hub(folder: Path) -> Iterator[dict[str, str]]:
    with hub(LLAMA, folder) as env:
        yield {"FARM_BACKEND": "gaudi-double", **env}


def image_of(line: str) -> str:
    return RELEASED if RELEASED in line else f" {BUILT} "


def refused(line: str, folder: Path, **env: str) -> tuple[int, str]:
    line = line.replace("$model", str(folder))
    return documented.refused(line, image_of(line), **{"FARM_BACKEND": "gaudi-double", "HF_HOME": str(folder.parent / "hub"), **env})


@pytest.mark.parametrize("line", [BASIC, FROM_SOURCE], ids=["page", "built from source"])
def test_the_basic_line_with_the_batch_size_it_needs(line: str, asks_hub: dict[str, str]) -> None:
    """4096 is what a card takes when nothing is given (test_buckets); the double takes 512."""
    line = f"{line} --max-batch-size 8".replace("$model", LLAMA)
    with documented.served(line, image_of(line), **asks_hub, MAX_TOTAL_TOKENS="4096") as (run, info):
        assert "batch 8, length 4096, 23 prefills of up to 4096 tokens, steps over 128, 256, 512, 1024, 2048, 4096 columns" in run.text
        assert (info["model_id"], info["max_input_tokens"], info["max_total_tokens"]) == (LLAMA, 4095, 4096)


def test_the_basic_line_alone_wants_the_batch_size(folder: Path) -> None:
    """TGI too: `MAX_BATCH_SIZE is not set, it should be set in the launcher using --max-batch-size xxx`."""
    code, said = refused(BASIC, folder, FARM_BACKEND="gaudi")
    assert code == 2
    assert "--max-batch-size is required on Gaudi: the rows of the batch, a static shape, for example --max-batch-size 8" in said


def test_several_cards(folder: Path) -> None:
    code, said = refused(SHARDED, folder)
    assert code == 2
    assert (
        "--num-shard 8: one model on several Gaudi cards is not built yet; "
        "leave --sharded and --num-shard out, and run one worker for each card with WORKERS"
    ) in said


def test_a_vision_model(folder: Path) -> None:
    write_config(folder, model_type="llava_next", architectures=["LlavaNextForConditionalGeneration"])
    code, said = refused(VISION, folder)
    assert code == 2
    assert "the Gaudi engine does not serve this model: model type 'llava_next': images are not served yet; supported model types: " in said


def test_the_shapes_of_the_vision_line(folder: Path, asks_hub: dict[str, str]) -> None:
    """MAX_BATCH_PREFILL_TOKENS is rows × MAX_INPUT_TOKENS: four rows of the longest prompt."""
    with documented.served(VISION.replace("$model", LLAMA), RELEASED, **asks_hub) as (run, info):
        assert "batch 4, length 8192, 27 prefills of up to 4096 tokens" in run.text
        assert (info["max_input_tokens"], info["max_total_tokens"]) == (4096, 8192)


def test_fp8_checkpoints(folder: Path) -> None:
    write_config(folder, quantization_config={"quant_method": "fp8"})
    code, said = refused(FP8_8B, folder)
    assert code == 2
    assert f"{folder} is quantized (fp8): FP8 and other quantized weights are not built yet on Gaudi" in said


def test_fp8_by_inc(folder: Path) -> None:
    code, said = refused(BASIC, folder, QUANT_CONFIG="/quantization_config/maxabs_quant.json")
    assert code == 2
    assert "QUANT_CONFIG=/quantization_config/maxabs_quant.json: FP8 and other quantized weights are not built yet on Gaudi" in said


def test_the_line_of_the_backends_readme(asks_hub: dict[str, str]) -> None:
    line = README_ONE_CARD.replace("$model", LLAMA)
    with documented.served(line, image_of(line), **asks_hub) as (run, info):
        assert "batch 4, length 1024, 12 prefills of up to 512 tokens" in run.text
        assert (info["max_input_tokens"], info["max_total_tokens"]) == (512, 1024)


def test_the_validated_line_for_an_8b_model(asks_hub: dict[str, str]) -> None:
    with documented.served(VALIDATED_8B.replace("$model", LLAMA), RELEASED, **asks_hub) as (run, info):
        assert "batch 32, length 2048, 16 prefills of up to 1024 tokens, steps over 128, 256, 512, 1024, 2048 columns" in run.text
        assert run.text.count("LIMIT_HPU_GRAPH=true: prefills are compiled, not captured") == 1
        assert (info["max_input_tokens"], info["max_total_tokens"], info["max_concurrent_requests"]) == (1024, 2048, 64)


def test_the_pages_variables(folder: Path, asks_hub: dict[str, str]) -> None:
    """`add -e in docker run command`, with the page's True and False."""
    given = "-e LIMIT_HPU_GRAPH=False -e SKIP_TOKENIZER_IN_TGI=True -e VLLM_SKIP_WARMUP=True "
    line = README_ONE_CARD.replace("-e LOG_LEVEL=debug ", given).replace("$model", LLAMA)
    with documented.served(line, image_of(line), **asks_hub) as (run, info):
        assert "LIMIT_HPU_GRAPH=false: prefills are captured, which takes memory" in run.text
        assert "Cold worker=" in run.text
        assert info["max_total_tokens"] == 1024


def test_a_second_worker_needs_a_second_card(folder: Path) -> None:
    code, said = refused(README_ONE_CARD, folder, FARM_DOUBLE="n_cards=1", WORKERS="2")
    assert code == 4
    assert "worker 2 of 2 has no card: here are 1 (module 0); set WORKERS=1" in said
