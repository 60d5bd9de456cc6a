"""The small JSON files of a local model folder."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from common.errors import StartError


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """The object in `folder/name`, empty when there is no such file; raises `StartError` when it is no JSON object."""
    path = folder / name
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise StartError(f"{path} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise StartError(f"{path} is not a JSON object")
    return content


def n_weights(folder: Path) -> int:
    """How many numbers the safetensors files of `folder` hold, read from their headers."""
    return sum(_n_weights_of(path) for path in folder.glob("*.safetensors"))


def eos_ids(folder: Path) -> frozenset[int]:
    """The ids that end a text: of generation_config.json, else config.json, else the tokenizer's EOS token."""
    for name in ("generation_config.json", "config.json"):
        value = read_json(folder, name).get("eos_token_id")
        if value is not None:
            return frozenset([value] if isinstance(value, int) else value)
    return _tokenizer_eos(folder)


def _tokenizer_eos(folder: Path) -> frozenset[int]:
    token = read_json(folder, "tokenizer_config.json").get("eos_token")
    text = token.get("content") if isinstance(token, dict) else token
    added = read_json(folder, "tokenizer.json").get("added_tokens", [])
    return frozenset(entry["id"] for entry in added if entry["content"] == text)


def _n_weights_of(path: Path) -> int:
    """A safetensors file starts with the length of its JSON header (8 bytes, little-endian), then the header."""
    with path.open("rb") as file:
        try:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
            return sum(math.prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")
        except (ValueError, MemoryError, OverflowError, KeyError, AttributeError):
            raise StartError(f"{path} is no safetensors file, or cut short") from None
