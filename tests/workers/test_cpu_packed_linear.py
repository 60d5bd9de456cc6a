"""Packed linears compute what plain ones do, and CPUs that cannot pack run the plain ones."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from workers.packed_linear import PackedLinear, can_pack, pack_linears

AVX2_ONLY = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}

FALLBACK = """
import torch
from torch import nn
from workers.packed_linear import can_pack, pack_linears
model = nn.Sequential(nn.Linear(64, 64, dtype=torch.bfloat16))
assert not can_pack(torch.bfloat16) and pack_linears(model) == 0 and type(model[0]) is nn.Linear
assert model(torch.ones(2, 64, dtype=torch.bfloat16)).isfinite().all()
"""


@pytest.mark.skipif(not can_pack(torch.bfloat16), reason="this CPU has no bf16 kernels to pack for")
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("n_rows", [1, 8, 100])
def test_a_packed_linear_equals_a_plain_one(bias: bool, n_rows: int) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(96, 160, bias=bias, dtype=torch.bfloat16)
    x = torch.randn(2, n_rows, 96, dtype=torch.bfloat16)
    with torch.inference_mode():
        assert torch.allclose(PackedLinear(linear)(x).float(), linear(x).float(), atol=0.02, rtol=0.02)


@pytest.mark.skipif(not can_pack(torch.bfloat16), reason="this CPU has no bf16 kernels to pack for")
def test_every_plain_linear_is_swapped_and_a_shared_embedding_stays() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(50, 32, dtype=torch.bfloat16)
            self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(32, 32, dtype=torch.bfloat16)) for _ in range(2)])
            self.head = nn.Linear(32, 50, bias=False, dtype=torch.bfloat16)
            self.head.weight = self.embedding.weight

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.embedding(ids)
            for block in self.blocks:
                x = block(x)
            return self.head(x)  # type: ignore[no-any-return]

    model = Tied().requires_grad_(False)
    ids = torch.arange(50)
    before = model(ids)
    assert pack_linears(model) == 3
    assert not any(type(module) is nn.Linear for module in model.modules())
    assert torch.allclose(model(ids).float(), before.float(), atol=0.02, rtol=0.02)


def test_fp32_stays_plain() -> None:
    model = nn.Sequential(nn.Linear(8, 8))
    assert pack_linears(model) == 0 and type(model[0]) is nn.Linear


def test_a_cpu_with_avx2_only_runs_plain_linears() -> None:
    subprocess.run([sys.executable, "-c", FALLBACK], env={**os.environ, **AVX2_ONLY}, check=True)
