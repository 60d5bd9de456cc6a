"""What a stock model on the CPU finds of texts. `python -m workers.selftest_reference FOLDER` reads and writes JSON.

A process of its own is needed beside a library that replaces the classes of `transformers`, as optimum-habana does.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from workers.plain_model import plain_model

ROUNDING = 0.5
"""Logits this close are equal in bfloat16; either token is right."""


class Text(NamedTuple):
    """A prompt and what a device made of it; -1 where its output was not a number."""

    prompt: Sequence[int]
    tokens: Sequence[int]


@torch.inference_mode()
def good(folder: Path, texts: Sequence[Text]) -> list[bool]:
    """For each token of each text whether a greedy stock model would take it too, given what is before it."""
    model = plain_model(folder)
    found: list[bool] = []
    for prompt, tokens in texts:
        known = [max(0, token) for token in tokens]
        logits = model(input_ids=torch.tensor([[*prompt, *known]])).logits[0, len(prompt) - 1 : -1]
        chosen = logits.gather(1, torch.tensor(known)[:, None])[:, 0]
        found += (logits.max(1).values - chosen <= ROUNDING).tolist()
    return found


def good_elsewhere(folder: Path, texts: Sequence[Text]) -> list[bool]:
    """The same from another process; raises `RuntimeError` with its last line when it fails."""
    run = subprocess.run([sys.executable, "-m", __name__, str(folder)], input=json.dumps(texts), capture_output=True, text=True)
    if run.returncode:
        raise RuntimeError(f"no reference from the CPU: {run.stderr.strip().splitlines()[-1:]}")
    found: list[bool] = json.loads(run.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    print(json.dumps(good(Path(sys.argv[1]), [Text(*text) for text in json.load(sys.stdin)])))
