"""Reads JSON into typed records by tables, with messages that name the place and the type and never the value.

Null equals absent, unknown fields are ignored, a field given twice is refused (TGI reference §1.0, family A).
Every reader carries the JSON schema of what it takes, so that the OpenAPI file is made of the tables that check requests.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Collection, Mapping
from typing import Any, Generic, TypeVar

from common.errors import RequestError

R = TypeVar("R", bound=tuple[Any, ...])

Kind = Callable[[Any, str], Any]
"""Reads a JSON value found at a path, or raises 422."""


K = TypeVar("K", bound=Kind)

Schema = dict[str, Any]


def described(**schema: Any) -> Callable[[K], K]:
    """Gives a reader its JSON schema."""

    def mark(kind: K) -> K:
        kind.schema = schema  # type: ignore[attr-defined]
        return kind

    return mark


def schema_of(kind: Kind) -> Schema:
    """The JSON schema of what a reader takes."""
    found: Schema = kind.schema  # type: ignore[attr-defined]
    return found


def misfit(path: str, detail: str) -> RequestError:
    """A value of the wrong shape, type or range."""
    place = f"{path}: {detail}" if path else detail
    return RequestError("validation", f"Failed to deserialize the JSON body into the target type: {place}")


def wrong_type(value: Any, path: str, expected: str) -> RequestError:
    return misfit(path, f"invalid type: {_name(value)}, expected {expected}")


@described(type="string")
def text(value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise wrong_type(value, path, "a string")
    return value


@described(type="boolean")
def boolean(value: Any, path: str) -> bool:
    if not isinstance(value, bool):
        raise wrong_type(value, path, "a boolean")
    return value


@described()
def anything(value: Any, _: str) -> Any:
    return value


@described(type="number", format="float")
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

    @described(type="integer", minimum=least, maximum=most)
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


def list_of(kind: Kind) -> Kind:
    """A list whose items `kind` reads."""

    @described(type="array", items=schema_of(kind))
    def read(value: Any, path: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise wrong_type(value, path, "a sequence")
        return tuple(kind(item, f"{path}[{index}]") for index, item in enumerate(value))

    return read


def map_of(kind: Kind) -> Kind:
    """An object with any keys, whose values `kind` reads; as a tuple of pairs."""

    @described(type="object", additionalProperties=schema_of(kind))
    def read(value: Any, path: str) -> tuple[tuple[str, Any], ...]:
        if not isinstance(value, dict):
            raise wrong_type(value, path, "a map")
        return tuple((key, kind(item, path)) for key, item in value.items())

    return read


_texts = list_of(text)


@described(anyOf=[{"type": "string"}, schema_of(_texts)])
def texts(value: Any, path: str) -> tuple[str, ...]:
    """A list of strings; a bare string is a list of one."""
    read: tuple[str, ...] = (value,) if isinstance(value, str) else _texts(value, path)
    return read


def one_of(names: Collection[str]) -> Kind:
    """One of a few words."""

    @described(type="string", enum=list(names))
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
        properties = {
            spelling: schema_of(kind) if name in self._required else _or_null(schema_of(kind))
            for name, spellings, kind in self._fields
            for spelling in spellings
        }
        self.schema: Schema = {"type": "object", "properties": properties}
        if self._required:
            self.schema["required"] = list(self._required)

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


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]} if schema else schema


def _name(value: Any) -> str:
    """The JSON type in the words of TGI's parser."""
    names = {bool: "boolean", int: "integer", float: "floating point", str: "string", list: "sequence", type(None): "null"}
    return names.get(type(value), "map")
