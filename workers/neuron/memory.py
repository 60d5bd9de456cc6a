"""Whether weights and cache fit the cores, before anything is loaded (neuron.md §4.6)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from common.errors import StartError
from workers.decoder_size import ITEM_BYTES, count_weights, sizes
from workers.model_files import read_json
from workers.neuron.artifact import Artifact

FULL = 0.95
"""Share of a core's memory above which a load is refused: the runtime, scratch space and the graphs need the rest."""

OUT_OF_MEMORY = 8
"""Exit status."""


def require_fit(folder: Path, artifact: Artifact, core_bytes: int) -> None:
    """Raises `StartError` naming B, L, tp and the largest B that fits when a core would hold too much."""
    config = text_config(folder)
    weights = weight_bytes(folder, config, artifact)
    row = row_bytes(config, artifact)
    room = FULL * core_bytes - weights
    if artifact.batch_size * row <= room:
        return
    fitting = max(0, math.floor(room / row))
    raise StartError(refusal(artifact, weights + artifact.batch_size * row, core_bytes, fitting), OUT_OF_MEMORY)


def refusal(artifact: Artifact, needed_bytes: float, core_bytes: int, fitting: int) -> str:
    """The line for too little device memory."""
    advice = f"the largest batch_size that fits is {fitting}" if fitting else "not even one row fits: export it for more cores"
    return (
        f"out of device memory: batch_size {artifact.batch_size}, sequence_length {artifact.sequence_length} and tp_degree "
        f"{artifact.tp_degree} need {needed_bytes / 2**30:.1f} GiB a core, allowed is {FULL:.0%} of {core_bytes / 2**30:.0f} GiB; {advice}"
    )


def weight_bytes(folder: Path, config: dict[str, Any], artifact: Artifact) -> float:
    """Weights of one core."""
    size = sizes(config)
    assert size is not None, "checked by `text_config`"
    return count_weights(folder, size) * ITEM_BYTES[artifact.dtype] / artifact.tp_degree


def row_bytes(config: dict[str, Any], artifact: Artifact) -> int:
    """Keys and values of one row on one core; heads that cannot be split are copied to every core."""
    size = sizes(config)
    assert size is not None, "checked by `text_config`"
    of_core = size._replace(n_kv_heads=math.ceil(size.n_kv_heads / artifact.tp_degree))
    return of_core.n_layers * of_core.kv_width * artifact.sequence_length * ITEM_BYTES[artifact.dtype]


def text_config(folder: Path) -> dict[str, Any]:
    """The language model's part of config.json; raises `StartError` when the sizes are missing."""
    config = read_json(folder, "config.json")
    config = config.get("text_config") or config
    missing = [name for name in ("hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size") if name not in config]
    if missing:
        raise StartError(f"{folder / 'config.json'} has no {missing[0]}: not a decoder that runs on Neuron")
    return config
