"""Linear layers whose weight is pre-packed for oneDNN (half the time of a plain bf16 linear at 8 rows), or left plain.

The packing operators are private to torch (inductor's freezing uses them), so they are spelled here only and probed first.
"""

from __future__ import annotations

import torch
from torch import nn


class PackedLinear(nn.Module):
    """`nn.Linear` without gradients, its weight in the layout that the CPU's matrix kernels read."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features = linear.in_features
        self.out_features = linear.out_features
        self._packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)
        self._bias = None if linear.bias is None else linear.bias.detach()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")  # type: ignore[no-any-return]


def can_pack(dtype: torch.dtype) -> bool:
    """Whether packed linears work here: bf16 with oneDNN, on a CPU whose instructions it supports.

    fp32 stays plain: MKL is as fast there, and its results do not depend on the number of rows.
    """
    if dtype is not torch.bfloat16 or not torch._C._has_mkldnn:
        return False
    try:
        linear = nn.Linear(32, 32, dtype=dtype)
        x = torch.randn(2, 32, dtype=dtype)
        with torch.inference_mode():
            return torch.allclose(PackedLinear(linear)(x), linear(x), atol=0.05)
    except (RuntimeError, AttributeError):
        return False


def pack_linears(model: nn.Module) -> int:
    """Swaps every plain `nn.Linear` of `model` for a packed one and returns how many; 0 when packing does not work here.

    Each weight is freed as soon as it is packed, unless an embedding shares it.
    """
    dtype = next(model.parameters()).dtype
    if not can_pack(dtype):
        return 0
    n_packed = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and child.weight.dtype == dtype:
                setattr(parent, name, PackedLinear(child))
                n_packed += 1
    return n_packed
