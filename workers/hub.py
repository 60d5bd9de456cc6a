"""Downloads a model from the hub into the hub library's own cache: safetensors, tokenizer and configuration files only."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common.errors import StartError
from workers.engines.base import Progress

if TYPE_CHECKING:
    from common.config import Settings

log = logging.getLogger(__name__)

NO_WEIGHTS = 3
"""Exit status when the weights cannot be had: the worker is not restarted."""

TIMEOUT_S = 4.0
DEFAULT_ENDPOINT = "https://huggingface.co"
SAFE_FILES = ("*.json", "*.safetensors", "*.model", "*.txt", "*.jinja")
UNSAFE_FILES = ("*.bin", "*.py")
OTHER_FORMATS = ("*/*", "consolidated*")
"""Sub-folders hold other formats of the same weights; Mistral's `consolidated` files are a second copy."""

EXPORTED = "neuron_config.json"
ARTIFACT_FILES = (*SAFE_FILES, "model.pt")
"""A model exported to Neuron: compiled graphs, and weights in a sub-folder unless they are those of another repository."""


def download(settings: Settings, progress: Progress) -> Path:
    """The snapshot folder of `settings.model_id` at `settings.revision`; the cached one when the hub is off, down or refuses.

    Raises `StartError` in one line within 10 s when the weights cannot be had; the line never holds the token. A full
    disk stays an `OSError`.
    """
    refusal: Exception | None = None
    if not settings.hf_hub_offline:
        try:
            names = _list_files(settings)
            if EXPORTED in names:
                return _snapshot(settings, progress, ARTIFACT_FILES, ())
            _require_safe_weights(settings, names)
            return _snapshot(settings, progress, _allowed(settings))
        except StartError:
            raise
        # The library passes on the errors of whichever HTTP client its version uses.
        except Exception as error:
            if "No space left" in str(error):
                raise OSError(str(error)) from None
            refusal = error
    try:
        folder = _snapshot(settings, progress, _allowed(settings), local_files_only=True)
    except Exception as error:
        raise StartError(_explain(settings, refusal or error), NO_WEIGHTS) from None
    if refusal is not None:
        log.warning("MODEL_ID=%s is served from the cache: the hub answered %s", settings.model_id, type(refusal).__name__)
    return folder


def hub_environment(settings: Settings) -> dict[str, str]:
    """What makes libraries that download by themselves keep to the same cache; they read it when they are imported."""
    return {"HF_HUB_CACHE": settings.huggingface_hub_cache} if settings.huggingface_hub_cache else {}


def _list_files(settings: Settings) -> list[str]:
    """Names of the repository's files. The download itself has no time limit on its first request, this one has."""
    from huggingface_hub import HfApi

    api = HfApi(endpoint=settings.hf_endpoint, token=settings.hf_token)
    info = api.model_info(settings.model_id, revision=settings.revision, timeout=TIMEOUT_S)
    return [file.rfilename for file in info.siblings or ()]


def _require_safe_weights(settings: Settings, names: list[str]) -> None:
    allowed = _allowed(settings)
    weights = [name for name in names if name.endswith((".safetensors", ".bin")) and any(fnmatch(name, pattern) for pattern in allowed)]
    if not any("/" not in name for name in weights):
        raise StartError(
            f"MODEL_ID={settings.model_id} has no safetensors weights; pickled weights can run code and need --trust-remote-code"
        )


def _snapshot(
    settings: Settings, progress: Progress, allowed: Sequence[str], ignored: Sequence[str] = OTHER_FORMATS, local_files_only: bool = False
) -> Path:
    from huggingface_hub import snapshot_download

    progress("downloading weights", 0.0)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Not enough free disk")  # the error that follows says it in one line
        folder = snapshot_download(
            settings.model_id,
            revision=settings.revision,
            cache_dir=_cache(settings),
            endpoint=settings.hf_endpoint,
            token=settings.hf_token,
            local_files_only=local_files_only,
            etag_timeout=TIMEOUT_S,
            allow_patterns=list(allowed),
            ignore_patterns=list(ignored),
            tqdm_class=_reporting_bar(progress),
        )
    progress("downloading weights", 1.0)
    return Path(folder)


def _allowed(settings: Settings) -> tuple[str, ...]:
    return SAFE_FILES + (UNSAFE_FILES if settings.trust_remote_code else ())


def _cache(settings: Settings) -> Path | None:
    """The hub cache that the settings name; None: the library's own default."""
    if settings.huggingface_hub_cache:
        return Path(settings.huggingface_hub_cache)
    return Path(settings.hf_home) / "hub" if settings.hf_home else None


def _reporting_bar(progress: Progress) -> type[Any]:
    """A progress bar class that draws nothing and reports the share of bytes."""
    from tqdm.auto import tqdm  # type: ignore[import-untyped]

    class Bar(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            kwargs.pop("name", None)
            super().__init__(*args, **{**kwargs, "file": io.StringIO(), "disable": False})

        def update(self, n: float | None = 1) -> None:
            super().update(n)
            if self.unit == "B" and self.total:
                progress("downloading weights", min(1.0, self.n / self.total))

    return Bar


def _explain(settings: Settings, error: Exception) -> str:
    """One line that names the model, its page and what to do."""
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, RevisionNotFoundError

    endpoint = settings.hf_endpoint or DEFAULT_ENDPOINT
    what, page = f"MODEL_ID={settings.model_id}", f"{endpoint}/{settings.model_id}"
    if isinstance(error, HFValidationError):
        return f"{what} is neither a folder, nor a .gguf file, nor a hub id"
    if isinstance(error, RevisionNotFoundError):
        return f"{what} has no revision {settings.revision}: see {page}"
    if isinstance(error, LocalEntryNotFoundError):
        return f"{what} is not complete in the cache and HF_HUB_OFFLINE forbids to ask the hub"
    if isinstance(error, HfHubHTTPError) and error.response.status_code in (401, 403, 404):
        token = "the token in HF_TOKEN is wrong or has no access" if settings.hf_token else "HF_TOKEN is not set"
        return f"{what} is private, gated or does not exist, and {token}: see {page}, accept its licence there, and set HF_TOKEN"
    return f"{what}: the hub at {endpoint} cannot be reached ({type(error).__name__}), and the model is not in the cache"
