"""The overlay with the real optimum-neuron (neuron.md §3.3): `python -m tests.neuron.environment` makes it once and prints it."""

from __future__ import annotations

from tests.overlays import overlay

PINS = (
    "optimum-neuron==0.4.5",
    "optimum==2.0.0",
    "transformers==4.57.6",
    "huggingface_hub==0.36.2",
    "tokenizers==0.22.2",
)


if __name__ == "__main__":
    print(overlay("neuron", PINS))
