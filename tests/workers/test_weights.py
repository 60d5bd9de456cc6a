"""Folders and GGUF files become local folders: converted once, atomically, with the same numbers."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer

from common.config import DEMO_MODEL, Settings
from common.errors import StartError
from tests.parity.tiny import tiny_model
from workers.weights import cache_folder, local_path

TOKENS = ["<unk>", "<s>", "</s>", *map(chr, range(ord("!"), ord("~") + 1)), "ab", "cd"]
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def resolve(model_id: str, home: Path, **env: str) -> Path:
    return local_path(Settings.from_env({"MODEL_ID": model_id, "HF_HOME": str(home), **env}), lambda _what, _done: None)


def write_gguf(path: Path, model: Any) -> None:
    """A llama.cpp file of `model`, with rotary halves interleaved as that format has them."""
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.NORMAL] * (len(TOKENS) - 3))
    writer.add_token_merges(["a b", "c d"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(TEMPLATE)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        n_heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
        if n_heads is not None:
            rows, columns = weight.shape
            weight = weight.view(n_heads, 2, rows // n_heads // 2, columns).transpose(1, 2).reshape(rows, columns)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)) or name, weight.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_model("llama", vocab_size=len(TOKENS))


@pytest.fixture(scope="module")
def tiny_gguf(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    write_gguf(path, model)
    return path


def test_a_folder_is_used_where_it_is(model: Any, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path / "model")
    assert resolve(str(tmp_path / "model"), tmp_path) == (tmp_path / "model").resolve()


def test_a_gguf_file_becomes_bf16_safetensors_with_tokenizer_and_template(tiny_gguf: Path, model: Any, tmp_path: Path) -> None:
    folder = resolve(str(tiny_gguf), tmp_path)
    assert folder.parent == tmp_path / "tokenfarm"
    weights = load_file(folder / "model.safetensors")
    assert set(weights) == set(model.state_dict())
    for name, weight in model.state_dict().items():
        assert torch.equal(weights[name], weight.to(torch.bfloat16)), name
    assert json.loads((folder / "config.json").read_text())["model_type"] == "llama"
    assert Tokenizer.from_file(str(folder / "tokenizer.json")).encode("ab").tokens[-1:] == ["ab"]
    assert (folder / "chat_template.jinja").read_text() == TEMPLATE


def test_several_at_once_convert_once_and_what_a_killed_one_left_is_removed(
    tiny_gguf: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "workers.gguf")
    folder = resolve(str(tiny_gguf), tmp_path / "elsewhere")
    leftover = tmp_path / "tokenfarm" / f".{folder.name}.part"
    leftover.mkdir(parents=True)
    (leftover / "config.json").write_text("{")
    caplog.clear()
    with ThreadPoolExecutor(3) as pool:
        folders = {result.name for result in pool.map(lambda _: resolve(str(tiny_gguf), tmp_path), range(3))}
    assert folders == {folder.name} and len([record for record in caplog.records if "converted" in record.message]) == 1
    assert not leftover.exists() and len(json.loads((tmp_path / "tokenfarm" / folder.name / "config.json").read_text())) > 5


def test_a_changed_file_is_converted_anew(tiny_gguf: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(tiny_gguf.read_bytes())
    first = resolve(str(copy), tmp_path)
    copy.write_bytes(tiny_gguf.read_bytes() + b"\0" * 32)
    assert resolve(str(copy), tmp_path) != first


def test_a_broken_gguf_file_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\xff" * 64)
    with pytest.raises(StartError) as refusal:
        resolve(str(broken), tmp_path)
    assert "\n" not in str(refusal.value) and "broken.gguf" in str(refusal.value)
    assert [path.name for path in cache_folder(Settings.from_env({"HF_HOME": str(tmp_path)})).iterdir() if path.is_dir()] == []


@pytest.mark.parametrize(
    ("model_id", "code", "words"),
    [
        ("/nowhere/at/all", 3, "no such folder"),
        ("./nowhere", 3, "no such folder"),
        ("{here}", 2, "no config.json"),
        ("{here}/note.txt", 2, "no .gguf file"),
        ("{here}/pickled", 2, "--trust-remote-code"),
        ("not a hub id!", 3, "nor a hub id"),
    ],
)
def test_what_is_no_model_is_refused_in_one_line(tmp_path: Path, model_id: str, code: int, words: str) -> None:
    (tmp_path / "note.txt").write_text("hello")
    (tmp_path / "pickled").mkdir()
    (tmp_path / "pickled" / "config.json").write_text("{}")
    (tmp_path / "pickled" / "pytorch_model.bin").write_bytes(b"pickle")
    with pytest.raises(StartError) as refusal:
        resolve(model_id.format(here=tmp_path), tmp_path, HF_HUB_OFFLINE="1")
    assert refusal.value.code == code and words in str(refusal.value) and "\n" not in str(refusal.value)


def test_the_cache_is_in_hf_home_or_in_the_users_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder(Settings.from_env({})) == tmp_path / "tokenfarm"
    assert cache_folder(Settings.from_env({"HF_HOME": "/data"})) == Path("/data/tokenfarm")
    assert Settings.from_env({}).model_id == DEMO_MODEL
