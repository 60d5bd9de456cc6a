"""What a Gaudi host has and this machine has not."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import ModuleType


def install() -> None:
    """Makes optimum-habana's own modules importable without its package files, which want a driver and packages for training."""
    if "optimum.habana" in sys.modules:
        return
    import transformers  # noqa: F401  before the empty torchvision, which must not count as installed

    spec = find_spec("optimum")
    assert spec is not None and spec.submodule_search_locations is not None
    root = f"{next(iter(spec.submodule_search_locations))}/habana"
    for name, path in (("optimum.habana", root), ("optimum.habana.transformers", f"{root}/transformers")):
        sys.modules[name] = module = ModuleType(name)
        module.__path__ = [path]
    for name in ("torchvision", "torchvision.transforms"):
        sys.modules[name] = ModuleType(name)
