"""Turns a GGUF file into a folder in transformers' format: bf16 safetensors, tokenizer, chat template."""

from __future__ import annotations

import fcntl
import io
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from pathlib import Path

from common.errors import StartError
from workers.engines.base import Progress
from workers.host import MATHS

log = logging.getLogger(__name__)


def convert_once(source: Path, target: Path, progress: Progress) -> None:
    """Fills `target` with the converted model: all of it or nothing, and by one process even when several ask at once."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with _locked(target.with_name(f".{target.name}.lock")):
        if target.is_dir():
            return
        part = target.with_name(f".{target.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        try:
            _convert(source, part, progress)
            part.rename(target)
        finally:
            shutil.rmtree(part, ignore_errors=True)
    log.info("converted %s into %s", source.name, target)


def _convert(source: Path, folder: Path, progress: Progress) -> None:
    """Copies the tensors into a fresh model of the file's configuration; `from_pretrained` would need another package for it."""
    os.environ.update(MATHS | os.environ)
    import torch
    from safetensors import SafetensorError
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint
    from transformers.utils.logging import disable_progress_bar

    from workers.stock_model import DTYPE_ARGUMENT

    disable_progress_bar()  # type: ignore[no-untyped-call]
    progress("converting weights", 0.0)
    try:
        config = AutoConfig.from_pretrained(source.parent, gguf_file=source.name)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, **{DTYPE_ARGUMENT: torch.bfloat16})  # type: ignore[no-untyped-call]
        progress("converting weights", 0.2)
        with redirect_stderr(io.StringIO()):  # it draws a bar of its own
            tensors = load_gguf_checkpoint(str(source), True, model, torch.bfloat16)["tensors"]  # type: ignore[no-untyped-call]
        progress("converting weights", 0.6)
        model.load_state_dict(tensors, strict=False, assign=True)
        model.tie_weights()
        missing = [name for name, parameter in model.named_parameters() if parameter.is_meta]
        if missing:
            raise StartError(f"{source} lacks {len(missing)} tensors of its {config.model_type} model, the first is {missing[0]}")
        tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
        progress("converting weights", 0.8)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    except SafetensorError as error:
        raise OSError(str(error)) from None
    except (ValueError, KeyError, ImportError) as error:
        raise StartError(f"{source} cannot be converted: {' '.join(str(error).split())[:300]}") from None
    progress("converting weights", 1.0)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Holds an exclusive lock on `path`; the system releases it when the process dies."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
