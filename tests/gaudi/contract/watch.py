"""What a device graph cannot have: a shape or a branch that depends on values."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

TAGS = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
UNTAGGED = {"aten::is_nonzero", "aten::item"}


class NotCapturable(RuntimeError):
    """The module asks for values while it is captured."""


class Watched(torch.nn.Module):
    """A module that raises `NotCapturable` where capturing it would fail or be wrong."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self._module = module

    def forward(self, *args: Any) -> Any:
        with _Watch():
            return self._module(*args)


class _Watch(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _asks_for_values(function, args):
            raise NotCapturable(function.name())
        return function(*args, **(kwargs or {}))


def _asks_for_values(function: Any, args: Any) -> bool:
    name = function.name().partition(".")[0]
    if name == "aten::index":
        return any(index is not None and index.dtype is torch.bool for index in args[1])
    if name == "aten::where":
        return len(args) == 1
    return name in UNTAGGED or bool(TAGS & set(function.tags))
