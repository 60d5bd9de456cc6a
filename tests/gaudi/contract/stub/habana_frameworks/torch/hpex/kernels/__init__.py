"""Fused kernels that models ask for without an alternative."""

from __future__ import annotations

from typing import Any

import torch


class FusedSDPA:
    @staticmethod
    def apply(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None = None,
        dropout: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        softmax_mode: str = "None",
        recompute: bool | None = None,
        valid_seq_len: Any = None,
        padding_side: str = "left",
    ) -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, mask, dropout, is_causal, scale=scale, enable_gqa=query.shape[1] != key.shape[1]
        )


def mixture_of_experts(
    hidden_states: torch.Tensor,
    expert_routing_table: torch.Tensor,
    router_weights: torch.Tensor,
    w1: list[torch.Tensor],
    w2: list[torch.Tensor],
    w3: list[torch.Tensor],
    permuted_weights: bool,
    activation: str,
    experts_min: int,
    experts_max: int,
) -> torch.Tensor:
    """Every expert for every token, as the card's kernel: no shape depends on the routing."""
    assert permuted_weights and activation == "silu"
    linear = torch.nn.functional.linear
    output = torch.zeros_like(hidden_states)
    for expert, gate, up, down in zip(range(experts_min, experts_max + 1), w1, w2, w3, strict=True):
        share = (router_weights * (expert_routing_table == expert)).sum(-1, keepdim=True)
        output += share * linear(torch.nn.functional.silu(linear(hidden_states, gate)) * linear(hidden_states, up), down)
    return output


_library = torch.library.Library("hpu", "DEF")
_library.define(
    "mixture_of_experts(Tensor hidden_states, Tensor expert_routing_table, Tensor router_weights, Tensor[] w1, Tensor[] w2, Tensor[] w3,"
    " bool permuted_weights, str activation, int experts_min, int experts_max) -> Tensor"
)
_library.impl("mixture_of_experts", mixture_of_experts, "CompositeImplicitAutograd")
