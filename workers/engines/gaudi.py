"""The Gaudi engine, and every call to optimum-habana (1.21.2) and Habana's bridge there is (gaudi.md §3). Nothing of them is imported before `acquire`."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from common.errors import StartError
from workers.gaudi.cards import Card, card_of
from workers.gaudi.engine import SharedColumnEngine
from workers.gaudi.library import Decoder, KeysValues, Memory, Versions

if TYPE_CHECKING:
    from common.config import Settings

FLASH_ONLY = frozenset({"starcoder2"})
"""Model types whose attention fails without the fused kernel."""


class Prefill(torch.nn.Module):
    """See `workers.gaudi.library.Decoder`; `flags` never change, since a graph's key has the value of each."""

    def __init__(self, model: Any, flags: Mapping[str, bool]) -> None:
        super().__init__()
        self._model = model
        self._flags = dict(flags)

    def forward(
        self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, token_idx: torch.Tensor
    ) -> tuple[torch.Tensor, KeysValues]:
        output = self._model(
            input_ids=ids, attention_mask=mask, position_ids=positions, token_idx=token_idx, use_cache=True, return_dict=True, **self._flags
        )
        return output.logits[:, -1], tuple((keys, values) for keys, values in output.past_key_values)


class Decode(torch.nn.Module):
    """The cache is written in place and is not among the outputs, or each graph would keep a copy of it."""

    def __init__(self, model: Any, flags: Mapping[str, bool]) -> None:
        super().__init__()
        self._model = model
        self._flags = dict(flags)

    def forward(
        self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, token_idx: torch.Tensor, kv: KeysValues, n_columns: int | None
    ) -> torch.Tensor:
        output = self._model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=kv,
            token_idx=token_idx,
            use_cache=True,
            return_dict=True,
            **({} if n_columns is None else {"cache_idx": n_columns}),
            **self._flags,
        )
        return output.logits[:, -1]  # type: ignore[no-any-return]


class HabanaDecoder:
    """A model of optimum-habana; implements `workers.gaudi.library.Decoder`."""

    def __init__(self, model: Any, flags: Mapping[str, bool]) -> None:
        known = inspect.signature(model.forward).parameters  # it swallows what it does not know
        flags = {name: value for name, value in flags.items() if name in known}
        later = {"first_token": False} if "first_token" in known else {}
        self.prefill = Prefill(model, flags)
        self.decode = Decode(model, {name: value for name, value in flags.items() if name != "trim_logits"} | later)
        self.vocab_size = int(model.config.vocab_size)
        self.cuts = "cache_idx" in known
        self.trims = "trim_logits" in known


class OptimumHabana:
    """The real library on a real card; implements `workers.gaudi.library.Library`."""

    device = torch.device("hpu")

    def __init__(self, flash_attention: bool = True, recompute: bool = True) -> None:
        self._flags = {
            "trim_logits": True,
            "use_flash_attention": flash_attention,
            "flash_attention_recompute": flash_attention and recompute,
        }

    def versions(self) -> Versions:
        return Versions(_installed("optimum-habana"), _installed("habana-torch-plugin"))

    def card(self, settings: Settings) -> Card:
        return card_of(settings.worker_number, settings.workers, settings.habana_visible_modules)

    def use(self, env: Mapping[str, str]) -> None:
        """Raises `StartError` when the bridge has already read other values."""
        late = [name for name, value in env.items() if os.environ.get(name) != value]
        if late and "habana_frameworks.torch" in sys.modules:
            raise StartError(
                f"Habana's bridge was imported before {', '.join(sorted(late))} could be set: set it where the worker is started"
            )
        os.environ.update(env)

    def acquire(self) -> str:
        from habana_frameworks.torch import hpu
        from habana_frameworks.torch.utils.internal import is_lazy

        if not is_lazy():
            raise StartError("graphs need lazy mode: PT_HPU_LAZY_MODE=1 where the worker is started")
        hpu.current_device()
        return str(hpu.get_device_name()).lower()

    def load(self, folder: Path, way: str, dtype: torch.dtype, max_length: int) -> Decoder:
        """The folder is a local one: given a hub id the library asks the hub even when it is told to be offline."""
        from habana_frameworks.torch.core import hpu_set_env

        hpu_set_env()
        if way == "habana":
            from optimum.habana.transformers.modeling_utils import adapt_transformers_to_gaudi

            adapt_transformers_to_gaudi()
        model = self._read(folder, way, dtype)
        _require(model, way)
        if way == "stock":
            from workers.gaudi.stock import StockDecoder

            return StockDecoder(model)
        if max_length > model.config.max_position_embeddings and hasattr(model, "update_sincos_cache"):
            model.update_sincos_cache(max_length)
        return HabanaDecoder(model, self._flags | {"use_flash_attention": True} if model.config.model_type in FLASH_ONLY else self._flags)

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.device)

    def capture(self, module: torch.nn.Module) -> Callable[..., object]:
        from habana_frameworks.torch.hpu import wrap_in_hpu_graph

        return wrap_in_hpu_graph(module, disable_tensor_cache=True)  # type: ignore[no-any-return]

    @contextmanager
    def recipe(self) -> Iterator[None]:
        from habana_frameworks.torch.core import mark_step

        yield
        mark_step()

    def synchronize(self) -> None:
        from habana_frameworks.torch import hpu

        hpu.synchronize()

    def memory(self) -> Memory:
        from habana_frameworks.torch import hpu

        return Memory(*hpu.mem_get_info())

    def n_compilations(self) -> int:
        from habana_frameworks.torch.hpu.metrics import metric_global

        return int(dict(metric_global("graph_compilation").stats())["TotalNumber"])

    def _read(self, folder: Path, way: str, dtype: torch.dtype) -> Any:
        from transformers import AutoConfig, AutoModelForCausalLM
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()
        config = AutoConfig.from_pretrained(str(folder), local_files_only=True)
        # Others have no soft cap on scores, and drop the mask when a look at its values shows no pads: on a card that is no graph.
        eager = way == "habana" or getattr(config, "attn_logit_softcapping", None)
        attention = {"attn_implementation": "eager"} if eager else {}
        try:
            model = AutoModelForCausalLM.from_pretrained(
                str(folder), config=config, local_files_only=True, use_safetensors=True, torch_dtype=dtype, **attention
            )
        except (OSError, ValueError, KeyError) as error:
            raise StartError(f"{folder}: {' '.join(str(error).split())[:300]}") from None
        return model.eval().requires_grad_(False).to(self.device)


class GaudiEngine(SharedColumnEngine):
    """An engine on a Gaudi card."""

    def __init__(self, settings: Settings, model_path: str, worker: str) -> None:
        super().__init__(settings, model_path, worker, OptimumHabana(settings.use_flash_attention, settings.flash_attention_recompute))


def _require(model: Any, way: str) -> None:
    """The classes are replaced for good and for the whole process, and a mixture of both computes nonsense without an error."""
    origin = "optimum.habana." if way == "habana" else "transformers."
    for part in (model, model.base_model):
        module = type(part).forward.__module__
        assert module.startswith(origin), f"{type(part).__name__} of way {way} computes in {module}"


def _installed(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
