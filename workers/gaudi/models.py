"""How each model type is served on Gaudi, as `make parity` found out: through optimum-habana's class, a stock one, or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from common.errors import StartError
from workers.model_files import read_json
from workers.supported import CHANGES_WITH_LENGTH

TABLE = Path(__file__).with_suffix(".json")

HABANA, STOCK, CPU_ONLY, REMOTE_CODE, VISION = "habana", "stock", "cpu only", "remote code", "part J"
"""The ways; the first two are served."""

SLIDING = frozenset({"cohere2", "gemma2", "gemma3_text", "mistral"})
"""Types with a window of `DEFAULT_WINDOW` tokens when their configuration names none."""

DEFAULT_WINDOW = 4096


EXPERTS = frozenset({"deepseek_v2", "deepseek_v3", "mixtral", "qwen2_moe", "qwen3_moe"})
"""Types whose stock class chooses its experts on the host."""


class Row(NamedTuple):
    """A model type: the reason says why not the way before it, `fused` which attention gives the right tokens: both, always or never."""

    way: str
    reason: str = ""
    fused: str = "both"


@cache
def types() -> dict[str, Row]:
    """model_type → its row."""
    return {model_type: Row(**row) for model_type, row in _table()["types"].items()}


def page() -> dict[str, str]:
    """Name on TGI's Gaudi page → model_type, in the page's order."""
    names: dict[str, str] = _table()["page"]
    return names


def served() -> dict[str, Row]:
    """Only the types that a card serves."""
    return {model_type: row for model_type, row in types().items() if row.way in (HABANA, STOCK)}


def way_of(folder: Path) -> str:
    """`habana` or `stock`; raises `StartError` (exit 2) with the reason and the list for anything else."""
    config = read_json(folder, "config.json")
    if not config:
        raise StartError(f"{folder} has no config.json: not a model in transformers' format")
    model_type = str(config.get("model_type", ""))
    lost = setting_lost(model_type, config)
    reason = _reason_against(model_type, config) or (f"optimum-habana gets its {lost} wrong" if lost and model_type in EXPERTS else None)
    if reason:
        raise StartError(f"the Gaudi engine does not serve this model: {reason}; supported model types: {', '.join(sorted(served()))}")
    return STOCK if lost else types()[model_type].way


def setting_lost(model_type: str, config: Mapping[str, Any]) -> str:
    """A setting that optimum-habana 1.21.2 ignores or gets wrong for this type, empty when there is none."""
    if model_type in ("llama", "mistral", "mixtral") and _scaling(config) == "linear":
        return "linear rotary scaling"
    if model_type == "llama" and config.get("head_dim") and config["head_dim"] * config["num_attention_heads"] != config["hidden_size"]:
        return "head_dim"
    if model_type == "gpt2" and (config.get("scale_attn_by_inverse_layer_idx") or config.get("scale_attn_weights") is False):
        return "scaling of attention scores"
    if model_type == "mixtral" and config.get("sliding_window"):
        return "sliding window"
    return "layers without experts" if config.get("mlp_only_layers") else ""


def require_window(config: Mapping[str, Any], max_length: int) -> None:
    """Raises `StartError` unless a sliding window holds the longest row: on a shared column nothing knows a token's distance."""
    window = config.get("sliding_window", DEFAULT_WINDOW if config.get("model_type") in SLIDING else None)
    if config.get("use_sliding_window") is False or not window or window >= max_length:
        return
    raise StartError(
        f"this model attends to the last {window} tokens only, which the Gaudi engine cannot do in rows of {max_length}: "
        f"--max-total-tokens {window}"
    )


def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(TABLE.read_text())
    return table


def _reason_against(model_type: str, config: Mapping[str, Any]) -> str | None:
    row = types().get(model_type)
    if row is None:
        return f"model type {model_type!r} has not passed the parity test"
    if row.way not in (HABANA, STOCK):
        return f"model type {model_type!r}: {row.reason}" if row.way == VISION else f"model type {model_type!r} is {row.way}: {row.reason}"
    if config.get("alibi"):
        return "its ALiBi positions have not passed the parity test"
    if _scaling(config) in CHANGES_WITH_LENGTH:
        return f"its rotary scaling {_scaling(config)!r} changes with the length of the longest row"
    return None


def _scaling(config: Mapping[str, Any]) -> str | None:
    rope = config.get("rope_scaling") or {}
    kind: str | None = rope.get("rope_type", rope.get("type"))
    return kind
