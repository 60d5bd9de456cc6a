"""Import stubs of the packages that exist only on a Neuron host: names resolve, nothing computes (neuron.md §3.3).

They let every module of the real optimum-neuron import on any machine; what tests run is its own code.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, ClassVar

PACKAGES = frozenset({"libneuronxla", "neuronx_distributed", "neuronxcc", "nki", "torch_neuronx", "torch_xla"})
COMPILER_VERSION = "2.21.33363.0+stub"


class _Kind(type):
    """Classes whose attributes are classes again, so that a stub can be a base, a decorator or a namespace."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _stub(name)


def _stub(name: str) -> Any:
    return _Kind(name, (), {"__init__": lambda self, *args, **kwargs: None, "__call__": lambda self, *args, **kwargs: None})


class _Module(ModuleType):
    __path__: ClassVar[list[str]] = []
    __version__ = COMPILER_VERSION

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _stub(name)
        setattr(self, name, value)
        return value


class _Finder(MetaPathFinder, Loader):
    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname.partition(".")[0] in PACKAGES else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        return


def install() -> None:
    """Makes the names of `PACKAGES` importable in this process."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
