"""Headers of requests and responses (TGI reference §2.5), and the request id that every answer carries."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Sequence
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


def of_response(compute_type: str, n_characters: int, timings: Sequence[Timing], with_compute_time: bool = True) -> Headers:
    """What a complete answer says about its making, summed over its generations; times in whole milliseconds."""
    compute_time = [(b"x-compute-time", f"{sum(each.total_s for each in timings):.6f}".encode())]
    return [
        JSON,
        (b"x-compute-type", compute_type.encode()),
        *(compute_time if with_compute_time else ()),
        (b"x-compute-characters", b"%d" % n_characters),
        (b"x-total-time", _ms(each.total_s for each in timings)),
        (b"x-validation-time", _ms(each.validation_s for each in timings)),
        (b"x-queue-time", _ms(each.queue_s for each in timings)),
        (b"x-inference-time", _ms(each.inference_s for each in timings)),
        (b"x-time-per-token", _ms(each.per_token_s for each in timings)),
        (b"x-prompt-tokens", b"%d" % sum(each.n_input for each in timings)),
        (b"x-generated-tokens", b"%d" % sum(each.n_generated for each in timings)),
    ]


def of_stream(compute_type: str, n_characters: int) -> Headers:
    """What is known when a stream begins."""
    return [(b"x-compute-type", compute_type.encode()), (b"x-compute-characters", b"%d" % n_characters)]


def _ms(seconds: Iterable[float]) -> bytes:
    return b"%d" % sum(int(each * 1000) for each in seconds)
