"""A model that the CPU engine cannot serve is refused at start with the reason and the list."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from common.errors import StartError
from tests.parity.tiny import CONFIGS
from workers.supported import require_supported, supported_types


def test_the_table_holds_a_result_for_every_type_that_parity_runs() -> None:
    assert set(supported_types()) == set(CONFIGS)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"model_type": "mamba"}, "model type 'mamba' has not passed the parity test"),
        ({"model_type": "t5", "is_encoder_decoder": True}, "an encoder-decoder"),
        ({"model_type": "bloom"}, "ALiBi"),
        ({"model_type": "falcon", "alibi": True}, "ALiBi"),
        ({"model_type": "llama", "quantization_config": {"quant_method": "gptq"}}, r"quantized \(gptq\)"),
    ],
)
def test_a_refusal_names_the_reason_and_the_list(tmp_path: Path, config: dict[str, Any], reason: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(StartError, match=reason) as refusal:
        require_supported(tmp_path)
    assert refusal.value.code == 2 and all(model_type in str(refusal.value) for model_type in CONFIGS)


@pytest.mark.parametrize(("content", "words"), [(None, "no config.json"), ("{", "is not JSON"), ("[]", "not a JSON object")])
def test_a_folder_without_a_readable_config_is_refused(tmp_path: Path, content: str | None, words: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(StartError, match=words):
        require_supported(tmp_path)


def test_an_older_major_version_of_transformers_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "transformers-4.55.4.dist-info").mkdir()
    (tmp_path / "transformers-4.55.4.dist-info" / "METADATA").write_text("Name: transformers\nVersion: 4.55.4\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(StartError, match=r"needs transformers 5, installed is 4\.55\.4"):
        require_supported(tmp_path)
