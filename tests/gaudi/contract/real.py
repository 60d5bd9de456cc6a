"""Our engine over the real optimum-habana on the stub of the bridge, whose card is the double."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from common.config import Settings
from tests.gaudi.contract import host
from tests.gaudi.contract.tiny import LENGTH
from tests.gaudi.contract.watch import Watched
from workers.engines.gaudi import OptimumHabana
from workers.gaudi.buckets import plan
from workers.gaudi.cards import Card
from workers.gaudi.engine import SharedColumnEngine
from workers.gaudi.library import Decoder

SMALL = {
    "MAX_BATCH_SIZE": "4",
    "MAX_TOTAL_TOKENS": str(LENGTH),
    "MAX_INPUT_TOKENS": str(LENGTH - 1),
    "PAD_SEQUENCE_TO_MULTIPLE_OF": "16",
    "SEQ_LEN_EXPONENT_BASE": "2",
    "VLLM_PROMPT_BS_BUCKET_LIMIT": "2",
    "PT_HPU_RECIPE_CACHE_CONFIG": ",false,1024",
}
"""Prefills of 1 and 4 rows of 16, 32 and 64 tokens."""


class OnStub(OptimumHabana):
    """The real library; a card is in slot 0 of this host, and `cpu` is its name for torch."""

    device = torch.device("cpu")

    def card(self, settings: Settings) -> Card:
        return Card(0, None)

    def acquire(self) -> str:
        generation = super().acquire()
        new_card()
        return generation

    def load(self, folder: Path, way: str, dtype: torch.dtype) -> Decoder:
        host.install()
        decoder: Any = super().load(folder, way, dtype)
        if way == "habana":
            _rotate_on_cpu("mistral")
            _rotate_on_cpu("mixtral")
        decoder.prefill, decoder.decode = Watched(decoder.prefill), Watched(decoder.decode)
        loaded: Decoder = decoder
        return loaded

    @contextmanager
    def recipe(self) -> Iterator[None]:
        from habana_frameworks.torch import hpu

        with hpu.CARD.recipe(), super().recipe():
            yield


class Either(OnStub):
    """Takes the attention that it is told to, whatever the table says."""

    def _fused_for(self, model_type: str) -> bool:
        return self._fused


def settings(**env: str) -> Settings:
    return Settings.from_env({"FARM_BACKEND": "gaudi", "DTYPE": "float32", **SMALL, **env})


def engine_over(folder: Path, way: str, library: OnStub, **env: str) -> SharedColumnEngine:
    """A warmed engine over the model of `folder`, whatever the table says of its way."""
    engine = SharedColumnEngine(settings(**env), str(folder), "test", library)
    new_card()
    engine.serve(library.load(folder, way, torch.float32), plan(engine._settings, LENGTH))
    return warmed(engine)


def started(folder: Path, **env: str) -> SharedColumnEngine:
    """A warmed engine, loaded as a worker loads it."""
    engine = SharedColumnEngine(settings(**env), str(folder), "test", OnStub())
    engine.load(lambda _what, _done: None)
    return warmed(engine)


def warmed(engine: SharedColumnEngine) -> SharedColumnEngine:
    """Its card refuses to compile from here on."""
    from habana_frameworks.torch import hpu

    engine.ledger.strict = True
    engine.warm_up(lambda _what, _done: None)
    hpu.CARD.serving = True
    return engine


def new_card() -> None:
    from habana_frameworks.torch import hpu

    hpu.insert_card()


def _rotate_on_cpu(model_type: str) -> None:
    """Two models look up their angles in the card's kernel only."""
    module = import_module(f"optimum.habana.transformers.models.{model_type}.modeling_{model_type}")

    def rotate(q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, at: torch.Tensor, _training: bool) -> Any:
        return module.apply_rotary_pos_emb(q, k, cos[at], sin[at])

    module.apply_customized_rope = rotate
