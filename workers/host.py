"""What this host gives one worker: CPU threads and memory, as the control group allows (v1 and v2)."""

from __future__ import annotations

import os
from pathlib import Path

from common.errors import StartError

CGROUP = Path("/sys/fs/cgroup")
CGROUP_V1_MEMORY = tuple(f"memory/memory.{name}" for name in ("limit_in_bytes", "usage_in_bytes", "stat"))
MEMINFO = Path("/proc/meminfo")

MATHS = {
    # Without it MKL's result depends on alignment, and thus on the slot.
    "MKL_CBWR": "AUTO,STRICT",
    # A thread that spins for its sibling keeps the core from whoever runs there: beside other busy processes the
    # default (300,000) made steps 3 to 6 times slower, and a short spin costs nothing on idle cores.
    "GOMP_SPINCOUNT": "2000",
}
"""Environment that torch's libraries read once, when they are loaded: set it before torch is first imported."""


def cpu_threads(n_workers: int, cgroup: Path = CGROUP) -> int:
    """Threads for one of `n_workers` local workers, at least 1: the CPU quota or the affinity, whichever is smaller, shared.

    Two processes with all threads each are ten times slower than with their share.
    """
    quota = _cpu_quota(cgroup)
    n_cpus = _n_affine_cpus()
    if quota is not None:
        n_cpus = min(n_cpus, max(1, int(quota)))
    return max(1, n_cpus // max(1, n_workers))


def available_bytes(cgroup: Path = CGROUP, meminfo: Path = MEMINFO) -> int | None:
    """Memory this process can still take, or None where the system does not say."""
    free = [value for value in (_meminfo_available(meminfo), _cgroup_free(cgroup)) if value is not None]
    return min(free, default=None)


def require_memory(needed_bytes: int, what: str) -> None:
    """Raises `StartError` in one line when `what` cannot fit."""
    free = available_bytes()
    if free is not None and needed_bytes > free:
        raise StartError(f"not enough memory: {what} needs {needed_bytes / 1e9:.1f} GB, {free / 1e9:.1f} GB are available")


def _n_affine_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _cpu_quota(cgroup: Path) -> float | None:
    """CPUs that the control group may use, or None when unlimited."""
    v2 = _read(cgroup / "cpu.max")
    if v2 is not None:
        quota, _, period = v2.partition(" ")
        return None if quota == "max" else int(quota) / int(period or 100_000)
    quota_us, period_us = _read_int(cgroup / "cpu" / "cpu.cfs_quota_us"), _read_int(cgroup / "cpu" / "cpu.cfs_period_us")
    if quota_us is None or period_us is None or quota_us <= 0:
        return None
    return quota_us / period_us


def _cgroup_free(cgroup: Path) -> int | None:
    """Limit less use, where file pages that the kernel can drop do not count as used."""
    for files in (("memory.max", "memory.current", "memory.stat"), CGROUP_V1_MEMORY):
        limit, used = _read_int(cgroup / files[0]), _read_int(cgroup / files[1])
        if limit is not None and used is not None:
            stat = dict(line.split() for line in (_read(cgroup / files[2]) or "").splitlines())
            return max(0, limit - used + int(stat.get("inactive_file", 0)))
    return None


def _meminfo_available(meminfo: Path) -> int | None:
    for line in (_read(meminfo) or "").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip()
    except OSError:
        return None


def _read_int(path: Path) -> int | None:
    text = _read(path)
    return int(text) if text is not None and text.lstrip("-").isdigit() else None
