"""What stops a Neuron worker at its start: one exit status and one line each, with what to do."""

from __future__ import annotations

import re

from common.errors import StartError
from workers.neuron.artifact import Artifact
from workers.neuron.memory import OUT_OF_MEMORY
from workers.neuron.status import status_of

CORES_BUSY = 5
OTHER_COMPILER = 6
OTHER_LIBRARY = 7
"""Exit statuses; `StartError` lists all."""

SUPPORTED_LIBRARIES = ("0.4.4", "0.4.5", "0.4.6")
"""Releases of optimum-neuron with the calls of `workers/engines/neuron.py`; contract-tested is 0.4.5."""

AGAIN = "export it again: optimum-cli export neuron --model …"

BUSY_TEXTS = ("nrt_allocate_neuron_cores", "cannot determine the number of available NeuronCores")
MEMORY_TEXTS = ("NRT allocation failed", "OOM", "RESOURCE_EXHAUSTED")
COMPILER_TEXTS = ("Could not load the model",)


def require_library(installed: str) -> None:
    """Raises `StartError` when the calls of this release are not known."""
    if release(installed) not in SUPPORTED_LIBRARIES:
        raise StartError(f"optimum-neuron {installed or 'is not installed'}, supported: {', '.join(SUPPORTED_LIBRARIES)}", OTHER_LIBRARY)


def require_same_versions(artifact: Artifact, library: str, compiler: str) -> None:
    """Raises `StartError` for an artifact that this installation cannot load: it is tied to one release and one compiler."""
    if artifact.library and artifact.library != library:
        raise StartError(f"the model was exported with optimum-neuron {artifact.library}, installed is {library}; {AGAIN}", OTHER_LIBRARY)
    if artifact.compiler and artifact.compiler.split("+")[0] != compiler.split("+")[0]:
        raise StartError(f"the model was compiled with neuronx-cc {artifact.compiler}, installed is {compiler}; {AGAIN}", OTHER_COMPILER)


def load_failure(error: Exception, artifact: Artifact, cores: str) -> StartError | None:
    """The refusal that a failed load stands for; None when it is none of the known ones."""
    text = " ".join(str(error).split())
    status = status_of(text)
    if status == 4 or _mentions(text, MEMORY_TEXTS):
        return StartError(f"out of device memory while loading {artifact}: export it with a smaller batch or for more cores", OUT_OF_MEMORY)
    if status == 1005 or _mentions(text, BUSY_TEXTS):
        return StartError(
            f"Neuron cores {cores} are held by another process; end it (neuron-ls shows it), or name others in NEURON_RT_VISIBLE_CORES",
            CORES_BUSY,
        )
    if status == 10 or (status == 2 and _mentions(text, COMPILER_TEXTS)):
        return StartError(f"the Neuron runtime cannot load this model, it was compiled for another version; {AGAIN}", OTHER_COMPILER)
    if isinstance(error, ValueError):
        return StartError(f"optimum-neuron refuses the model: {text[:300]}")
    return None


def release(version: str) -> str:
    """`0.4.6.dev4` is of release `0.4.6`."""
    found = re.match(r"\d+\.\d+\.\d+", version)
    return found.group() if found else ""


def _mentions(text: str, words: tuple[str, ...]) -> bool:
    return any(word in text for word in words)
