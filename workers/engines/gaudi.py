"""The Gaudi engine, and every call to optimum-habana (1.21.2) and Habana's bridge (1.24): nothing of them is imported before it is used."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("PT_HPU_LAZY_MODE", "1")  # without it torch imports the bridge by itself, before its other variables are known

import torch

from common.errors import StartError
from workers.gaudi.cards import Card, card_of
from workers.gaudi.engine import SharedColumnEngine
from workers.gaudi.habana import HabanaDecoder
from workers.gaudi.library import Decoder, Memory, Versions
from workers.gaudi.models import HABANA, STOCK, types

if TYPE_CHECKING:
    from common.config import Settings


class OptimumHabana:
    """The real library on a real card; implements `workers.gaudi.library.Library`."""

    device = torch.device("hpu")

    def __init__(self, fused: bool = True, recompute: bool = True) -> None:
        self._fused = fused
        self._recompute = recompute

    def versions(self) -> Versions:
        return Versions(_installed("optimum-habana"), _installed("habana-torch-plugin"))

    def card(self, settings: Settings) -> Card:
        return card_of(settings.worker_number, settings.workers, settings.habana_visible_modules)

    def use(self, env: Mapping[str, str]) -> None:
        """Raises `StartError` when the bridge has already read other values."""
        late = sorted(name for name, value in env.items() if os.environ.get(name) != value)
        if late and "habana_frameworks.torch" in sys.modules:
            raise StartError(f"Habana's bridge was imported before {', '.join(late)} could be set: set it where the worker is started")
        os.environ.update(env)

    def acquire(self) -> str:
        from habana_frameworks.torch import hpu
        from habana_frameworks.torch.utils.internal import is_lazy

        if not is_lazy():
            raise StartError("graphs need lazy mode: PT_HPU_LAZY_MODE=1 where the worker is started")
        hpu.current_device()
        return str(hpu.get_device_name()).lower()

    def load(self, folder: Path, way: str, dtype: torch.dtype) -> Decoder:
        """The folder is a local one: given a hub id the library asks the hub even when it is told to be offline."""
        from habana_frameworks.torch.core import hpu_set_env

        hpu_set_env()
        if way == HABANA:
            from optimum.habana.transformers.modeling_utils import adapt_transformers_to_gaudi

            adapt_transformers_to_gaudi()
            _mend_deepseek_v2()
        model = self._read(folder, way, dtype)
        _require(model, way)
        if way == STOCK:
            from workers.gaudi.stock import StockDecoder

            return StockDecoder(model)
        fused = self._fused_for(model.config.model_type)
        return HabanaDecoder(model, {"use_flash_attention": fused, "flash_attention_recompute": fused and self._recompute})

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

    def _fused_for(self, model_type: str) -> bool:
        """What was asked for, unless only one kind of attention gives this type's tokens."""
        fused = types()[model_type].fused
        return self._fused if fused == "both" else fused == "always"

    def _read(self, folder: Path, way: str, dtype: torch.dtype) -> Any:
        from transformers import AutoConfig, AutoModelForCausalLM
        from transformers.utils.logging import disable_progress_bar

        disable_progress_bar()  # type: ignore[no-untyped-call]
        config = AutoConfig.from_pretrained(str(folder), local_files_only=True)
        # Others have no soft cap on scores, and leave the mask out when its values show no pads, which a graph must not look at.
        eager = way == HABANA or getattr(config, "attn_logit_softcapping", None)
        model: Any = AutoModelForCausalLM.from_pretrained(
            str(folder),
            config=config,
            local_files_only=True,
            use_safetensors=True,
            torch_dtype=dtype,
            **({"attn_implementation": "eager"} if eager else {}),
        )
        return model.eval().requires_grad_(False).to(self.device)


class GaudiEngine(SharedColumnEngine):
    """An engine on a Gaudi card."""

    replaces_transformers = True

    def __init__(self, settings: Settings, model_path: str, worker: str) -> None:
        super().__init__(settings, model_path, worker, OptimumHabana(settings.use_flash_attention, settings.flash_attention_recompute))


def _require(model: Any, way: str) -> None:
    """The classes are replaced for good and for the whole process, and a mixture of both computes nonsense without an error."""
    origin = "optimum.habana." if way == HABANA else "transformers."
    for part in (model, model.base_model):
        module = type(part).forward.__module__
        assert module.startswith(origin), f"{type(part).__name__} of way {way} computes in {module}"


def _mend_deepseek_v2() -> None:
    """Its prompts skip the reordering that its cache and its steps have before they are rotated (1.21.2)."""
    from optimum.habana.transformers.models.deepseek_v2 import modeling_deepseek_v2 as module

    def rotate(q: torch.Tensor, k: torch.Tensor, *angles: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return module.apply_rotary_pos_emb(q, *angles), module.apply_rotary_pos_emb(k, *angles)

    module.apply_customized_rope = rotate


def _installed(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
