"""The chaos tests must be able to fail: each of these faults, put into a copy of the code, turns its test red."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.farm import ROOT

pytestmark = pytest.mark.chaos

MUTANTS = {
    "no snapshot": (
        "workers/journal.py",
        "[*snapshot(before, row.epoch), *new[row]]",
        "[*snapshot(before[:0], row.epoch), *new[row]]",
        "test_owner_after_owner_is_killed",
    ),
    "no fence": (
        "common/lua/flush.lua",
        'if not redis.call("ZSCORE", c .. "workers", worker) then return { "fenced" } end',
        "",
        "test_a_worker_is_paused_beyond_its_lease_and_comes_back",
    ),
    "pointer moved at pull": (
        "common/lua/parts/deliver.lua",
        '"owner", worker, "epoch", epoch,',
        '"owner", worker, "journal", worker, "journal_from", 1, "epoch", epoch,',
        "test_two_deaths_in_a_row_before_the_first_flush",
    ),
    "journal trimmed early": (
        "workers/journal.py",
        "min_step = min([self._marks[0][1], *(row.journal_step for row in self._rows() if row.journal_step)])",
        "min_step = self._step",
        "test_a_long_stream_is_taken_over_whole",
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_turns_its_test_red(name: str, tmp_path: Path) -> None:
    file, text, mutation, test = MUTANTS[name]
    copy = tmp_path / "copy"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".venv*", ".git", "*cache*", ".hypothesis"))
    source = (copy / file).read_text()
    assert source.count(text) == 1
    (copy / file).write_text(source.replace(text, mutation))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "", "-k", test, "tests/chaos/test_takeover.py"]
    run = subprocess.run(command, cwd=copy, capture_output=True, text=True, timeout=110)
    assert run.returncode == 1, run.stdout[-2000:]
    assert "follows from nothing" in run.stdout or "farm_divergences_total" in run.stdout, run.stdout[-3000:]
