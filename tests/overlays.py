"""Folders for PYTHONPATH with packages that need another `transformers` than `.venv` has, below `.venvs/`."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1] / ".venvs"


def overlay(name: str, pins: Sequence[str]) -> Path:
    """The complete folder, keyed by a hash of its pins and made once; raises `CalledProcessError` when it cannot be made.

    Torch is that of the Python that runs the tests.
    """
    digest = hashlib.sha256(repr((tuple(pins), sys.version_info[:3])).encode()).hexdigest()[:10]
    folder = ROOT / f"{name}-{digest}"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*install, "--target", str(folder), *pins], check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr)
        (folder / "complete").touch()
    return folder
