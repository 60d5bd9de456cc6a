"""How a device double is told what goes wrong: `FARM_DOUBLE="name=value,…"` into a dataclass of numbers and words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

from common.errors import StartError

T = TypeVar("T")

NEVER = 1 << 60


def read_faults(kind: type[T], text: str, **given: Any) -> T:
    """A `kind` whose fields are those `given`, then those of `text`; raises `StartError`."""
    types: dict[str, Callable[[str], Any]] = {entry.name: type(entry.default) for entry in fields(kind)}  # type: ignore[arg-type]
    try:
        pairs = dict(part.split("=", 1) for part in text.replace(" ", "").split(",") if part)
        return kind(**{**given, **{name: types[name](value) for name, value in pairs.items()}})
    except (KeyError, ValueError):
        raise StartError(f"Invalid argument: FARM_DOUBLE={text}, allowed are name=value with {', '.join(types)}") from None
