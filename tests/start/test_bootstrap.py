"""What `make run` does before the farm is installed (README, "If it does not start")."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from common import install
from common.progress import Progress
from tests.start.farm import ROOT, Run, clean_env, status_of

PYENV = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
OLD_PYTHONS = sorted(str(path) for path in PYENV.glob("versions/3.*/bin/python") if re.search(r"versions/3\.([6-9]|10)\.", str(path)))

PRETEND = "import runpy, sys; {}; sys.argv = ['bootstrap', *sys.argv[1:]]; runpy.run_module('common.bootstrap', run_name='__main__')"


def bootstrap(*argv: str, python: str = sys.executable, pretend: str = "", **env: str) -> subprocess.CompletedProcess[str]:
    start = ["-c", PRETEND.format(pretend)] if pretend else ["-m", "common.bootstrap"]
    return subprocess.run([python, *start, *argv], env=clean_env(**env), cwd=ROOT, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("python", OLD_PYTHONS)
def test_an_old_python_says_what_to_do(python: str, tmp_path: Path) -> None:
    done = bootstrap(str(tmp_path / "venv"), "up", python=python, PYTHONDONTWRITEBYTECODE="1")
    assert done.returncode == 2
    assert re.fullmatch(r"Python 3\.\d+\.\d+ does not run tokenfarm, 3.11 to 3.13 do: .*make run PYTHON=python3\.1[123]\n", done.stderr)


@pytest.mark.parametrize("version", [(3, 10, 13), (3, 14, 0)])
def test_a_python_outside_the_range_says_what_to_do(version: tuple[int, ...], tmp_path: Path) -> None:
    text = ".".join(map(str, version))
    done = bootstrap(
        str(tmp_path / "venv"), "up", pretend=f"sys.version_info = {version}; sys.version = '{text} (main)'", PATH="/nonexistent"
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"Python {text} does not run tokenfarm, 3.11 to 3.13 do: install one, then make run PYTHON=python3.13\n"


def test_without_the_venv_module_it_names_the_package(tmp_path: Path) -> None:
    done = bootstrap(str(tmp_path / "venv"), "up", pretend="sys.modules['ensurepip'] = None")
    package = "python{}.{}-venv".format(*sys.version_info)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"Python's venv module is missing: install {package} (sudo apt install {package}), then make run again\n"


def test_a_taken_port_is_one_line_before_anything_slow(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = bootstrap(str(tmp_path / "venv"), "up", PORT=str(port))
    assert (done.returncode, done.stdout) == (2, "")
    assert re.fullmatch(rf"Port {port} of 127.0.0.1 cannot be used \(.*\): take another one, PORT=\d+ make run\n", done.stderr)
    assert not list(tmp_path.iterdir())


def test_a_wrong_port_is_one_line(tmp_path: Path) -> None:
    done = bootstrap(str(tmp_path / "venv"), "up", PORT="many")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "Invalid argument: PORT=many, allowed is a whole number of at least 0 and at most 65535\n"


def test_a_half_made_environment_is_made_again(tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=False)
    assert not install.has_pip(tmp_path / "venv")
    install.make_venv(tmp_path / "venv")
    assert install.has_pip(tmp_path / "venv")


def test_a_folder_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = bootstrap(str(tmp_path / "file" / "venv"), "up", PORT="0")
    assert done.returncode == 2
    assert done.stderr.startswith(f"Cannot make a virtual environment in {tmp_path}/file/venv: ")
    assert len(done.stderr.splitlines()) == 1


def test_torch_is_the_cpu_build_unless_pip_has_an_index_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    here = Path(sys.prefix)
    default = install.pip_calls(here, {"cpu"})
    assert ([install.TORCH, "--index-url", install.TORCH_CPU_INDEX] in default) == (sys.platform == "linux")
    monkeypatch.setenv("PIP_FIND_LINKS", "/wheels")
    assert not [call for call in install.pip_calls(here, {"cpu"}) if install.TORCH_CPU_INDEX in call]


@pytest.fixture
def installed_venv(tmp_path: Path) -> Path:
    """A virtual environment that sees this one's packages and is marked as installed."""
    folder = tmp_path / "venv"
    venv.create(folder, with_pip=False, symlinks=True)
    site_packages = next(folder.glob("lib/python*/site-packages"))
    here = next(path for path in sys.path if path.endswith("site-packages"))
    (site_packages / "here.pth").write_text(f"import site; site.addsitedir({here!r})\n")
    install.mark_installed(folder, {"gateway", "cpu"})
    return folder


def test_without_a_network_it_says_what_to_do(installed_venv: Path) -> None:
    (installed_venv / "tokenfarm.json").unlink()
    unreachable = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": "http://127.0.0.1:9/", "PIP_RETRIES": "0"}
    done = bootstrap(str(installed_venv), "up", PORT="0", **unreachable)
    assert done.returncode == 2
    assert done.stderr == f"Cannot install (no network: connect once), then make run again; details are in {installed_venv}/install.log\n"
    assert install.installed(installed_venv) == set()


def test_a_second_start_needs_neither_pip_nor_network(installed_venv: Path) -> None:
    run = Run(
        [sys.executable, "-m", "common.bootstrap", str(installed_venv), "up"], clean_env(PORT="0", WORKERS="0", FARM_BACKEND="oracle")
    )
    try:
        port = run.says("listening on 127.0.0.1:").rpartition(":")[2]
        assert status_of(f"http://127.0.0.1:{port}/health/live") == 200
        assert str(installed_venv) in run.processes()[run.process.pid]
        assert not (installed_venv / "install.log").exists()
    finally:
        run.close()


def test_what_was_installed_is_stale_when_the_project_or_python_changes(installed_venv: Path) -> None:
    assert install.installed(installed_venv) == {"gateway", "cpu"}
    with (installed_venv / "pyvenv.cfg").open("a") as config:
        config.write("version = 3.11.99\n")
    assert install.installed(installed_venv) == set()


@pytest.mark.parametrize("content", ["", '{"stamp": "0', '{"stamp": "0", "extras": ["gateway", "cpu"]}'])
def test_a_broken_mark_counts_as_not_installed(installed_venv: Path, content: str) -> None:
    (installed_venv / "tokenfarm.json").write_text(content)
    assert install.installed(installed_venv) == set()


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "the disk is full: free 3 GB"),
        ("WARNING: Retrying … NewConnectionError(…)\nERROR: No matching distribution found for fastapi", "no network: connect once"),
        ("ERROR: Something new", "Something new"),
        ("", "pip failed"),
    ],
)
def test_the_advice_follows_from_the_log_of_pip(log: str, words: str) -> None:
    assert install.advice(log) == words


class Terminal:
    """Collects what is written; says whether it is a terminal."""

    def __init__(self, is_terminal: bool) -> None:
        self.is_terminal = is_terminal
        self.text = ""

    def isatty(self) -> bool:
        return self.is_terminal

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None: ...


def test_progress_off_a_terminal_is_a_line_per_ten_percent() -> None:
    out = Terminal(False)
    progress = Progress(out)  # type: ignore[arg-type]
    for percent in range(101):
        progress.tell("warming up", percent / 100)
    assert 10 <= len(out.text.splitlines()) <= 12
    assert out.text.splitlines()[-1] == "warming up 100 %"


def test_progress_on_a_terminal_is_a_bar_with_the_seconds_left(monkeypatch: pytest.MonkeyPatch) -> None:
    out, clock_s = Terminal(True), [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock_s[0])
    progress = Progress(out)  # type: ignore[arg-type]
    progress.tell("warming up", 0.0)
    clock_s[0] = 5.0
    progress.tell("warming up", 0.5)
    assert out.text.endswith(f"\r\033[K[{'#' * 15}{' ' * 15}] warming up 50 %, 5 s left")
    progress.line("a log line")
    assert out.text.endswith("\r\033[Ka log line\n")
