"""What stops a Gaudi worker at its start: one exit status and one line each, with what to do (gaudi.md §0, §7)."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from common.errors import StartError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from common.config import Settings
    from workers.gaudi.library import Library, Versions

log = logging.getLogger(__name__)

CARD_BUSY = 5
OTHER_STACK = 7
OUT_OF_MEMORY = 8
"""Exit statuses; `StartError` lists all."""

LIBRARY = (1, 21)
"""Release of optimum-habana with the calls of `workers/engines/gaudi.py`; contract-tested is 1.21.2."""

STACK = (1, 24)
"""Release of the Gaudi software that it goes with."""

FIRST_LIBRARY, FIRST_STACK = (1, 18), (1, 21)
"""The last ones for the first generation."""

CONSTRAINTS = "deploy/images/gaudi1-constraints.txt"

BUSY_TEXTS = ("Device already acquired", "Device acquire failed")  # synStatus 20 and 26; the latter alone says nothing
MEMORY_TEXTS = ("out of memory", "Allocation failed", "allocation failed", "OUT_OF_DEVICE_MEMORY")

WAITS_S = (1.0, 2.0, 4.0, 8.0)
"""Between tries for a busy card: the process that held it may just be ending."""


def require_supported(settings: Settings) -> None:
    """Raises `StartError` for what this worker cannot do yet, before a card is touched."""
    if settings.sharded or (settings.num_shard or 1) > 1:
        raise StartError(
            f"--num-shard {settings.num_shard or 2}: one model on several Gaudi cards is not built yet; "
            "leave --sharded and --num-shard out, and run one worker for each card with WORKERS"
        )
    if settings.quant_config or settings.quantize:
        given = f"QUANT_CONFIG={settings.quant_config}" if settings.quant_config else f"--quantize {settings.quantize}"
        raise StartError(f"{given}: FP8 and other quantized weights are not built yet on Gaudi; serve the checkpoint in bfloat16")


def require_plain_weights(model_id: str, config: Mapping[str, Any]) -> None:
    """Raises `StartError` for a checkpoint whose weights are quantized."""
    quantized = config.get("quantization_config") or config.get("compression_config")
    if quantized:
        method = quantized.get("quant_method") or "unnamed"
        raise StartError(f"{model_id} is quantized ({method}): FP8 and other quantized weights are not built yet on Gaudi")


def require_stack(generation: str, versions: Versions) -> None:
    """Raises `StartError` when the card's generation does not go with the installed software.

    Gaudi 1 ends at software 1.21 with optimum-habana 1.18; Gaudi 2 and 3 are contract-tested with the last release of both.
    """
    library, stack = release(versions.library), release(versions.stack)
    if generation == "gaudi":
        if library > FIRST_LIBRARY or stack > FIRST_STACK:
            raise StartError(
                f"Gaudi 1 needs Gaudi software ≤ 1.21 and optimum-habana ≤ 1.18, installed are {versions.stack} and {versions.library}; "
                f"install with {CONSTRAINTS}",
                OTHER_STACK,
            )
    elif library != LIBRARY or stack != STACK:
        raise StartError(
            f"{generation} needs Gaudi software 1.24 and optimum-habana 1.21, installed are {versions.stack} and {versions.library}; "
            "start in an image of make image-gaudi",
            OTHER_STACK,
        )


def require_installed(versions: Versions) -> None:
    """Raises `StartError` when one of the two packages that drive a card is missing."""
    if not versions.library:
        raise StartError("optimum-habana is not installed: make image-gaudi builds an image with it", OTHER_STACK)
    if not versions.stack:
        raise StartError("habana-torch-plugin is not installed: start in Habana's image, or in one of make image-gaudi", OTHER_STACK)


def acquire(library: Library, card: str, wait: Callable[[float], None] = time.sleep) -> str:
    """Takes the card, its generation; a busy one is tried again for a while. Raises `StartError` naming it, or what is not installed."""
    require_installed(library.versions())
    for wait_s in (*WAITS_S, None):
        try:
            return library.acquire()
        except RuntimeError as error:
            if not is_busy(error):
                raise
            if wait_s is None:
                raise StartError(busy(card), CARD_BUSY) from error
            log.warning("Gaudi %s is busy, trying again in %g s", card, wait_s)
            wait(wait_s)
    raise AssertionError("the last try returns or raises")


def busy(card: str) -> str:
    """The line for a card that another process holds."""
    return (
        f"Gaudi {card} is held by another process; end it (hl-smi shows it), or name others in HABANA_VISIBLE_MODULES. "
        "In a container also check --runtime=habana --cap-add=sys_nice --ipc=host"
    )


def is_busy(error: Exception) -> bool:
    """Whether these are the driver's words for a card that cannot be taken."""
    return _mentions(error, BUSY_TEXTS)


def is_out_of_memory(error: Exception) -> bool:
    """Whether these are the card's words for too little memory; a card that cannot be taken is another matter."""
    return _mentions(error, MEMORY_TEXTS) and not is_busy(error)


def load_failure(error: Exception, what: str) -> StartError | None:
    """The refusal that a failed load of `what` stands for; None when it is none of the known ones."""
    if is_out_of_memory(error):
        return StartError(
            f"out of device memory while loading {what}: lower --max-batch-size or --max-total-tokens, or take a smaller model",
            OUT_OF_MEMORY,
        )
    if isinstance(error, ValueError):
        return StartError(f"optimum-habana refuses the model: {' '.join(str(error).split())[:300]}")
    return None


def release(version: str) -> tuple[int, ...]:
    """`1.21.2` is of release (1, 21)."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else ()


def _mentions(error: Exception, words: tuple[str, ...]) -> bool:
    return any(word in str(error) for word in words)
