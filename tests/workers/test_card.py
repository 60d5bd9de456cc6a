"""The model card: what a gateway needs, and a fingerprint of exactly what decides the tokens."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from common.config import Settings
from common.errors import StartError
from common.messages import Card, decode, encode
from common.shapes import Bucket, Shape
from tests.parity.tiny import tiny_model
from workers.card import build_card

SHAPE = Shape(4, 128, (Bucket(1, 32), Bucket(1, 128)))
VOCAB = {"<unk>": 0, "a": 1, "b": 2, "ab": 3}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny model with a tokenizer, a template and two EOS ids."""
    path = tmp_path / "model"
    tiny_model("llama").save_pretrained(path)
    tokenizer = Tokenizer(models.BPE(vocab=VOCAB, merges=[("a", "b")], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    (path / "generation_config.json").write_text('{"eos_token_id": [1, 2]}')
    (path / "chat_template.jinja").write_text("{{ messages }}")
    return path


def card_of(folder: Path, precision: str = "bfloat16", **env: str) -> Card:
    settings = Settings.from_env({"MODEL_ID": str(folder), **env})
    return build_card(settings, folder, SHAPE, vocab_size=120, precision=precision, capabilities=("seed",))


def test_a_card_carries_files_limits_and_capabilities_over_the_wire(folder: Path) -> None:
    card = card_of(folder, FARM_SERVED_NAME="tiny")
    assert decode(Card, encode(card)) == card
    assert card.model == "tiny" and card.capabilities == ("seed",) and card.pipeline_tag == "text-generation"
    limits = {"max_input_tokens": 127, "max_total_tokens": 128, "max_batch_size": 4, "vocab_size": 120, "max_top_k": 0}
    assert card.limits == limits
    assert set(card.files) == {"tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"}
    assert card.files["chat_template.jinja"] == b"{{ messages }}"


def test_max_input_tokens_of_the_settings_wins(folder: Path) -> None:
    assert card_of(folder, MAX_INPUT_TOKENS="50").limits["max_input_tokens"] == 50


def test_the_fingerprint_is_the_same_for_a_copy_and_after_a_rewrite_of_the_config(folder: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(folder, tmp_path / "copy"))
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "transformers_version": "9.9"}))
    fingerprint = card_of(folder).fingerprint
    assert card_of(copy).fingerprint == fingerprint
    assert len(fingerprint) == 12 and int(fingerprint, 16) >= 0


def fine_tune(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file({name: torch.nextafter(weight, weight + 1) for name, weight in weights.items()}, folder / "model.safetensors")


CHANGES: dict[str, Callable[[Path], Any]] = {
    "config": lambda folder: (folder / "config.json").write_text('{"model_type": "llama", "rms_norm_eps": 0.5}'),
    "tokenizer": lambda folder: (folder / "tokenizer.json").write_text("{}"),
    "template": lambda folder: (folder / "chat_template.jinja").write_text("other"),
    "more weights": lambda folder: save_file({"x": torch.zeros(3)}, folder / "more.safetensors"),
    "same sizes, other weights": fine_tune,
}


@pytest.mark.parametrize("what", CHANGES)
def test_the_fingerprint_changes_with_whatever_decides_the_tokens(folder: Path, what: str) -> None:
    before = card_of(folder).fingerprint
    CHANGES[what](folder)
    assert card_of(folder).fingerprint != before


def test_the_fingerprint_changes_with_the_precision(folder: Path) -> None:
    assert card_of(folder, "float32").fingerprint != card_of(folder, "bfloat16").fingerprint


def test_a_hub_snapshot_is_known_by_its_commit(folder: Path, tmp_path: Path) -> None:
    cards = []
    for repository, commit in (("models--acme--tiny", "1" * 40), ("models--acme--tiny", "2" * 40), ("models--acme--big", "1" * 40)):
        snapshot = tmp_path / repository / "snapshots" / commit
        cards.append(card_of(Path(shutil.copytree(folder, snapshot))))
    assert [card.revision for card in cards] == ["1" * 40, "2" * 40, "1" * 40]
    assert len({card.fingerprint for card in cards}) == 3


def test_another_tokenizer_config_replaces_the_models_own(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text('{"chat_template": "mine"}')
    (folder / "chat_template.jinja").write_text("the model's")
    files = card_of(folder, TOKENIZER_CONFIG_PATH=str(other)).files
    assert files["tokenizer_config.json"] == other.read_bytes() and "chat_template.jinja" not in files
    other.write_text("{}")
    assert "chat_template.jinja" in card_of(folder, TOKENIZER_CONFIG_PATH=str(other)).files
    with pytest.raises(StartError, match="TOKENIZER_CONFIG_PATH=/nowhere"):
        card_of(folder, TOKENIZER_CONFIG_PATH="/nowhere")


def test_a_slow_tokenizer_is_published_as_tokenizer_json(folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    (folder / "vocab.json").write_text(json.dumps({**VOCAB, "<|endoftext|>": 4}))
    (folder / "merges.txt").write_text("#version: 0.2\na b\n")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "GPT2Tokenizer"}')
    tokenizer = Tokenizer.from_str(card_of(folder).files["tokenizer.json"].decode())
    assert tokenizer.encode("abab").ids == [3, 3] and tokenizer.encode("ba").ids == [2, 1]


def test_a_model_without_any_tokenizer_stops_the_start(folder: Path) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    with pytest.raises(StartError, match=r"no tokenizer that can be turned into a tokenizer\.json") as refusal:
        card_of(folder)
    assert "\n" not in str(refusal.value)


def test_a_model_served_without_a_tokenizer_needs_none_and_has_a_cell_of_its_own(folder: Path) -> None:
    full, bare = card_of(folder), card_of(folder, SKIP_TOKENIZER_IN_TGI="true")
    assert (full.takes_ids, bare.takes_ids) == (False, True)
    assert set(bare.files) == {"generation_config.json"} and bare.fingerprint != full.fingerprint
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (folder / name).unlink()
    assert card_of(folder, SKIP_TOKENIZER_IN_TGI="true") == bare == decode(Card, encode(bare))
