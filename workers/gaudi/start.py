"""From settings and a model folder to a loaded decoder: every contradiction is found before anything slow (gaudi.md §5.1)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from workers.engines.base import Progress
from workers.gaudi.buckets import Plan, plan
from workers.gaudi.cards import process_env
from workers.gaudi.library import Decoder, Library
from workers.gaudi.memory import require_room
from workers.gaudi.models import require_window, way_of
from workers.gaudi.recipes import recipe_cache
from workers.gaudi.refusals import acquire, load_failure, require_plain_weights, require_stack, require_supported
from workers.model_files import read_json

if TYPE_CHECKING:
    from common.config import Settings

log = logging.getLogger(__name__)

POSITIONS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len")
UNSAID = 2048

DTYPES = {"auto": torch.bfloat16, "bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def open_decoder(settings: Settings, folder: Path, library: Library, progress: Progress) -> tuple[Decoder, Plan]:
    """Takes this worker's card and reads the model of `folder` onto it; also the shapes that are wanted of it.

    Raises `StartError`: 2 for what is not supported, 4 without a card, 5 for a busy one, 7 for other software, 8 without room.
    """
    require_supported(settings)
    config = read_json(folder, "config.json")
    require_plain_weights(settings.model_id, config)
    way = way_of(folder)
    wanted = plan(settings, max_positions(config))
    require_window(config, wanted.max_length)
    dtype = DTYPES[settings.dtype]
    card = library.card(settings)
    library.use(process_env(card, str(recipe_cache(settings, folder))))
    generation = acquire(library, str(card))
    require_stack(generation, library.versions())
    require_room(folder, config, wanted, str(dtype).removeprefix("torch."), library.memory())
    log.info("Loading on %s, %s, %s", generation, card, wanted)
    progress("weights", 0.0)
    try:
        decoder = library.load(folder, way, dtype)
    except (RuntimeError, ValueError) as error:
        refusal = load_failure(error, settings.model_id)
        if refusal is None:
            raise
        raise refusal from error
    progress("weights", 1.0)
    return decoder, wanted


def max_positions(config: Mapping[str, Any]) -> int:
    """The longest row of a model."""
    config = config.get("text_config") or config
    return next((int(config[name]) for name in POSITIONS if config.get(name)), UNSAID)
