"""The table of start errors, and what device errors mean while serving."""

from __future__ import annotations

import pytest

from common.children import FATAL
from common.errors import DeviceLost, StartError
from workers.neuron.artifact import Artifact
from workers.neuron.refusals import load_failure, require_library, require_same_versions
from workers.neuron.status import DeviceError, Verdict, classify, device_failure
from workers.supervisor import GIVES_UP

ARTIFACT = Artifact(4, 2048, 2, "bfloat16", 2048, library="0.4.5", compiler="2.21.33363.0+82129205")


def refused(library: str = "0.4.5", compiler: str = "2.21.33363.0") -> tuple[int, str]:
    with pytest.raises(StartError) as refusal:
        require_same_versions(ARTIFACT, library, compiler)
    return refusal.value.code, str(refusal.value)


def test_another_compiler() -> None:
    assert refused(compiler="2.19.8089.0") == (
        6,
        "the model was compiled with neuronx-cc 2.21.33363.0+82129205, installed is 2.19.8089.0; "
        "export it again: optimum-cli export neuron --model …",
    )


def test_another_library_version() -> None:
    assert refused(library="0.4.4") == (
        7,
        "the model was exported with optimum-neuron 0.4.5, installed is 0.4.4; export it again: optimum-cli export neuron --model …",
    )


def test_the_same_versions_pass_with_or_without_a_build_number() -> None:
    require_same_versions(ARTIFACT, "0.4.5", "2.21.33363.0")
    require_same_versions(ARTIFACT, "0.4.5", "2.21.33363.0+other")


@pytest.mark.parametrize("version", ["", "0.4.3", "0.5.0", "0.4.50"])
def test_a_release_whose_calls_are_not_known(version: str) -> None:
    with pytest.raises(StartError, match=r"optimum-neuron .*supported: 0\.4\.4, 0\.4\.5, 0\.4\.6") as refusal:
        require_library(version)
    assert refusal.value.code == 7
    require_library("0.4.6.dev4")


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        (
            "nrt_allocate_neuron_cores: logical NeuronCore 0 not available status=1005",
            5,
            "Neuron cores 0-1 are held by another process; end it (neuron-ls shows it), or name others in NEURON_RT_VISIBLE_CORES",
        ),
        (
            "NRT allocation failed, 2 GB (OOM)",
            8,
            "out of device memory while loading batch_size 4, sequence_length 2048, 2 cores, bfloat16: "
            "export it with a smaller batch or for more cores",
        ),
        (
            "Could not load the model status=2 message=Invalid",
            6,
            "the Neuron runtime cannot load this model, it was compiled for another version; "
            "export it again: optimum-cli export neuron --model …",
        ),
    ],
)
def test_errors_of_the_runtime_at_the_start(text: str, code: int, line: str) -> None:
    refusal = load_failure(RuntimeError(text), ARTIFACT, "0-1")
    assert refusal is not None and (refusal.code, str(refusal)) == (code, line)


def test_what_a_restart_cannot_cure_ends_the_farm_and_a_busy_core_does_not() -> None:
    assert set(FATAL) == {2, 3, 4, 6, 7, 8}
    assert set(GIVES_UP) == {*FATAL, DeviceLost.code}


@pytest.mark.parametrize("status", [5, 6, 9, 10, 101, 1004, 1200, 1206])
def test_a_broken_device_takes_no_more_work(status: int) -> None:
    error = device_failure("decode", RuntimeError(f"Failed to execute the model status={status} message=x"))
    assert isinstance(error, DeviceLost) and f"status {status}" in str(error)


@pytest.mark.parametrize("status", [2, 4, 7, 1002, 1003, 1005, 1006, 4711, None])
def test_everything_else_starts_the_process_again(status: int | None) -> None:
    error = device_failure("prefill", RuntimeError("no number" if status is None else f"x status={status}"))
    assert isinstance(error, DeviceError)


def test_no_status_is_an_error_of_single_requests() -> None:
    assert {classify(status)[1] for status in range(2000)} == {Verdict.RESTART, Verdict.EXIT}
