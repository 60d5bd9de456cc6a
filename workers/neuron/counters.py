"""The driver's memory counters, for people (neuron.md §4.6)."""

from __future__ import annotations

from pathlib import Path


def memory_bytes(root: Path = Path("/")) -> dict[str, int]:
    """`neuron0/neuron_core1` → bytes present on that core; empty where there is no driver."""
    found: dict[str, int] = {}
    for path in sorted((root / "sys/devices/virtual/neuron_device").glob("neuron*/neuron_core*/stats/memory_usage/device_mem/*/present")):
        core = "/".join(path.parts[-7:-5])
        found[core] = found.get(core, 0) + int(path.read_text())
    return found
