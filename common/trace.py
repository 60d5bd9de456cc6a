"""The W3C trace context of what this task works on; every log line of the task carries it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType

_TRACE_PARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")

TRACE: ContextVar[Mapping[str, str]] = ContextVar("trace", default=MappingProxyType({}))


def enter(header: bytes | None) -> None:
    """Takes the request's `traceparent`; one that is malformed counts as none (W3C Trace Context §3.2)."""
    match = _TRACE_PARENT.fullmatch(header or b"")
    TRACE.set({"trace_id": match[1].decode(), "parent_id": match[2].decode()} if match else {})
