"""The overlay with the real optimum-neuron: a folder for PYTHONPATH under `.venvs/`, keyed by a hash of its pins (neuron.md §3.3).

`python -m tests.neuron.environment` makes it once and prints it. Torch is that of the Python that runs the tests.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2] / ".venvs"

PINS = (
    "optimum-neuron==0.4.5",
    "optimum==2.0.0",
    "transformers==4.57.6",
    "huggingface_hub==0.36.2",
    "tokenizers==0.22.2",
)


def overlay() -> Path:
    """The complete folder; raises `CalledProcessError` when it cannot be made."""
    digest = hashlib.sha256(repr((PINS, sys.version_info[:3])).encode()).hexdigest()[:10]
    folder = ROOT / f"neuron-{digest}"
    if not (folder / "complete").exists():
        shutil.rmtree(folder, ignore_errors=True)
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*install, "--target", str(folder), *PINS], check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr)
        (folder / "complete").touch()
    return folder


if __name__ == "__main__":
    print(overlay())
