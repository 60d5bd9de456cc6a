"""What the workers of a model cannot honour is refused, never ignored (TGI reference §6.4 ignores it on Neuron). Pure."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from common.errors import invalid
from gateway.schemas.tgi import GenerateParameters

NEUTRAL: dict[str, dict[str, Any]] = {
    "penalties": {"repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0, "logit_bias": ()},
    "logprobs": {"typical_p": 1.0, "min_p": 0.0, "top_n_tokens": 0},
}
"""Capability → the parameters that need it, with the values that do not."""


def require_supported(parameters: GenerateParameters, capabilities: Collection[str], max_top_k: int) -> None:
    """Raises 422 for the first parameter that these workers cannot honour; `max_top_k` 0: any. A greedy request needs no seed."""
    for capability, neutral in NEUTRAL.items():
        if capability in capabilities:
            continue
        for name, value in neutral.items():
            if getattr(parameters, name) not in (None, value):
                raise invalid(f"`{name}` is not supported by the workers of this model")
    if parameters.seed is not None and "seed" not in capabilities and parameters.params().samples:
        raise invalid("`seed` is not supported by the workers of this model when sampling")
    if max_top_k and (parameters.top_k or 0) > max_top_k:
        raise invalid(f"`top_k` must be <= {max_top_k} for the workers of this model. Given: {parameters.top_k}")
