"""From settings and a folder to a loaded model: nothing slow before a contradiction is found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from common.config import Settings
from common.errors import StartError
from tests.farm import ROOT
from tests.neuron.doubles import exported, write_config
from workers.engines.neuron_double import CACHE, DoubleLibrary
from workers.engines.oracle import write_model
from workers.neuron.artifact import Artifact, Wanted
from workers.neuron.cores import Host
from workers.neuron.double import Faults
from workers.neuron.library import Model
from workers.neuron.start import PREFILL_NOTE, choose, open_model


class Recorded(DoubleLibrary):
    """The double's library, and what was asked of it."""

    def __init__(self, **faults: Any) -> None:
        super().__init__(Faults(**faults))
        self.done: list[str] = []

    def cached(self, folder: Path, asked: Wanted) -> list[Artifact]:
        self.done.append("look up")
        return super().cached(folder, asked)

    def load(self, folder: Path) -> Model:
        self.done.append("load")
        return super().load(folder)

    def export(self, folder: Path, artifact: Artifact, target: Path | None) -> Model:
        self.done.append("export")
        if target is not None:
            exported(target, **{**artifact._asdict(), "torch_dtype": artifact.dtype})
        return super().export(folder, artifact, target)


def opened(folder: Path, library: Recorded, **env: str) -> Artifact:
    progress: list[str] = []
    model = open_model(
        Settings.from_env({"HF_HOME": str(folder.parent / "cache"), **env}), folder, library, lambda what, _: progress.append(what)
    )
    library.done += [what for what in progress if what != "loading"]
    return model.artifact


def refused(folder: Path, library: Recorded, **env: str) -> tuple[int, str]:
    with pytest.raises(StartError) as refusal:
        opened(folder, library, **env)
    assert "load" not in library.done or library.faults.load_status, "nothing is loaded before it is refused"
    return refusal.value.code, str(refusal.value)


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A checkpoint with the hub's cache of four configurations."""
    folder = tmp_path / "plain"
    folder.mkdir()
    write_model(folder)
    write_config(folder)
    entries = [
        {"batch_size": rows, "sequence_length": 4096, "tp_degree": cores, "torch_dtype": "bfloat16", "continuous_batching": rows > 1}
        for rows, cores in ((1, 2), (4, 2), (8, 2), (32, 8))
    ]
    (folder / CACHE).write_text(json.dumps(entries))
    return folder


def test_an_exported_model_needs_no_setting(tmp_path: Path) -> None:
    library = Recorded()
    artifact = opened(exported(tmp_path / "model"), library)
    assert (artifact.batch_size, artifact.sequence_length, artifact.tp_degree, artifact.dtype) == (4, 512, 2, "bfloat16")
    assert library.done == ["load"]
    assert library.env == {"NEURON_RT_VISIBLE_CORES": "0-1", "NEURON_RT_NUM_CORES": "2"}


def test_a_batch_of_4_is_never_served_by_a_cached_batch_of_8(plain: Path) -> None:
    """TGI #3299."""
    library = Recorded()
    assert opened(plain, library, MAX_BATCH_SIZE="4", HF_NUM_CORES="2").batch_size == 4
    assert library.done == ["look up", "export", "taking from the cache"]


def test_without_settings_the_cached_configuration_with_most_cores_is_taken(plain: Path) -> None:
    assert opened(plain, Recorded()).tp_degree == 8
    assert opened(plain, Recorded(n_cores=2)).batch_size == 8


def test_none_cached_lists_what_is(plain: Path) -> None:
    code, line = refused(plain, Recorded(), MAX_BATCH_SIZE="16", MODEL_ID="org/model")
    assert code == 2
    assert line == (
        "org/model is not in the cache of compiled models with batch_size 16, dtype bfloat16; cached are: "
        "batch_size 1, sequence_length 4096, 2 cores, bfloat16; batch_size 32, sequence_length 4096, 8 cores, bfloat16; "
        "batch_size 4, sequence_length 4096, 2 cores, bfloat16; batch_size 8, sequence_length 4096, 2 cores, bfloat16. "
        "Ask for one of these, export the model, or allow compiling it here with --allow-compile (up to an hour)"
    )


def test_compiling_when_allowed_says_so_and_is_kept_for_the_next_start(plain: Path) -> None:
    asked = {"MAX_BATCH_SIZE": "16", "HF_NUM_CORES": "2", "FARM_ALLOW_COMPILE": "true"}
    first, second = Recorded(), Recorded()
    artifact = opened(plain, first, **asked)
    assert artifact == Artifact(16, 4096, 2, "bfloat16", 4096, True, False, target="trn1")
    assert first.done == ["look up", "export", "compiling, up to an hour"]
    assert opened(plain, second, **asked).batch_size == 16
    assert second.done == ["look up", "load"]


def test_a_compiled_model_that_cannot_be_kept_is_served_all_the_same(plain: Path, caplog: pytest.LogCaptureFixture) -> None:
    (plain.parent / "file").touch()
    asked = {"MAX_BATCH_SIZE": "16", "HF_NUM_CORES": "2", "FARM_ALLOW_COMPILE": "true", "HF_HOME": str(plain.parent / "file")}
    assert opened(plain, Recorded(), **asked).batch_size == 16
    assert "the next start compiles again" in caplog.text


def test_the_precision_to_look_up_is_the_one_asked_for(plain: Path) -> None:
    assert "dtype float16" in refused(plain, Recorded(), HF_AUTO_CAST_TYPE="fp16")[1]
    write_config(plain, torch_dtype="float32")
    assert "dtype float32" in refused(plain, Recorded())[1], "unset: the checkpoint's"
    assert opened(plain, Recorded(), HF_AUTO_CAST_TYPE="fp16", FARM_ALLOW_COMPILE="true").dtype == "float16"


def test_a_cached_configuration_that_cannot_run_here_is_passed_over() -> None:
    good = Artifact(4, 512, 2, "bfloat16", 512, True, target="trn1")
    cached = [good._replace(tp_degree=24), good._replace(target="trn2"), good._replace(continuous_batching=False), good]
    assert choose(cached, Wanted(), Host("trn1", tuple(range(32))), 32) == good
    assert choose([good._replace(on_device_sampling=True), good], Wanted(), Host("trn1", (0, 1)), 2) == good


def test_a_prefill_budget_is_one_log_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    opened(exported(tmp_path / "model"), Recorded(), MAX_BATCH_PREFILL_TOKENS="2048")
    assert caplog.messages.count(PREFILL_NOTE) == 1


def test_the_second_worker_of_a_host_takes_other_cores(tmp_path: Path) -> None:
    library = Recorded(n_cores=8)
    opened(exported(tmp_path / "model"), library, WORKERS="2", FARM_WORKER_NUMBER="2")
    assert library.env["NEURON_RT_VISIBLE_CORES"] == "4-5"


def test_the_hubs_token_reaches_the_library_however_it_was_given(tmp_path: Path) -> None:
    library = Recorded()
    (tmp_path / "token").write_text("hf_secret")
    opened(exported(tmp_path / "model"), library, HF_TOKEN_FILE=str(tmp_path / "token"))
    assert library.env["HF_TOKEN"] == "hf_secret"


def test_a_model_for_another_chip_is_named(tmp_path: Path) -> None:
    _, line = refused(exported(tmp_path / "model", target="trn2"), Recorded())
    assert line == "the model was compiled for trn2, this host is trn1; export it for this one"


START_ERRORS: dict[str, tuple[dict[str, Any], dict[str, int], int, str]] = {
    "no node": (
        {},
        {"n_cores": 0},
        4,
        "no Neuron device: there is no /dev/neuron* here; run on an inf2, trn1 or trn2 instance, "
        "and start the container with --device=/dev/neuron0 (one for each device)",
    ),
    "busy core": (
        {},
        {"load_status": 1005},
        5,
        "Neuron cores 0-1 are held by another process; end it (neuron-ls shows it), or name others in NEURON_RT_VISIBLE_CORES",
    ),
    "24 cores on trn1": (
        {"tp_degree": 24},
        {},
        2,
        "tensor-parallel degree 24 is not supported on trn1, supported: 1, 2, 8, 16, 32 and multiples of 32; "
        "export the model for one of these, or set HF_NUM_CORES",
    ),
    "other compiler": (
        {"neuronxcc_version": "2.19.8089.0"},
        {},
        6,
        "the model was compiled with neuronx-cc 2.19.8089.0, installed is 2.21.33363.0; "
        "export it again: optimum-cli export neuron --model …",
    ),
    "other library": (
        {"optimum_neuron_version": "0.3.0"},
        {},
        7,
        "the model was exported with optimum-neuron 0.3.0, installed is 0.4.5; export it again: optimum-cli export neuron --model …",
    ),
    "out of memory": (
        {},
        {"load_status": 4},
        8,
        "out of device memory while loading batch_size 4, sequence_length 512, 2 cores, bfloat16: "
        "export it with a smaller batch or for more cores",
    ),
}


@pytest.mark.parametrize("name", START_ERRORS)
def test_the_table_of_start_errors(tmp_path: Path, name: str) -> None:
    config, faults, code, line = START_ERRORS[name]
    assert refused(exported(tmp_path / "model", **config), Recorded(**faults)) == (code, line)


@pytest.mark.parametrize(("name", "code"), [("no node", 4), ("other compiler", 6)])
def test_a_worker_process_ends_with_that_status_and_line(tmp_path: Path, name: str, code: int) -> None:
    config, faults, _, line = START_ERRORS[name]
    env = {
        "MODEL_ID": str(exported(tmp_path / "model", **config)),
        "FARM_DOUBLE": ",".join(f"{key}={value}" for key, value in faults.items()),
    }
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("FARM", "HF_", "NEURON"))}
    worker = [sys.executable, "-m", "workers"]
    given = {**clean, **env, "FARM_BACKEND": "neuron-double", "REDIS_URL": "redis://127.0.0.1:1"}
    done = subprocess.run(worker, cwd=ROOT, env=given, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code and line in done.stdout + done.stderr, done.stdout + done.stderr


def test_importing_everything_imports_nothing_of_neuron_and_sets_no_variable() -> None:
    names = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for package in ("common", "gateway", "workers")
        for path in sorted((ROOT / package).rglob("*.py"))
        if path.stem not in ("__init__", "__main__")
    ]
    code = (
        "import importlib, os, sys\n"
        "os.environ.setdefault('MKL_CBWR', 'AUTO,STRICT')\n"
        "before = dict(os.environ)\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        "print(sorted(name for name in sys.modules if name.split('.')[0] in ('optimum', 'torch_xla', 'torch_neuronx', 'libneuronxla')))\n"
        "print({key: value for key, value in os.environ.items() if before.get(key) != value})\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout.splitlines()[:1] == ["[]"], done.stdout + done.stderr[-2000:]
    assert "NEURON" not in done.stdout


def test_the_real_backend_without_its_library_says_what_is_missing(tmp_path: Path) -> None:
    from workers.engines import create

    settings = Settings.from_env({"FARM_BACKEND": "neuron"})
    with pytest.raises(StartError, match=r"optimum-neuron is not installed, supported: 0\.4\.4") as refusal:
        create(settings, str(exported(tmp_path / "model")), "").load(lambda _what, _done: None)
    assert refusal.value.code == 7
