"""The examples are read as a shell would: what they export is what they serve, on the devices they name, within memory."""

from __future__ import annotations

import json
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from common.config import Settings
from tests.farm import ROOT
from workers.neuron.artifact import Artifact, require_agreement, wanted
from workers.neuron.cores import CORE_BYTES, CORES_PER_DEVICE, claim, require_degree
from workers.neuron.memory import require_fit

EXAMPLES = sorted((ROOT / "deploy/examples/neuron").glob("*.sh"))
SIZES: dict[str, tuple[int, int, int, int, int, int, int]] = {
    "granite": (49155, 4096, 12800, 40, 32, 8, 1),
    "llama": (128256, 4096, 14336, 32, 32, 8, 1),
    "mixtral": (32000, 4096, 14336, 32, 32, 8, 8),
    "phi3": (32064, 3072, 8192, 32, 32, 32, 1),
    "qwen2": (152064, 3584, 18944, 28, 28, 4, 1),
    "qwen3": (151936, 4096, 12288, 36, 32, 8, 1),
    "qwen3_moe": (151936, 2048, 768, 48, 32, 4, 128),
    "smollm3": (128256, 2048, 11008, 36, 16, 4, 1),
}
"""Family → vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, num_key_value_heads, experts."""


def commands(path: Path) -> list[list[str]]:
    """The words of each line, joined over backslashes."""
    lines = path.read_text().replace("\\\n", " ").splitlines()
    return [shlex.split(line) for line in lines if line.startswith(("exec docker", "["))]


def after(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


def test_there_is_one_example_for_each_family() -> None:
    assert [path.stem for path in EXAMPLES] == sorted(SIZES)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_exports_what_it_serves(path: Path, tmp_path: Path) -> None:
    subprocess.run(["sh", "-n", str(path)], check=True)
    assert path.stat().st_mode & 0o111
    export, serve = commands(path)
    rows, length, degree = (int(after(export, f"--{name}")) for name in ("batch_size", "sequence_length", "tensor_parallel_size"))
    artifact = Artifact(rows, length, degree, "bfloat16", length, rows > 1)
    settings = Settings.from_env({}, serve[serve.index("$IMAGE") + 1 :])
    require_agreement(artifact, wanted(settings), settings.max_input_tokens)
    assert export[-1] == settings.model_id == f"/data/{path.stem}"
    devices = [word for word in serve if word.startswith("--device=")]
    assert devices == [word for word in export if word.startswith("--device=")]
    for instance in ("trn1", "inf2"):
        require_degree(instance, degree)
        claim(range(len(devices) * CORES_PER_DEVICE[instance]), degree)
        require_fit(_config(tmp_path, path.stem), artifact, CORE_BYTES[instance])


def _config(folder: Path, family: str) -> Path:
    sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers")
    names = (*sizes, "num_attention_heads", "num_key_value_heads", "num_experts")
    config: dict[str, Any] = dict(zip(names, SIZES[family], strict=True))
    (folder / "config.json").write_text(json.dumps(config))
    return folder
