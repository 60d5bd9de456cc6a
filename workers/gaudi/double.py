"""Doubles of a Gaudi card: refuse what the card refuses, and make visible what it does silently (gaudi.md §3.5, §6).

Device graphs are keyed by the layout of every tensor and the value of everything else, and give the same output objects at every
replay. Outside of graphs each run of operations is a recipe. A graph or recipe first seen while serving raises.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from workers.engines.base import UnwarmedShape

MIB = 2**20

OUT_OF_MEMORY = "synStatus=8 [Device not available] Device memory allocation failed: out of memory"


class CardDouble:
    """One card: its graphs, its recipes and its memory. `serving`: nothing new may be compiled any more; until then it takes `compile_s`.

    A token that is computed takes `token_bytes` for a moment; a graph keeps them, and its replays need no more.
    """

    def __init__(self, memory_bytes: int = 96 * 2**30, token_bytes: int = 0, max_graphs: int | None = None, compile_s: float = 0.0) -> None:
        self.serving = False
        self.recipes: set[tuple[Any, ...]] = set()
        self.graphs: list[CapturedGraphs] = []
        self.total_bytes = memory_bytes
        self.token_bytes = token_bytes
        self.held_bytes = 0
        self.max_graphs = max_graphs
        self.compile_s = compile_s
        self.replaying = False
        self._recording = False

    @property
    def n_compilations(self) -> int:
        return len(self.recipes) + sum(len(graphs.outputs) for graphs in self.graphs)

    @property
    def free_bytes(self) -> int:
        return self.total_bytes - self.held_bytes

    def hold(self, n_bytes: int) -> None:
        """Allocates for good; raises `RuntimeError` in the words of the card."""
        self.require(n_bytes)
        self.held_bytes += n_bytes

    def require(self, n_bytes: int) -> None:
        """Raises unless so much is free for a moment."""
        if n_bytes > self.free_bytes:
            raise RuntimeError(f"{OUT_OF_MEMORY} ({n_bytes / MIB:.0f} MiB asked, {self.free_bytes / MIB:.0f} MiB free)")

    def capture(self, module: torch.nn.Module) -> CapturedGraphs:
        graphs = CapturedGraphs(self, module)
        self.graphs.append(graphs)
        return graphs

    @contextmanager
    def recipe(self) -> Iterator[None]:
        """Records the operations in it; a captured module that is replayed adds none."""
        recorder = Recorder()
        self._recording = True
        try:
            with recorder:
                yield
        finally:
            self._recording = False
        self._compiled(tuple(recorder.operations), self.recipes)

    @contextmanager
    def unrecorded(self) -> Iterator[None]:
        """Inside a graph nothing is lazy."""
        if not self._recording:
            yield
            return
        with _disable_current_modes():
            yield

    def compile(self, what: str) -> None:
        """Takes its time; raises while the card serves."""
        if self.serving:
            raise UnwarmedShape(f"the card would compile while it serves: {what}")
        time.sleep(self.compile_s)

    def _compiled(self, key: tuple[Any, ...], known: set[tuple[Any, ...]]) -> None:
        if key and key not in known:
            self.compile(f"a recipe of {len(key)} operations, first {key[0]}")
            known.add(key)


class CapturedGraphs:
    """A module behind graphs: the first call of a key captures, later ones replay it into the same output objects."""

    def __init__(self, card: CardDouble, module: torch.nn.Module) -> None:
        self.outputs: dict[tuple[Any, ...], Any] = {}
        self.replays = 0
        self._card = card
        self._module = module

    def __call__(self, *args: Any, bypass_hpu_graphs: bool = False, **kwargs: Any) -> Any:
        if bypass_hpu_graphs:
            return self._module(*args, **kwargs)
        key = (layout(args), layout(kwargs))
        if key not in self.outputs and self._card.max_graphs is not None and len(self.outputs) >= self._card.max_graphs:
            return self._module(*args, **kwargs)  # silently, as the card does
        if key not in self.outputs:
            self._card.compile(f"a graph of {key}")
        with self._card.unrecorded():
            self._card.replaying = key in self.outputs
            fresh = self._module(*args, **kwargs)
            self._card.replaying = False
            if key in self.outputs:
                self.replays += 1
                _overwrite(self.outputs[key], fresh)
            else:
                self._card.hold(args[0].numel() * self._card.token_bytes)
                self.outputs[key] = fresh
        return self.outputs[key]

    def clear_cache(self) -> None:
        self.outputs.clear()


class Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The operations with their shapes and numbers, in order: what a lazy recipe is keyed by."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[tuple[Any, ...]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations.append((str(function), layout(args), layout(kwargs or {})))
        return function(*args, **(kwargs or {}))


def layout(value: Any) -> Any:
    """What a graph's key sees of a value: shape, type and strides of a tensor, the value of anything else; kwargs in their order."""
    if isinstance(value, torch.Tensor):
        return "tensor", tuple(value.shape), str(value.dtype).removeprefix("torch."), value.stride()
    if isinstance(value, tuple | list):
        return tuple(layout(each) for each in value)
    if isinstance(value, dict):
        return tuple((name, layout(each)) for name, each in value.items())
    return value


def _overwrite(old: Any, fresh: Any) -> None:
    if isinstance(old, torch.Tensor):
        old.copy_(fresh)
        return
    for one, other in zip(old, fresh, strict=True):
        _overwrite(one, other)
