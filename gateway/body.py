"""Reads a request's JSON body: content type, size, syntax, in this order (TGI reference §1.0, family A).

No message carries a byte of the body.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, NoReturn

from common.errors import RequestError

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

MAX_DEPTH = 128
"""Nesting that TGI's parser allows."""

_JSON_TYPE = re.compile(rb"application/(?:[\w.+-]+\+)?json\s*(?:;|$)", re.IGNORECASE)
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")

_SYNTAX = {
    "Expecting ',' delimiter": "expected `,` or the end of the list or object",
    "Expecting ':' delimiter": "expected `:`",
    "Expecting property name enclosed in double quotes": "key must be a string",
    "Unterminated string starting at": "EOF while parsing a string",
    "Invalid control character at": "control character found while parsing a string",
    "Extra data": "trailing characters",
}


class Object(dict[str, Any]):
    """A JSON object that remembers which keys it had twice."""

    repeated: frozenset[str] = frozenset()


class ClientGone(Exception):
    """The client left before its request was read."""


def require_json(content_type: bytes | None) -> None:
    """Raises 415 unless the content type is `application/json` or `application/*+json`."""
    if content_type is None or not _JSON_TYPE.match(content_type.strip()):
        raise RequestError("validation", "Expected request with `Content-Type: application/json`", status=415)


async def read(receive: Receive, declared_bytes: int | None, limit_bytes: int) -> bytes:
    """The whole body; raises 413 as soon as it must exceed the limit, `ClientGone` when the client leaves."""
    if declared_bytes is not None and declared_bytes > limit_bytes:
        raise _too_large()
    parts: list[bytes] = []
    size_bytes = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        part = message.get("body", b"")
        size_bytes += len(part)
        if size_bytes > limit_bytes:
            raise _too_large()
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def parse(data: bytes) -> Any:
    """The JSON value; objects are `Object`s. Raises 400 for what is not strict JSON in UTF-8."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise _syntax("invalid unicode code point") from None
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_constant=_refuse_constant, parse_float=_finite)
    except json.JSONDecodeError as error:
        raise _syntax(_describe(error, len(text)), error.lineno, error.colno) from None
    except RecursionError:
        raise _syntax("recursion limit exceeded") from None
    except ValueError:
        raise _syntax("number out of range") from None
    if text.count("[") + text.count("{") > MAX_DEPTH and _depth(value) > MAX_DEPTH:
        raise _syntax("recursion limit exceeded")
    if _SURROGATE.search(text):
        _refuse_lone_surrogates(value)
    return value


def _object(pairs: list[tuple[str, Any]]) -> Object:
    value = Object(pairs)
    if len(value) != len(pairs):
        seen: set[str] = set()
        value.repeated = frozenset(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
    return value


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError
    return number


def _refuse_constant(_: str) -> NoReturn:
    raise _syntax("expected value")


def _refuse_lone_surrogates(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise _syntax("lone surrogate in a string escape") from None


def _depth(value: Any) -> int:
    depth = 0
    level: list[Any] = [value]
    while level := [child for item in level for child in _children(item)]:
        depth += 1
    return depth


def _children(value: Any) -> Iterable[Any]:
    """The containers' contents; a container that is empty still counts as a level."""
    if isinstance(value, dict):
        return value.values() or (None,)
    if isinstance(value, list):
        return value or (None,)
    return ()


def _describe(error: json.JSONDecodeError, length: int) -> str:
    if error.pos >= length and error.msg not in _SYNTAX:
        return "EOF while parsing a value"
    return _SYNTAX.get(error.msg, "invalid escape" if error.msg.startswith("Invalid \\") else "expected value")


def _syntax(detail: str, line: int = 1, column: int = 0) -> RequestError:
    place = f"{detail} at line {line} column {column}"
    return RequestError("validation", f"Failed to parse the request body as JSON: {place}", status=400)


def _too_large() -> RequestError:
    return RequestError("payload_too_large", "Failed to buffer the request body: length limit exceeded")
