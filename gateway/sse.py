"""JSON as TGI prints it, and server-sent events (TGI reference §1.0 floats, §2.1)."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

KEEP_ALIVE = b":\n\n"
KEEP_ALIVE_S = 15.0

HEADERS = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]

_FLOAT32 = struct.Struct("f")
_LEAST_NORMAL = 2.0**-126
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode
_LINE_ENDS = {"\u2028": "\\u2028", "\u2029": "\\u2029", "\u0085": "\\u0085"}


def dumps(value: Any) -> bytes:
    """Compact UTF-8 JSON, keys in their order."""
    return _encode(value).encode("utf-8")


def event(value: Any, name: str = "") -> bytes:
    """One event, with an id when it has a name.

    What some clients take for a line end is escaped: they split lines before they parse JSON.
    """
    line = _encode(value)
    if not line.isascii():
        for character, escape in _LINE_ENDS.items():
            line = line.replace(character, escape)
    head = f"id: {name}\n".encode() if name else b""
    return head + b"data: " + line.encode("utf-8") + b"\n\n"


def float32(value: float) -> float | None:
    """The float whose repr is the shortest decimal that reads back as this float32; None for what JSON cannot say."""
    if not math.isfinite(value):
        return None
    for digits in (6, 7, 8) if abs(value) >= _LEAST_NORMAL else range(1, 9):
        short = float(f"{value:.{digits}g}")
        if _FLOAT32.unpack(_FLOAT32.pack(short))[0] == value:
            return short
    return float(f"{value:.9g}")
