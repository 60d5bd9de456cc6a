"""What the image is made of and what it is called, as far as it can be told without building it."""

from __future__ import annotations

import subprocess
import tomllib
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from tests.gaudi.environment import PINS
from workers.gaudi.refusals import LIBRARY, STACK, release

ROOT = Path(__file__).parent.parent.parent
IMAGE = (ROOT / "deploy/images/worker-gaudi.Containerfile").read_text()


def test_the_base_is_habanas_of_the_release_that_is_required() -> None:
    base = next(line.removeprefix("ARG BASE=") for line in IMAGE.splitlines() if line.startswith("ARG BASE="))
    registry, _, version, system, *_ = base.split("/")
    assert (registry, release(version), system) == ("vault.habana.ai", STACK, "ubuntu24.04")


def test_the_extra_ends_at_the_release_that_is_contract_tested() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["gaudi"]
    tested = next(pin.removeprefix("optimum-habana==") for pin in PINS if pin.startswith("optimum-habana=="))
    assert f"optimum-habana>=1.18.1,<={tested}" in extras and release(tested) == LIBRARY
    assert "requirements.py gaudi" in IMAGE


def test_what_tgis_image_sets_is_set() -> None:
    """TGI reference §6.5, without what has no meaning here; growth by a factor is our default, so a step that is given counts."""
    environment = dict(word.split("=", 1) for word in IMAGE.replace("\\\n", " ").split() if "=" in word and word[0].isupper())
    wanted = {"PT_HPU_LAZY_MODE": "1", "PT_HPU_WEIGHT_SHARING": "0", "HABANA_VISIBLE_DEVICES": "all", "HF_HOME": "/data"}
    assert environment.items() >= {**wanted, "OMPI_MCA_btl_vader_single_copy_mechanism": "none", "FARM_BACKEND": "gaudi"}.items()


@pytest.mark.parametrize(
    ("tag", "names"), [("tgi-gaudi", ["tokenfarm-gaudi:tgi-gaudi", "tgi-gaudi"]), ("1.2.3", ["tokenfarm-gaudi:1.2.3"])]
)
def test_the_image_has_the_name_that_the_page_runs(tag: str, names: list[str]) -> None:
    """`make image-gaudi TAG=tgi-gaudi`, then `docker run … tgi-gaudi --model-id …`."""
    said = subprocess.run(["make", "-n", "image-gaudi", f"TAG={tag}"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    worker, whole = (line.split() for line in said.splitlines() if "Containerfile" in line)
    assert [word for flag, word in pairwise(worker) if flag == "-t"] == [f"tokenfarm-worker-gaudi:{tag}"]
    assert [word for flag, word in pairwise(whole) if flag == "-t"] == names
    assert f"WORKER=tokenfarm-worker-gaudi:{tag}" in whole


def test_the_compose_profile_gives_the_worker_what_the_card_needs() -> None:
    service = yaml.safe_load((ROOT / "deploy/compose/compose.yaml").read_text())["services"]["worker-gaudi"]
    assert (service["profiles"], service["runtime"], service["ipc"], service["cap_add"]) == (["gaudi"], "habana", "host", ["SYS_NICE"])
    assert "shm_size" not in service, "the host's shared memory has no size of ours"
    assert service["environment"].items() >= {"FARM_BACKEND": "gaudi", "HABANA_VISIBLE_DEVICES": "${HABANA_VISIBLE_DEVICES}"}.items()
    assert service["volumes"] == ["models:/data"] and service["read_only"], "recipes go to the volume"
