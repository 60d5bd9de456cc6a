"""The real look-up in the hub's cache of compiled models, against a hub on this machine; and where the library's downloads go."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest

from common.config import Settings
from common.errors import StartError
from tests.farm import ROOT
from tests.neuron.contract import stubs
from tests.neuron.contract.real import neuron_config, reference
from tests.parity.tiny import tiny_model
from tests.workers.fake_hub import FakeHub
from workers.engines.neuron import OptimumNeuron
from workers.hub import hub_environment
from workers.neuron.cores import Host
from workers.neuron.start import open_model

pytestmark = [pytest.mark.contract_neuron, pytest.mark.filterwarnings("default")]

CACHE = "mine/cache"
REGISTRY = f"neuronxcc-{stubs.COMPILER_VERSION}/0_REGISTRY/0.4.5"

LOOK_UP = """
import json, sys
from pathlib import Path
from tests.neuron.contract import stubs
stubs.install()
from tests.neuron.contract.test_hub_cache import refused
from workers.engines.neuron import OptimumNeuron
from workers.neuron.artifact import Wanted
plain, other = map(Path, sys.argv[1:])
found = [[artifact.batch_size for artifact in OptimumNeuron().cached(folder, Wanted())] for folder in (plain, other)]
print(json.dumps([*found, str(refused(plain, MAX_BATCH_SIZE="4", HF_AUTO_CAST_TYPE="fp32"))]))
"""

DOWNLOAD = """
from tests.neuron.contract import stubs
stubs.install()
from optimum.neuron.configuration_utils import NeuronConfig
print(NeuronConfig.from_pretrained("org/neuron-model").batch_size)
"""


def entry(config: Any, rows: int) -> dict[str, bytes]:
    """A file of the registry, as an export with this configuration leaves it."""
    from optimum.neuron.cache.entries.single_model import SingleModelCacheEntry

    made = SingleModelCacheEntry("org/model", "text-generation", config, neuron_config(target="trn1", batch_size=rows))
    return {f"{REGISTRY}/{made.arch_digest()}/{made.hash}.json": made.serialize().encode()}


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A checkpoint's folder."""
    reference("llama").config.save_pretrained(tmp_path / "plain")
    return tmp_path / "plain"


@pytest.fixture
def hub() -> Iterator[FakeHub]:
    """A cache with two compilations of `plain`, and one of another architecture."""
    llama, other = reference("llama").config, tiny_model("llama", num_hidden_layers=1).config
    with FakeHub(CACHE, {"README.md": b"", **entry(llama, 1), **entry(llama, 8), **entry(other, 2)}).running() as hub:
        yield hub


def variables(hub: FakeHub) -> dict[str, str]:
    return {"HF_ENDPOINT": hub.url, "CUSTOM_CACHE_REPO": CACHE, "NO_PROXY": "127.0.0.1"}


def refused(folder: Path, **env: str) -> StartError:
    library = OptimumNeuron()
    library.host = lambda _settings: Host("trn1", (0, 1))  # type: ignore[method-assign]
    library.use = lambda _env: None  # type: ignore[method-assign]
    with pytest.raises(StartError) as refusal:
        open_model(Settings.from_env({"MODEL_ID": "org/model", **env}), folder, library, lambda _what, _done: None)
    return refusal.value


def run(script: str, *args: str, **env: str) -> str:
    """In a process of its own, whose libraries read the environment as a worker's do."""
    done = subprocess.run(
        [sys.executable, "-c", script, *args], cwd=ROOT, env={**os.environ, **env}, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()[-1]


def test_the_cache_is_asked_for_this_architecture_and_these_numbers(hub: FakeHub, plain: Path, tmp_path: Path) -> None:
    """TGI #3299: eight rows are not four."""
    tiny_model("llama", intermediate_size=48).config.save_pretrained(tmp_path / "other")
    found, found_of_other, line = json.loads(run(LOOK_UP, str(plain), str(tmp_path / "other"), **variables(hub)))
    assert (sorted(found), found_of_other) == ([1, 8], [])
    assert line.startswith("org/model is not in the cache of compiled models with batch_size 4, dtype float32; cached are: batch_size 1,")
    assert "batch_size 8, sequence_length 32, 2 cores, float32. Ask for one of these" in line and "batch_size 2" not in line


def test_a_cache_of_another_compiler_or_a_hub_that_is_away_cannot_be_read(
    hub: FakeHub, plain: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from optimum.neuron.cache.hub_cache import hub_registry_path

    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", hub.url)
    for name, value in variables(hub).items():
        monkeypatch.setenv(name, value)
    hub_registry_path.cache_clear()
    hub.files = {name.replace("neuronxcc-2.21", "neuronxcc-2.19"): data for name, data in hub.files.items()}
    error = refused(plain)
    assert error.code == 3 and "No hub cache registry found in mine/cache for neuronx-cc-2.21.33363.0" in str(error)
    hub.down = True
    error = refused(plain)
    assert error.code == 3 and str(error).startswith("the hub's cache of compiled models cannot be read: ")


def test_the_librarys_own_downloads_go_to_the_cache_that_was_named(tmp_path: Path) -> None:
    """`--huggingface-hub-cache` is a flag of ours: the library knows variables only."""
    neuron_config(target="trn1", batch_size=3).save_pretrained(tmp_path / "model")
    data = (tmp_path / "model" / "neuron_config.json").read_bytes()
    settings = Settings.from_env({}, ["--huggingface-hub-cache", str(tmp_path / "named")])
    with FakeHub("org/neuron-model", {"neuron_config.json": data}).running() as hub:
        environment = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "NO_PROXY": "127.0.0.1", **hub_environment(settings)}
        assert run(DOWNLOAD, **environment) == "3"
    assert json.loads(next((tmp_path / "named").glob("models--org--neuron-model/snapshots/*/neuron_config.json")).read_text())
    assert not (tmp_path / "home" / "hub").exists()
