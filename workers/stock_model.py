"""A stock `transformers` decoder behind one call that takes rows at their own positions and a static cache."""

from __future__ import annotations

import inspect
import logging
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers.utils.logging import disable_progress_bar

from common.errors import StartError
from workers.packed_linear import pack_linears
from workers.static_cache import StaticCache, additive_mask
from workers.supported import CHANGES_WITH_LENGTH, LAYERED

log = logging.getLogger(__name__)

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}

DTYPE_ARGUMENT = "dtype" if tuple(map(int, transformers.__version__.split(".")[:2])) >= (4, 56) else "torch_dtype"


class StockModel:
    """Wraps a causal language model; `max_positions` is the longest row it can compute."""

    def __init__(self, model: Any) -> None:
        self._model = model.eval().requires_grad_(False)
        self.config: Any = model.config
        self.dtype = next(model.parameters()).dtype
        self._cache_argument = "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"
        self._layered = self.config.model_type in LAYERED
        self._window = _window(self.config)
        self.max_positions = _max_positions(self.config)
        self.n_packed = pack_linears(model)

    def forward(
        self, ids: torch.Tensor, positions: torch.Tensor, cache: StaticCache, n_columns: int, keep: torch.Tensor | int = 0
    ) -> torch.Tensor:
        """Logits `[rows, kept, vocab]` in the model's precision, of the token indices `keep` (0: all).

        `ids` and `positions` are `[rows, queries]`; each row sees the first `n_columns` columns as far as its position allows.
        """
        output = self._model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=self._masks(positions, n_columns),
            use_cache=True,
            logits_to_keep=keep,
            return_dict=True,
            **{self._cache_argument: cache},
        )
        return output.logits  # type: ignore[no-any-return]

    def _masks(self, positions: torch.Tensor, n_columns: int) -> torch.Tensor | dict[str, torch.Tensor]:
        if not self._layered:
            return additive_mask(positions, n_columns, self.dtype, self._window)
        masks = {"full_attention": additive_mask(positions, n_columns, self.dtype)}
        if self._window is not None:
            masks["sliding_attention"] = additive_mask(positions, n_columns, self.dtype, self._window)
        return masks


def load_stock_model(folder: Path, dtype: torch.dtype, trust_remote_code: bool = False) -> StockModel:
    """Reads safetensors weights into a stock model with packed linears; raises `StartError` when the files do not fit together."""
    disable_progress_bar()  # type: ignore[no-untyped-call]
    config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    # sdpa has no soft cap on attention scores.
    attention = {"attn_implementation": "eager"} if getattr(config, "attn_logit_softcapping", None) else {}
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            local_files_only=True,
            use_safetensors=None if trust_remote_code else True,
            trust_remote_code=trust_remote_code,
            **{DTYPE_ARGUMENT: dtype},
            **attention,
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise StartError(f"{folder}: {' '.join(str(error).split())[:300]}") from None
    return StockModel(model)


def choose_dtype(name: str | None) -> torch.dtype:
    """The named precision; `auto` measures one 256-row linear in bf16 and fp32 and takes the faster."""
    if name not in (None, "auto"):
        if name not in DTYPES:
            raise StartError(f"DTYPE={name} is not supported; supported: auto, {', '.join(DTYPES)}")
        return DTYPES[name]
    times_ms = {dtype: _linear_ms(dtype) for dtype in (torch.bfloat16, torch.float32)}
    fastest = min(times_ms, key=times_ms.__getitem__)
    log.info("dtype auto: 256-row linear takes %s: %s", ", ".join(f"{ms:.2f} ms in {dtype}" for dtype, ms in times_ms.items()), fastest)
    return fastest


def _linear_ms(dtype: torch.dtype, width: int = 1024) -> float:
    """The best of five runs, in ms."""
    x, weight = torch.ones(256, width, dtype=dtype), torch.ones(width, width, dtype=dtype)
    times_s = []
    for _ in range(5):
        start = time.perf_counter()
        torch.nn.functional.linear(x, weight)
        times_s.append(time.perf_counter() - start)
    return min(times_s) * 1e3


def _window(config: Any) -> int | None:
    """The sliding window in tokens, None where the model does not use it."""
    if config.model_type in LAYERED:
        return config.sliding_window if "sliding_attention" in config.layer_types else None
    return getattr(config, "sliding_window", None)


def _max_positions(config: Any) -> int:
    rope: dict[str, Any] = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    if rope.get("rope_type", rope.get("type")) in CHANGES_WITH_LENGTH:
        original = rope.get("original_max_position_embeddings") or getattr(config, "original_max_position_embeddings", None)
        return int(original or config.max_position_embeddings)
    return int(config.max_position_embeddings)
