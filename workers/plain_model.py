"""A stock `transformers` decoder on the CPU: what devices are compared with, and what a device double computes."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def plain_model(folder: Path) -> Any:
    """The model of `folder` in float32, ready for inference; reads safetensors weights only."""
    from transformers import AutoModelForCausalLM  # 1.5 s that a double without weights can do without
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()  # type: ignore[no-untyped-call]
    model: Any = AutoModelForCausalLM.from_pretrained(folder, use_safetensors=True, local_files_only=True)
    return model.float().eval()
