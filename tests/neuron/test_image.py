"""What the image is made of and what it is called, as far as it can be told without the registries of AWS."""

from __future__ import annotations

import re
import subprocess

import pytest

from tests.farm import ROOT

IMAGE = (ROOT / "deploy/images/worker-neuron.Containerfile").read_text().replace("\\\n", " ")
ARGUMENTS = dict(word.split("=", 1) for line in IMAGE.splitlines() if line.startswith("ARG ") for word in line.split()[1:])


def test_the_python_is_the_one_that_the_library_wants() -> None:
    assert re.search(r"python:3\.11-slim-bookworm$", ARGUMENTS["PYTHON"]) and "requirements.py neuron" in IMAGE


def test_packages_come_from_aws_and_torch_from_where_it_is_built_for_cpus() -> None:
    (install,) = (line for line in IMAGE.splitlines() if line.endswith("-r wanted"))
    indexes = re.findall(r"--extra-index-url \$\{(\w+)\}", install)
    assert [ARGUMENTS[name] for name in indexes] == ["https://pip.repos.neuron.amazonaws.com", "https://download.pytorch.org/whl/cpu"]


@pytest.mark.parametrize("package", ["aws-neuronx-runtime-lib", "aws-neuronx-collectives", "aws-neuronx-tools"])
def test_the_runtime_is_pinned(package: str) -> None:
    (name,) = re.findall(rf"{package}=\$\{{(\w+)\}}", IMAGE)
    assert re.fullmatch(r"\d+\.\d+\.\d+\.\d+(-\w+)?", ARGUMENTS[name])


def test_every_argument_is_used_and_every_variable_is_given() -> None:
    assert set(re.findall(r"\$\{(\w+)\}", IMAGE)) == set(ARGUMENTS)


def test_it_runs_as_a_user_and_keeps_what_it_compiles_beside_the_weights() -> None:
    environment = dict(word.split("=", 1) for line in IMAGE.splitlines() if line.startswith("ENV ") for word in line.split()[1:])
    assert environment.items() >= {"FARM_BACKEND": "neuron", "HF_HOME": "/data"}.items()
    assert environment["NEURON_COMPILE_CACHE_URL"].startswith("/data/")
    assert "USER 1000:1000" in IMAGE and 'ENTRYPOINT ["tokenfarm"]' in IMAGE


def test_make_builds_the_worker_and_the_whole_farm_over_it() -> None:
    said = subprocess.run(["make", "-n", "image-neuron", "TAG=1.2.3"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    worker, whole = (line for line in said.splitlines() if "Containerfile" in line)
    assert "-t tokenfarm-worker-neuron:1.2.3 " in worker and "worker-neuron.Containerfile" in worker
    assert "-t tokenfarm-neuron:1.2.3 " in whole and "WORKER=tokenfarm-worker-neuron:1.2.3" in whole
