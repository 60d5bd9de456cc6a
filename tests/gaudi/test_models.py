"""Which models a card serves, and what is said of those it does not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from common.errors import StartError
from tests.farm import ROOT
from tests.gaudi import model_table
from workers.gaudi.models import EXPERTS, HABANA, STOCK, page, require_window, served, types, way_of
from workers.supported import supported_types


def folder(path: Path, **config: Any) -> Path:
    (path / "config.json").write_text(json.dumps(config))
    return path


def test_the_readme_has_the_table_of_the_engine() -> None:
    assert model_table.in_text((ROOT / "README.md").read_text()) == model_table.table()


def test_every_name_of_tgis_page_has_a_way_and_what_is_not_habana_a_reason() -> None:
    assert len(page()) == 25 + 9
    ways = [types()[model_type].way for model_type in page().values()]
    assert ways.count("part J") == 9 and set(ways) == {HABANA, STOCK, "cpu only", "remote code", "part J"}
    assert all(bool(row.reason) == (row.way != HABANA) for row in types().values())


def test_what_runs_on_the_cpu_only_runs_there() -> None:
    assert {model_type for model_type, row in types().items() if row.way == "cpu only"} <= set(supported_types())
    assert all(types()[model_type].way == HABANA for model_type in EXPERTS)


@pytest.mark.parametrize(("model_type", "way"), [("llama", HABANA), ("granite", STOCK), ("gemma", STOCK), ("opt", STOCK)])
def test_a_served_type_has_its_way(tmp_path: Path, model_type: str, way: str) -> None:
    assert way_of(folder(tmp_path, model_type=model_type)) == way


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"model_type": "bert"}, "'bert' has not passed the parity test"),
        ({"model_type": "phimoe"}, "'phimoe' is cpu only: its experts"),
        ({"model_type": "baichuan"}, "'baichuan' is remote code"),
        ({"model_type": "llava_next"}, "'llava_next': images are not served yet"),
        ({"model_type": "falcon", "alibi": True}, "ALiBi"),
        ({"model_type": "phi3", "rope_scaling": {"type": "longrope"}}, "'longrope' changes with the length"),
        ({"model_type": "llama", "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}, "'dynamic' changes with the length"),
        ({"model_type": "mixtral", "rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "gets its linear rotary scaling wrong"),
        ({"model_type": "qwen3_moe", "mlp_only_layers": [0]}, "gets its layers without experts wrong"),
    ],
)
def test_the_others_are_refused_with_the_reason_and_the_list(tmp_path: Path, config: dict[str, Any], words: str) -> None:
    with pytest.raises(StartError, match=words) as refusal:
        way_of(folder(tmp_path, **config))
    assert refusal.value.code == 2
    assert str(refusal.value).endswith(", ".join(sorted(served())))


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "llama", "rope_scaling": {"type": "linear", "factor": 2.0}},
        {"model_type": "llama", "head_dim": 16, "num_attention_heads": 4, "hidden_size": 32},
        {"model_type": "gpt2", "scale_attn_weights": False},
    ],
)
def test_a_setting_that_optimum_habana_gets_wrong_makes_it_a_stock_model(tmp_path: Path, config: dict[str, Any]) -> None:
    assert way_of(folder(tmp_path, **config)) == STOCK


@pytest.mark.parametrize(
    ("config", "longest"),
    [
        ({"model_type": "phi3", "sliding_window": 2047}, 2047),
        ({"model_type": "gemma2"}, 4096),
        ({"model_type": "mistral", "sliding_window": None}, None),
        ({"model_type": "qwen2", "sliding_window": 100, "use_sliding_window": False}, None),
        ({"model_type": "llama"}, None),
    ],
)
def test_a_window_holds_the_longest_row(config: dict[str, Any], longest: int | None) -> None:
    require_window(config, longest or 1 << 20)
    if longest is not None:
        with pytest.raises(StartError, match=f"last {longest} tokens.*rows of {longest + 1}: --max-total-tokens {longest}"):
            require_window(config, longest + 1)


def test_a_folder_without_a_configuration_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"no config\.json"):
        way_of(tmp_path)
