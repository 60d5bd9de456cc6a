"""The model types that the CPU engine serves: those whose parity with `transformers` was shown (`make parity` writes the table)."""

from __future__ import annotations

import json
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from common.errors import StartError
from workers.model_files import read_json

TABLE = Path(__file__).with_suffix(".json")

LAYERED = frozenset({"cohere2", "gemma2", "gemma3_text", "qwen2", "qwen2_moe", "qwen3", "smollm3"})
"""Types whose code takes one mask per layer type, as a dict."""

CHANGES_WITH_LENGTH = frozenset({"dynamic", "longrope"})
"""Rotary scalings that change all rows once one row passes the original length."""


@cache
def supported_types() -> dict[str, dict[str, str]]:
    """model_type → its class, dtype and result of the last `make parity`; only types whose result is `equal`."""
    rows: dict[str, dict[str, str]] = _table()["types"]
    return {model_type: row for model_type, row in rows.items() if row["result"] == "equal"}


def require_supported(folder: Path) -> str:
    """The model_type of the config in `folder`; raises `StartError` (exit 2) with the reason and the list when it cannot be served.

    An older major version of `transformers` than the table's is refused too: some types give other tokens there.
    """
    shown, installed = _table()["transformers"], metadata.version("transformers")
    if int(installed.split(".")[0]) < int(shown.split(".")[0]):
        raise StartError(f"the CPU engine needs transformers {shown.split('.')[0]}, installed is {installed}")
    config = read_json(folder, "config.json")
    if not config:
        raise StartError(f"{folder} has no config.json: not a model in transformers' format")
    model_type = str(config.get("model_type", ""))
    reason = _reason_against(model_type, config)
    if reason:
        raise StartError(
            f"the CPU engine does not serve this model: {reason}; supported model types: {', '.join(sorted(supported_types()))}"
        )
    return model_type


def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(TABLE.read_text())
    return table


def _reason_against(model_type: str, config: dict[str, Any]) -> str | None:
    if config.get("quantization_config"):
        return f"its weights are quantized ({config['quantization_config'].get('quant_method', 'unknown method')})"
    if config.get("is_encoder_decoder"):
        return f"model type {model_type!r} is an encoder-decoder"
    if model_type == "bloom" or config.get("alibi"):
        return "its ALiBi positions need one unpadded mask for the whole batch, the rows of a static batch have their own"
    if model_type not in supported_types():
        return f"model type {model_type!r} has not passed the parity test"
    return None
