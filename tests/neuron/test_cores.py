from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import StartError
from workers.neuron.cores import (
    Host,
    claim,
    count_devices,
    detect,
    parse_cores,
    require_degree,
    share,
    supported_degree,
    usable,
)


def root(folder: Path, n_devices: int, product: str = "inf2.8xlarge", major: bool = False) -> Path:
    """A file system as a container sees it; its device nodes are plain files, known by their names."""
    (folder / "dev").mkdir()
    for number in range(n_devices):
        (folder / "dev" / f"neuron{number}").touch()
    (folder / "dev" / "null").touch()
    dmi = folder / "sys/devices/virtual/dmi/id"
    dmi.mkdir(parents=True)
    (dmi / "product_name").write_text(product + "\n")
    (folder / "sys/class/neuron_device/neuron0").mkdir(parents=True)  # of the host; not mapped into the container
    (folder / "sys/class/neuron_device/neuron1").mkdir()
    (folder / "proc").mkdir()
    (folder / "proc/devices").write_text("Character devices:\n  1 mem\n" + ("246 neuron\n" if major else ""))
    return folder


@pytest.mark.parametrize(
    ("product", "n_devices", "n_cores"),
    [("inf2.8xlarge", 1, 2), ("trn1.32xlarge", 16, 32), ("trn1n.32xlarge", 1, 2), ("trn2.3xlarge", 1, 4)],
)
def test_cores_by_instance(tmp_path: Path, product: str, n_devices: int, n_cores: int) -> None:
    host = detect(None, None, root(tmp_path, n_devices, product))
    assert host.cores == tuple(range(n_cores))
    assert host.target == ("trn2" if product.startswith("trn2") else "trn1")


@pytest.mark.parametrize("major", [True, False])
def test_devices_of_the_host_that_are_not_mapped_do_not_count(tmp_path: Path, major: bool) -> None:
    """optimum-neuron #544: /sys shows them all."""
    assert count_devices(root(tmp_path, 1, major=major)) == 1


def test_no_device_node_has_a_status_and_a_line_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(StartError) as refusal:
        detect(None, None, root(tmp_path, 0))
    assert refusal.value.code == 4
    assert str(refusal.value) == (
        "no Neuron device: there is no /dev/neuron* here; run on an inf2, trn1 or trn2 instance, "
        "and start the container with --device=/dev/neuron0 (one for each device)"
    )


def test_an_unknown_instance_is_named(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"instance inf1\.xlarge is not supported"):
        detect(None, None, root(tmp_path, 1, "inf1.xlarge"))


@pytest.mark.parametrize(
    ("text", "cores"),
    [("4", (4,)), ("7-15", tuple(range(7, 16))), ("0,1,2", (0, 1, 2)), ("0-3,8-11", (0, 1, 2, 3, 8, 9, 10, 11)), ("3, 1-2,2", (1, 2, 3))],
)
def test_visible_cores(text: str, cores: tuple[int, ...]) -> None:
    assert parse_cores(text) == cores


@pytest.mark.parametrize("text", ["a", "1-", "-3", "3-1", "1,,2", "0x1", "1;2"])
def test_malformed_visible_cores_are_refused(text: str) -> None:
    with pytest.raises(StartError, match="NEURON_RT_VISIBLE_CORES="):
        parse_cores(text)


@given(st.sets(st.integers(0, 63), min_size=1))
def test_any_set_of_cores_can_be_written_and_read(cores: set[int]) -> None:
    assert set(parse_cores(",".join(map(str, cores)))) == cores


def test_visible_cores_win_over_their_number() -> None:
    assert usable(8, "2-3", 1) == (2, 3)
    assert usable(8, None, 3) == (0, 1, 2)
    assert usable(8, None, None) == tuple(range(8))


def test_cores_that_are_not_there_are_named() -> None:
    with pytest.raises(StartError, match=r"NEURON_RT_VISIBLE_CORES=0-3, but the devices here have cores 0 to 1"):
        usable(2, "0-3", None)
    with pytest.raises(StartError, match=r"NEURON_RT_NUM_CORES=4, but the devices here have 2 cores"):
        usable(2, None, 4)


def test_workers_of_one_host_take_disjoint_cores() -> None:
    shares = [share(tuple(range(12)), number, 3) for number in (1, 2, 3)]
    assert [claim(mine, 2) for mine in shares] == ["0-1", "4-5", "8-9"]
    assert claim((5,), 1) == "5"


def test_too_few_cores_names_both_numbers() -> None:
    with pytest.raises(StartError, match="degree 8 needs 8 cores, 6 can be used"):
        claim(share(tuple(range(12)), 1, 2), 8)
    with pytest.raises(StartError, match="needs 1 cores, 0 can be used"):
        claim(share((0,), 2, 2), 1)


def test_cores_apart_are_refused() -> None:
    """optimum-neuron 0.4.5 counts `0-3,8-11` wrongly, so only ranges are given to it."""
    with pytest.raises(StartError, match="cores 3,8 are not next to each other"):
        claim((3, 8), 2)


def test_degrees_of_trainium_1() -> None:
    assert [n for n in range(1, 97) if supported_degree("trn1", n)] == [1, 2, 8, 16, 32, 64, 96]
    assert supported_degree("inf2", 24) and supported_degree("trn2", 4)
    with pytest.raises(StartError) as refusal:
        require_degree("trn1", 24)
    assert (refusal.value.code, str(refusal.value)) == (
        2,
        "tensor-parallel degree 24 is not supported on trn1, supported: 1, 2, 8, 16, 32 and multiples of 32; "
        "export the model for one of these, or set HF_NUM_CORES",
    )


def test_memory_of_a_core() -> None:
    assert Host("inf2", (0,)).core_bytes == 16 * 2**30
