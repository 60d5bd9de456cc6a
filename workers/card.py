"""The model card a worker publishes: all that a gateway needs of a model, so that it never asks a hub (design §2, §5)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from common.errors import StartError
from common.messages import VERSION, Card
from common.shapes import Shape
from workers.model_files import read_json

if TYPE_CHECKING:
    from common.config import Settings

TOKENIZER_FILES = (
    "tokenizer_config.json",
    "special_tokens_map.json",
    "generation_config.json",
    "chat_template.jinja",
    "chat_template.json",
)

FINGERPRINT_HEX_DIGITS = 12

TAIL_BYTES = 4096


def build_card(
    settings: Settings, folder: Path, shape: Shape, *, vocab_size: int, precision: str = "", capabilities: Sequence[str] = (),
    max_top_k: int = 0,
) -> Card:  # fmt: skip
    """The card of the model in `folder` as served with `shape`; `precision` names the weights' data type, `max_top_k` 0 means any.

    Carries a tokenizer.json, converted when the model has only a slow tokenizer, unless the settings do without; raises `StartError`
    when there is none.
    """
    files = tokenizer_files(settings, folder)
    revision = _revision(folder)
    return Card(
        v=VERSION,
        model=settings.name,
        fingerprint=fingerprint(folder, files, precision),
        files=files,
        limits={
            "max_input_tokens": min(settings.max_input_tokens or shape.longest_input, shape.longest_input),
            "max_total_tokens": shape.max_length,
            "max_batch_size": shape.batch_size,
            "vocab_size": vocab_size,
            "max_top_k": max_top_k,
        },
        capabilities=tuple(capabilities),
        revision=revision or settings.revision or "",
        pipeline_tag="text-generation",
        tokenizer="none" if settings.skip_tokenizer_in_tgi else "",
    )


def tokenizer_files(settings: Settings, folder: Path) -> dict[str, bytes]:
    """tokenizer.json and what else decides prompts; where these are ids, only what may end a text.

    `settings.tokenizer_config_path` replaces the tokenizer_config.json, and a template in it any other.
    """
    if settings.skip_tokenizer_in_tgi:
        return {name: (folder / name).read_bytes() for name in ("generation_config.json",) if (folder / name).is_file()}
    files = {"tokenizer.json": _tokenizer_json(folder, settings.trust_remote_code)}
    files.update({name: (folder / name).read_bytes() for name in TOKENIZER_FILES if (folder / name).is_file()})
    if settings.tokenizer_config_path:
        try:
            files["tokenizer_config.json"] = config = Path(settings.tokenizer_config_path).read_bytes()
        except OSError as error:
            raise StartError(f"TOKENIZER_CONFIG_PATH={settings.tokenizer_config_path}: {error.strerror}") from None
        if b'"chat_template"' in config:
            files.pop("chat_template.jinja", None)
            files.pop("chat_template.json", None)
    return files


def fingerprint(folder: Path, files: dict[str, bytes], precision: str) -> str:
    """12 hex digits of what decides the tokens: checkpoint, tokenizer, chat template, weight precision.

    The checkpoint is a hub id with its commit, or a folder's config, index, and each weight file's size and last bytes.
    """
    digest = hashlib.sha256(precision.encode())
    for name in sorted(files):
        digest.update(f"\0{name}\0".encode() + files[name])
    revision = _revision(folder)
    if revision:
        digest.update(f"{folder.parent.parent.name}@{revision}".encode())
        return digest.hexdigest()[:FINGERPRINT_HEX_DIGITS]
    config = {key: value for key, value in read_json(folder, "config.json").items() if key not in ("transformers_version", "_name_or_path")}
    digest.update(json.dumps([config, read_json(folder, "model.safetensors.index.json")], sort_keys=True).encode())
    for path in sorted((*folder.glob("*.safetensors"), *folder.glob("*.bin"))):
        digest.update(f"\0{path.name}\0{path.stat().st_size}\0".encode() + _tail(path))
    return digest.hexdigest()[:FINGERPRINT_HEX_DIGITS]


def _revision(folder: Path) -> str:
    """The commit of a folder inside a hub cache, else nothing."""
    return folder.name if folder.parent.name == "snapshots" else ""


def _tail(path: Path) -> bytes:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        return file.read()


def _tokenizer_json(folder: Path, trust_remote_code: bool) -> bytes:
    path = folder / "tokenizer.json"
    if path.is_file():
        return path.read_bytes()
    from transformers import AutoTokenizer, PreTrainedTokenizerFast
    from transformers.convert_slow_tokenizer import convert_slow_tokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=trust_remote_code)
        fast = isinstance(tokenizer, PreTrainedTokenizerFast)
        backend = tokenizer.backend_tokenizer if fast else convert_slow_tokenizer(tokenizer)
    except (OSError, ValueError, ImportError, KeyError) as error:
        raise StartError(
            f"{folder} has no tokenizer that can be turned into a tokenizer.json: {' '.join(str(error).split())[:200]}"
        ) from None
    return str(backend.to_str()).encode()
