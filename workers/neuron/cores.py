"""Which Neuron cores this process may use: from device nodes and the runtime's variables (neuron.md §4.6). Reads, never writes."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from common.errors import StartError

NO_DEVICE = 4
"""Exit status."""

GIB = 2**30
CORES_PER_DEVICE = {"trn1": 2, "trn1n": 2, "inf2": 2, "trn2": 4}
CORE_BYTES = {"trn1": 16 * GIB, "trn1n": 16 * GIB, "inf2": 16 * GIB, "trn2": 24 * GIB}
TARGETS = {"trn1": "trn1", "trn1n": "trn1", "inf2": "trn1", "trn2": "trn2"}
"""Instance family → what the compiler calls it."""

NO_DEVICE_LINE = (
    "no Neuron device: there is no /dev/neuron* here; run on an inf2, trn1 or trn2 instance, "
    "and start the container with --device=/dev/neuron0 (one for each device)"
)


class Host(NamedTuple):
    """`cores` are the numbers of those this host may use; `instance` is a key of `TARGETS`."""

    instance: str
    cores: tuple[int, ...]

    @property
    def target(self) -> str:
        return TARGETS[self.instance]

    @property
    def core_bytes(self) -> int:
        return CORE_BYTES[self.instance]


def detect(visible: str | None, n_cores: int | None, root: Path = Path("/")) -> Host:
    """The host as its device nodes show it; `visible` and `n_cores` are NEURON_RT_VISIBLE_CORES and NEURON_RT_NUM_CORES.

    /dev, not /sys: the latter shows devices of the host that were not given to the container. Raises `StartError`.
    """
    n_devices = count_devices(root)
    if n_devices == 0:
        raise StartError(NO_DEVICE_LINE, NO_DEVICE)
    instance = instance_of(root)
    return Host(instance, usable(CORES_PER_DEVICE[instance] * n_devices, visible, n_cores))


def count_devices(root: Path = Path("/")) -> int:
    """How many device nodes in /dev are Neuron devices, by major number, by name when that is unknown."""
    major = _major(root)
    nodes = list((root / "dev").iterdir()) if (root / "dev").is_dir() else []
    if major is not None:
        of_major = sum(node.is_char_device() and os.major(node.stat().st_rdev) == major for node in nodes)
        if of_major:
            return of_major
    return sum(re.fullmatch(r"neuron\d+", node.name) is not None for node in nodes)


def instance_of(root: Path = Path("/")) -> str:
    """The instance family, from the machine's product name; raises `StartError` for an unknown one."""
    path = root / "sys/devices/virtual/dmi/id/product_name"
    name = path.read_text().strip() if path.is_file() else ""
    family = name.split(".")[0]
    if family not in TARGETS:
        raise StartError(f"instance {name or 'without a product name'} is not supported, supported: {', '.join(sorted(TARGETS))}")
    return family


def usable(n_present: int, visible: str | None, n_cores: int | None) -> tuple[int, ...]:
    """The cores that are left; NEURON_RT_VISIBLE_CORES wins. Raises `StartError` for cores that are not there."""
    if visible:
        cores = parse_cores(visible)
        if cores[-1] >= n_present:
            raise StartError(f"NEURON_RT_VISIBLE_CORES={visible}, but the devices here have cores 0 to {n_present - 1}")
        return cores
    if n_cores is not None and n_cores > n_present:
        raise StartError(f"NEURON_RT_NUM_CORES={n_cores}, but the devices here have {n_present} cores")
    return tuple(range(n_cores or n_present))


def parse_cores(text: str) -> tuple[int, ...]:
    """`4`, `7-15`, `0,1,2` or `0-3,8-11` as numbers, ascending; raises `StartError`."""
    cores: set[int] = set()
    for part in text.replace(" ", "").split(","):
        found = re.fullmatch(r"(\d+)(?:-(\d+))?", part)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if first > last:
            raise StartError(f"Invalid argument: NEURON_RT_VISIBLE_CORES={text}, allowed is for example 4, 7-15 or 0-3,8-11")
        cores.update(range(first, last + 1))
    return tuple(sorted(cores))


def share(cores: Sequence[int], number: int, n_workers: int) -> tuple[int, ...]:
    """The cores of worker `number` (from 1) of this host: one process per core set."""
    n_each = len(cores) // n_workers
    return tuple(cores[n_each * (number - 1) : n_each * number])


def claim(mine: Sequence[int], tp_degree: int) -> str:
    """The first `tp_degree` cores of a share as one range for NEURON_RT_VISIBLE_CORES. Raises `StartError`."""
    if tp_degree > len(mine):
        raise StartError(f"tensor-parallel degree {tp_degree} needs {tp_degree} cores, {len(mine)} can be used by this worker")
    first, last = mine[0], mine[tp_degree - 1]
    if last - first + 1 != tp_degree:
        named = ",".join(map(str, mine[:tp_degree]))
        raise StartError(f"cores {named} are not next to each other; name one range in NEURON_RT_VISIBLE_CORES")
    return f"{first}-{last}" if tp_degree > 1 else str(first)


def supported_degree(instance: str, tp_degree: int) -> bool:
    """Trainium 1 builds rings of 1, 2, 8, 16 and multiples of 32 cores only (optimum-neuron #619)."""
    return not instance.startswith("trn1") or tp_degree in (1, 2, 8, 16) or tp_degree % 32 == 0


def require_degree(instance: str, tp_degree: int) -> None:
    """Raises `StartError`, before any compilation."""
    if not supported_degree(instance, tp_degree):
        raise StartError(
            f"tensor-parallel degree {tp_degree} is not supported on {instance}, supported: 1, 2, 8, 16, 32 and multiples of 32; "
            "export the model for one of these, or set HF_NUM_CORES"
        )


def _major(root: Path) -> int | None:
    path = root / "proc/devices"
    found = re.search(r"^\s*(\d+)\s+neuron\s*$", path.read_text(), re.MULTILINE) if path.is_file() else None
    return int(found[1]) if found else None
