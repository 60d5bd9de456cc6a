"""Reads JSON into typed records by tables, with messages that name the place and the type and never the value.

Null equals absent, unknown fields are ignored, a field given twice is refused (TGI reference §1.0, family A).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping
from typing import Any, Generic, TypeVar

from common.errors import RequestError

R = TypeVar("R", bound=tuple[Any, ...])

Kind = Callable[[Any, str], Any]
"""Reads a JSON value found at a path, or raises 422."""


def misfit(path: str, detail: str) -> RequestError:
    """A value of the wrong shape, type or range."""
    place = f"{path}: {detail}" if path else detail
    return RequestError("validation", f"Failed to deserialize the JSON body into the target type: {place}")


def wrong_type(value: Any, path: str, expected: str) -> RequestError:
    return misfit(path, f"invalid type: {_name(value)}, expected {expected}")


def text(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise wrong_type(value, path, "a string")
    return value


def boolean(value: Any, path: str) -> bool:
    if not isinstance(value, bool):
        raise wrong_type(value, path, "a boolean")
    return value


def anything(value: Any, _: str) -> Any:
    return value


def float32(value: Any, path: str) -> float:
    """A number, rounded to float32 as TGI's parser does."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong_type(value, path, "f32")
    try:
        rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        raise misfit(path, f"invalid value: {_name(value)}, expected f32") from None
    return rounded


def integer(name: str, least: int, most: int) -> Kind:
    """A whole number of a named range."""

    def read(value: Any, path: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise wrong_type(value, path, name)
        if not least <= value <= most:
            raise misfit(path, f"invalid value: integer, expected {name}")
        return value

    return read


int32 = integer("i32", -(2**31), 2**31 - 1)
uint32 = integer("u32", 0, 2**32 - 1)
uint64 = integer("u64", 0, 2**64 - 1)
usize = integer("usize", 0, 2**64 - 1)


def texts(value: Any, path: str) -> tuple[str, ...]:
    """A list of strings; a bare string is a list of one."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        raise wrong_type(value, path, "a sequence")
    return tuple(text(item, f"{path}[{index}]") for index, item in enumerate(value))


def one_of(names: Collection[str]) -> Kind:
    """One of a few words."""

    def read(value: Any, path: str) -> str:
        if text(value, path) not in names:
            raise misfit(path, "unknown variant, expected one of " + ", ".join(f"`{name}`" for name in names))
        return str(value)

    return read


class Record(Generic[R]):
    """Reads an object into the `NamedTuple` `cls`: fields by name, a field without a default must be there."""

    def __init__(self, cls: type[R], kinds: Mapping[str, Kind], aliases: Mapping[str, tuple[str, ...]] | None = None) -> None:
        self._cls = cls
        self._fields = [(name, (name, *(aliases or {}).get(name, ())), kind) for name, kind in kinds.items()]
        self._required = [name for name in kinds if name not in cls._field_defaults]  # type: ignore[attr-defined]

    def __call__(self, value: Any, path: str = "") -> R:
        if not isinstance(value, dict):
            raise wrong_type(value, path, "struct " + self._cls.__name__)
        repeated = getattr(value, "repeated", ())
        read: dict[str, Any] = {}
        for name, spellings, kind in self._fields:
            given = [spelling for spelling in spellings if spelling in value]
            if len(given) > 1 or any(spelling in repeated for spelling in given):
                raise misfit(path, f"duplicate field `{name}`")
            if given and value[given[0]] is not None:
                read[name] = kind(value[given[0]], f"{path}.{given[0]}" if path else given[0])
        for name in self._required:
            if name not in read:
                raise misfit(path, f"missing field `{name}`")
        return self._cls(**read)


def _name(value: Any) -> str:
    """The JSON type in the words of TGI's parser."""
    names = {bool: "boolean", int: "integer", float: "floating point", str: "string", list: "sequence", type(None): "null"}
    return names.get(type(value), "map")
