"""Headers of requests and responses (TGI reference §2.5), and the request id that every answer carries."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable
from typing import NamedTuple

Headers = list[tuple[bytes, bytes]]

JSON = (b"content-type", b"application/json")

_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")


def find(headers: Iterable[tuple[bytes, bytes]], name: bytes) -> bytes | None:
    """The first header of this lower-case name."""
    return next((value for key, value in headers if key == name), None)


def request_id(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """The client's `x-request-id` when it is printable and short, else a new one."""
    given = find(headers, b"x-request-id")
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given
    return secrets.token_hex(16).encode()


def length(headers: Iterable[tuple[bytes, bytes]]) -> int | None:
    """The declared size of the body in bytes."""
    declared = find(headers, b"content-length")
    return int(declared) if declared is not None and declared.isdigit() else None


class Timing(NamedTuple):
    """How long a finished request took, and what it was."""

    total_s: float
    validation_s: float
    queue_s: float
    n_input: int
    n_generated: int
    first_token_s: float = 0.0

    @property
    def gap_s(self) -> float:
        """Mean time between tokens; 0 for one token."""
        return (self.total_s - self.first_token_s) / (self.n_generated - 1) if self.n_generated > 1 else 0.0

    @property
    def inference_s(self) -> float:
        return max(0.0, self.total_s - self.validation_s - self.queue_s)

    @property
    def per_token_s(self) -> float:
        return self.inference_s / self.n_generated if self.n_generated else 0.0


def of_response(compute_type: str, n_characters: int, timing: Timing) -> Headers:
    """What a complete answer says about its making; times in whole milliseconds."""
    return [
        JSON,
        (b"x-compute-type", compute_type.encode()),
        (b"x-compute-time", f"{timing.total_s:.6f}".encode()),
        (b"x-compute-characters", b"%d" % n_characters),
        (b"x-total-time", _ms(timing.total_s)),
        (b"x-validation-time", _ms(timing.validation_s)),
        (b"x-queue-time", _ms(timing.queue_s)),
        (b"x-inference-time", _ms(timing.inference_s)),
        (b"x-time-per-token", _ms(timing.per_token_s)),
        (b"x-prompt-tokens", b"%d" % timing.n_input),
        (b"x-generated-tokens", b"%d" % timing.n_generated),
    ]


def of_stream(compute_type: str, n_characters: int) -> Headers:
    """What is known when a stream begins."""
    return [(b"x-compute-type", compute_type.encode()), (b"x-compute-characters", b"%d" % n_characters)]


def _ms(seconds: float) -> bytes:
    return b"%d" % int(seconds * 1000)
