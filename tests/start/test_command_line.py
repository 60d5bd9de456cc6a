from __future__ import annotations

import subprocess
import sys
import time

import pytest

from common.config import OPTIONS, version
from tests.start.farm import ROOT, clean_env


def run(*argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "common.cli", *argv], env=clean_env(**env), cwd=ROOT, capture_output=True, text=True, timeout=20
    )


@pytest.mark.parametrize("command", ["up", "serve", "gateway", "worker"])
def test_help_lists_every_flag_within_3_s_without_a_broker_or_a_device(command: str) -> None:
    started_s = time.monotonic()
    done = run(command, "--help", REDIS_URL="redis://127.0.0.1:1")
    assert time.monotonic() - started_s < 3
    assert done.returncode == 0
    assert not [flag for option in OPTIONS for flag in option.flags[:1] if flag not in done.stdout]


@pytest.mark.parametrize("argv", [["--version"], ["up", "--version"], ["worker", "-V"]])
def test_version(argv: list[str]) -> None:
    done = run(*argv)
    assert (done.returncode, done.stdout) == (0, f"tokenfarm {version()}\n")


@pytest.mark.parametrize("argv", [[], ["-h"]])
def test_without_a_command_the_commands_are_listed(argv: list[str]) -> None:
    done = run(*argv)
    assert done.returncode == 0
    assert all(f"\n  {name} " in done.stdout for name in ("up", "gateway", "worker"))


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["fly"], "tokenfarm fly is no command, there are: up, serve, gateway, worker, request, dead, jobs"),
        (["up", "--port", "x"], "Invalid argument: --port=x, allowed is a whole number of at least 0 and at most 65535"),
        (["worker", "--max-batch-size", "0"], "Invalid argument: --max-batch-size=0, allowed is a whole number of at least 1"),
        (["gateway", "--colour"], "Invalid argument: --colour is unknown, see --help"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_status_2(argv: list[str], said: str) -> None:
    done = run(*argv)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said + "\n")


def test_settings_are_printed_without_secrets() -> None:
    done = run("up", "--env", "--port", "1", HOSTNAME="203.0.113.1", HF_TOKEN="canary", API_KEY="canary")
    assert done.returncode == 2
    assert "HF_TOKEN=set\n" in done.stdout
    assert "MAX_CONCURRENT_REQUESTS=128\n" in done.stdout
    assert "canary" not in done.stdout + done.stderr
