"""How a client wants to be served beyond its body: come back later, be told apart from a retry, wait only so long (design §8)."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

from common.errors import RequestError, invalid
from common.messages import Want, new_rid


class Session(NamedTuple):
    """`rid` is the request's id, `digest` that of its body when an `Idempotency-Key` was sent; `next_pos` is the first to show."""

    caller: str = ""
    rid: bytes = b""
    digest: str = ""
    want: int = 0
    ttl_ms: int = 0
    resumes: bool = False
    next_pos: int = 0

    @property
    def shows_ids(self) -> bool:
        """Whether events carry `id: rid/pos`, so that the client can come back."""
        return bool(self.want & Want.RESUMABLE) or self.resumes


def caller(authorization: bytes | None, farm: str) -> str:
    """Who asks, without saying so: only the same key gives the same word."""
    return blake2b(authorization or b"", key=farm.encode()[:64], digest_size=12).hexdigest()


def read(headers: Mapping[str, str], who: str, body: object, cell: int = 0) -> Session:
    """From the headers `Last-Event-ID`, `Idempotency-Key`, `x-farm-resume`, `x-farm-detach`, `x-request-deadline-ms`."""
    last = headers.get("last-event-id")
    if last is not None:
        rid, _, pos = last.partition("/")
        return Session(who, _rid(rid), resumes=True, next_pos=_number("Last-Event-ID", pos or "-1", least=-1) + 1)
    want = Want(0)
    key, digest, rid_bytes = headers.get("idempotency-key"), "", new_rid(cell)
    if key:
        want |= Want.RESUMABLE | Want.RESULT
        digest = blake2b(repr(body).encode(), digest_size=16).hexdigest()
        rid_bytes = bytes([cell]) + blake2b(f"{who}\0{key}".encode(), digest_size=15).digest()
    if _given(headers, "x-farm-resume"):
        want |= Want.RESUMABLE | Want.RESULT
    if _given(headers, "x-farm-detach"):
        want |= Want.DETACHED | Want.RESULT
    deadline = headers.get("x-request-deadline-ms")
    ttl_ms = 0 if deadline is None else _number("x-request-deadline-ms", deadline, least=1)
    return Session(who, rid_bytes, digest, int(want), ttl_ms)


def _given(headers: Mapping[str, Any], name: str) -> bool:
    return headers.get(name, "0").lower() not in ("", "0", "false")


def _rid(text: str) -> bytes:
    try:
        rid = bytes.fromhex(text)
    except ValueError:
        rid = b""
    if len(rid) != 16:
        raise RequestError("not_found", "There is no such request")
    return rid


def _number(name: str, text: str, least: int) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if not least <= number < 2**53:
        raise invalid(f"`{name}` must be a number of at least {least}")
    return number
