"""The overlay with the real optimum-habana (gaudi.md §4.1) and our stub of the bridge to the card.

`python -m tests.gaudi.environment` makes it once and prints what PYTHONPATH needs.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.overlays import overlay

STUB = Path(__file__).parent / "contract" / "stub"

PINS = (
    "optimum-habana==1.21.2",
    "optimum==2.0.0",
    "transformers==4.55.4",
    "accelerate==1.10.1",
    "huggingface_hub==0.36.2",
    "tokenizers==0.21.4",
    "scipy==1.16.3",
    "pillow==12.0.0",
    "psutil==7.1.3",
    "sentencepiece==0.2.1",
)


def python_path() -> str:
    return os.pathsep.join([str(overlay("gaudi", PINS)), str(STUB)])


if __name__ == "__main__":
    print(python_path())
