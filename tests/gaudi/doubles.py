"""Engines over the card's double."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from common.config import Settings
from workers.double_tokens import HashTokens
from workers.engines.base import Progress
from workers.engines.gaudi_double import DoubleLibrary
from workers.gaudi.behaving import Faults
from workers.gaudi.buckets import plan
from workers.gaudi.double import CardDouble
from workers.gaudi.engine import SharedColumnEngine
from workers.gaudi.hashed import HashedDecoder

VOCAB = 120
LENGTH = 64
SMALL = {"MAX_BATCH_SIZE": "4", "MAX_TOTAL_TOKENS": str(LENGTH), "MAX_INPUT_TOKENS": str(LENGTH - 1), "PAD_SEQUENCE_TO_MULTIPLE_OF": "8"}
NO_FAULTS = Faults()


def engine_over(
    decoder: Any = None, faults: Faults = NO_FAULTS, folder: Path | None = None, progress: Progress = lambda _what, _done: None, **env: Any
) -> SharedColumnEngine:
    """A warmed engine whose card refuses to compile from here on; `card_of(engine)` is its card."""
    library = DoubleLibrary(faults)
    settings = Settings.from_env({"FARM_BACKEND": "gaudi-double", **SMALL, **env})
    engine = SharedColumnEngine(settings, str(folder or ""), "test", library)
    engine.serve(library.behind_faults(decoder or HashedDecoder(HashTokens(VOCAB), VOCAB)), plan(settings, LENGTH))
    engine.ledger.strict = True
    engine.warm_up(progress)
    library.double.serving = not engine.cold
    return engine


def card_of(engine: SharedColumnEngine) -> CardDouble:
    """The card under an engine of `engine_over`."""
    library = engine._library
    assert isinstance(library, DoubleLibrary)
    return library.double
