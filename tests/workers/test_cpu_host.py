"""Threads and memory as control groups (v1, v2) grant them, over files as the kernel writes them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from common.errors import StartError
from workers.host import available_bytes, cpu_threads, require_memory

N_CPUS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")
    return folder


@pytest.mark.parametrize(
    ("files", "n_cpus"),
    [
        ({}, N_CPUS),
        ({"cpu.max": "max 100000"}, N_CPUS),
        ({"cpu.max": "100000 100000"}, 1),
        ({"cpu.max": "50000 100000"}, 1),
        ({"cpu.max": "100000000 100000"}, N_CPUS),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, N_CPUS),
        ({"cpu/cpu.cfs_quota_us": "150000", "cpu/cpu.cfs_period_us": "100000"}, 1),
    ],
)
def test_threads_are_the_quota_or_the_affinity(tmp_path: Path, files: dict[str, str], n_cpus: int) -> None:
    assert cpu_threads(1, write(tmp_path, files)) == n_cpus


def test_workers_share_the_cpus_and_each_has_one(tmp_path: Path) -> None:
    assert cpu_threads(N_CPUS, tmp_path) == 1
    assert cpu_threads(100 * N_CPUS, tmp_path) == 1
    assert cpu_threads(0, tmp_path) == N_CPUS


def test_available_memory_is_the_smaller_of_host_and_control_group(tmp_path: Path) -> None:
    meminfo = write(tmp_path, {"meminfo": "MemTotal: 9000 kB\nMemAvailable: 5000 kB"}) / "meminfo"
    v2 = write(tmp_path / "v2", {"memory.max": "3000000", "memory.current": "2500000", "memory.stat": "anon 1\ninactive_file 1500000"})
    v1 = {"limit_in_bytes": "3000000", "usage_in_bytes": "1000000", "stat": "cache 5"}
    assert available_bytes(tmp_path, meminfo) == 5000 * 1024
    assert available_bytes(v2, meminfo) == 2_000_000
    assert available_bytes(write(tmp_path / "v1", {f"memory/memory.{name}": value for name, value in v1.items()}), meminfo) == 2_000_000
    assert available_bytes(write(tmp_path / "unlimited", {"memory.max": "max", "memory.current": "5"}), meminfo) == 5000 * 1024
    assert available_bytes(tmp_path, tmp_path / "absent") is None


def test_too_little_memory_is_one_clear_line() -> None:
    with pytest.raises(StartError, match=r"^not enough memory: the cache needs 1000000000\.0 GB, .* GB are available$"):
        require_memory(10**18, "the cache")
    require_memory(1, "the cache")
