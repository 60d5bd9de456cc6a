"""Whether weights and cache fit the cores, before anything is loaded (neuron.md §4.6)."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from common.errors import StartError
from workers.model_files import n_weights, read_json
from workers.neuron.artifact import Artifact

FULL = 0.95
"""Share of a core's memory above which a load is refused: the runtime, scratch space and the graphs need the rest."""

ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}

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
    """Weights of one core: of the checkpoint's files when they are here, else what the configuration implies."""
    n_numbers = n_weights(folder) or _implied_weights(config)
    return n_numbers * ITEM_BYTES[artifact.dtype] / artifact.tp_degree


def row_bytes(config: dict[str, Any], artifact: Artifact) -> int:
    """Keys and values of one row on one core; heads that cannot be split are copied to every core."""
    n_heads = int(config["num_attention_heads"])
    head_dim = int(config.get("head_dim") or config["hidden_size"] // n_heads)
    n_kv_heads = math.ceil(int(config.get("num_key_value_heads") or n_heads) / artifact.tp_degree)
    n_numbers = 2 * int(config["num_hidden_layers"]) * n_kv_heads * head_dim * artifact.sequence_length
    return n_numbers * ITEM_BYTES[artifact.dtype]


def text_config(folder: Path) -> dict[str, Any]:
    """The language model's part of config.json; raises `StartError` when the sizes are missing."""
    config = read_json(folder, "config.json")
    config = config.get("text_config") or config
    missing = [name for name in ("hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size") if name not in config]
    if missing:
        raise StartError(f"{folder / 'config.json'} has no {missing[0]}: not a decoder that runs on Neuron")
    return config


def _implied_weights(config: dict[str, Any]) -> float:
    """Embedding, attention and gated feed-forward of a Llama-like decoder, with all its experts."""
    hidden, n_heads = config["hidden_size"], config["num_attention_heads"]
    head_dim = config.get("head_dim") or hidden // n_heads
    n_kv_heads = config.get("num_key_value_heads") or n_heads
    attention = hidden * head_dim * 2 * (n_heads + n_kv_heads)
    n_experts = config.get("num_local_experts") or config.get("num_experts") or 1
    feed_forward = 3 * hidden * (config.get("moe_intermediate_size") or config.get("intermediate_size") or 4 * hidden) * n_experts
    tied = 1 if config.get("tie_word_embeddings") else 2
    return float(config["num_hidden_layers"] * (attention + feed_forward) + tied * config["vocab_size"] * hidden)
