"""From settings and a model folder to a loaded Neuron model: every contradiction is found before anything slow (neuron.md §4.2)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from common.errors import StartError
from workers.engines.base import Progress
from workers.neuron.artifact import Artifact, Wanted, dtype_name, read_artifact, require_agreement, wanted
from workers.neuron.cores import Host, claim, require_degree, share, supported_degree
from workers.neuron.library import Library, Model
from workers.neuron.memory import require_fit, text_config
from workers.neuron.refusals import load_failure, require_library, require_same_versions
from workers.weights import cache_folder, checkpoint_name

if TYPE_CHECKING:
    from common.config import Settings

log = logging.getLogger(__name__)

DEFAULT_BATCH_SIZE = 4
LONGEST_DEFAULT = 4096

PREFILL_NOTE = "MAX_BATCH_PREFILL_TOKENS has no effect on Neuron: a prefill takes one row"


def open_model(settings: Settings, folder: Path, library: Library, progress: Progress) -> Model:
    """The model of `folder`: an exported one as it is, a plain checkpoint from the hub's cache, or compiled when that is allowed.

    Raises `StartError` with the statuses of `workers.neuron.refusals`.
    """
    if settings.max_batch_prefill_tokens is not None:
        log.info(PREFILL_NOTE)
    if settings.hf_token:
        library.use({"HF_TOKEN": settings.hf_token})  # the weights of an artifact may be those of another repository
    asked = wanted(settings)
    installed = library.versions()
    require_library(installed[0])
    host = library.host(settings)
    mine = share(host.cores, settings.worker_number, settings.workers)
    artifact = read_artifact(folder)
    if artifact is not None:
        require_same_versions(artifact, *installed)
        require_agreement(artifact, asked, settings.max_input_tokens)
        return _load(folder, artifact, host, mine, library, progress)
    if asked.tp_degree is not None:
        require_degree(host.instance, asked.tp_degree)
    asked = asked._replace(dtype=asked.dtype or checkpoint_dtype(folder))
    library.use(runtime_env(mine, asked.tp_degree or max(1, len(mine))))
    cached = choose(_cached(library, folder, asked, settings), asked, host, len(mine))
    if cached is None and not settings.allow_compile:
        raise StartError(none_cached(settings.model_id, asked, _cached(library, folder, Wanted(), settings)))
    artifact = cached or complete(asked, folder, host, len(mine))
    require_agreement(artifact, asked, settings.max_input_tokens)
    if cached is not None:
        return _load(folder, artifact, host, mine, library, progress, "taking from the cache")
    kept = _kept(settings, folder, artifact, installed)
    if read_artifact(kept) is not None:
        return _load(kept, artifact, host, mine, library, progress)
    return _load(folder, artifact, host, mine, library, progress, "compiling, up to an hour", _writable(kept))


def choose(cached: Sequence[Artifact], asked: Wanted, host: Host, n_cores: int) -> Artifact | None:
    """The cached configuration that equals all that was asked for; of several the one with most cores, then most rows."""
    fitting = [
        artifact
        for artifact in cached
        if asked.matches(artifact)
        and artifact.tp_degree <= n_cores
        and supported_degree(host.instance, artifact.tp_degree)
        and artifact.target in ("", host.target)
        and (artifact.continuous_batching or artifact.batch_size == 1)
    ]
    best = max(fitting, key=lambda artifact: (not artifact.on_device_sampling, artifact.tp_degree, artifact.batch_size), default=None)
    return best and best._replace(target=host.target)


def none_cached(model_id: str, asked: Wanted, cached: Sequence[Artifact]) -> str:
    """The line that lists what could be asked for instead."""
    what = ", ".join(f"{name} {value}" for name, value in asked._asdict().items() if value is not None) or "any configuration"
    listed = "; ".join(sorted({str(artifact) for artifact in cached})) or "none"
    return (
        f"{model_id} is not in the cache of compiled models with {what}; cached are: {listed}. "
        "Ask for one of these, export the model, or allow compiling it here with --allow-compile (up to an hour)"
    )


def complete(asked: Wanted, folder: Path, host: Host, n_cores: int) -> Artifact:
    """What to compile: what was asked for, the rest by default; sampled on the host (seeds, logprobs, penalties)."""
    config = text_config(folder)
    batch_size = asked.batch_size or DEFAULT_BATCH_SIZE
    length = asked.sequence_length or min(int(config.get("max_position_embeddings", LONGEST_DEFAULT)), LONGEST_DEFAULT)
    degrees = (degree for degree in range(n_cores, 0, -1) if supported_degree(host.instance, degree))
    dtype = asked.dtype or checkpoint_dtype(folder)
    return Artifact(batch_size, length, asked.tp_degree or next(degrees), dtype, length, batch_size > 1, target=host.target)


def checkpoint_dtype(folder: Path) -> str:
    """The precision of the checkpoint's own configuration."""
    config = text_config(folder)
    return dtype_name(config.get("dtype") or config.get("torch_dtype") or "bfloat16")


def runtime_env(mine: Sequence[int], tp_degree: int) -> dict[str, str]:
    """What makes the runtime take these cores and no others; raises `StartError`."""
    return {"NEURON_RT_VISIBLE_CORES": claim(mine, tp_degree), "NEURON_RT_NUM_CORES": str(tp_degree)}


def _load(
    folder: Path, artifact: Artifact, host: Host, mine: Sequence[int], library: Library, progress: Progress, export: str = "",
    kept: Path | None = None,
) -> Model:  # fmt: skip
    """Loads an exported model, or makes one when `export` says how that is called."""
    if artifact.target and artifact.target != host.target:
        raise StartError(f"the model was compiled for {artifact.target}, this host is {host.instance}; export it for this one")
    require_degree(host.instance, artifact.tp_degree)
    env = runtime_env(mine, artifact.tp_degree)
    require_fit(folder, artifact, host.core_bytes)
    library.use(env)
    cores = env["NEURON_RT_VISIBLE_CORES"]
    log.info("Loading %s on cores %s", artifact, cores)
    progress(export or "loading", 0.0)
    try:
        model = library.export(folder, artifact, kept) if export else library.load(folder)
    except (RuntimeError, ValueError, OSError) as error:
        refusal = load_failure(error, artifact, cores)
        if refusal is None:
            raise
        raise refusal from error
    progress("loading", 1.0)
    require_agreement(model.artifact, Wanted(*artifact[:4]))
    return model


def _cached(library: Library, folder: Path, asked: Wanted, settings: Settings) -> list[Artifact]:
    try:
        return library.cached(folder, asked)
    except (OSError, ValueError) as error:
        if not settings.allow_compile:
            raise StartError(f"the hub's cache of compiled models cannot be read: {' '.join(str(error).split())[:200]}", 3) from None
        log.warning("the hub's cache of compiled models cannot be read: %s", type(error).__name__)
        return []


def _kept(settings: Settings, folder: Path, artifact: Artifact, installed: tuple[str, str]) -> Path:
    """Where a compiled model is kept: another checkpoint, configuration or release has another folder."""
    shape = f"{artifact.batch_size}x{artifact.sequence_length}-{artifact.tp_degree}cores-{artifact.dtype}"
    return cache_folder(settings) / "neuron" / f"{checkpoint_name(folder)}-{shape}-{installed[0]}-{installed[1].split('+')[0]}"


def _writable(kept: Path) -> Path | None:
    """The folder itself, or None when nothing can be kept there: a compilation of an hour is not lost to that."""
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=kept.parent):
            return kept
    except OSError as error:
        log.warning("The compiled model cannot be kept in %s (%s): the next start compiles again", kept.parent, error.strerror)
        return None
