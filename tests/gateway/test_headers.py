from __future__ import annotations

import pytest

from gateway import headers
from gateway.headers import Timing


def test_a_printable_request_id_is_kept() -> None:
    assert headers.request_id([(b"x-request-id", b"abc-1:2/3")]) == b"abc-1:2/3"


@pytest.mark.parametrize("given", [b"", b"a b", b"a\r\nset-cookie: x", b"\xff", b"x" * 129, b"a\x00"])
def test_another_one_is_replaced(given: bytes) -> None:
    made = headers.request_id([(b"x-request-id", given)])
    assert made != given and len(made) == 32
    assert made != headers.request_id([])


def test_times_are_whole_milliseconds_and_add_up() -> None:
    timing = Timing(total_s=1.2345, validation_s=0.0123, queue_s=0.2, n_input=7, n_generated=4)
    named = dict(headers.of_response("1-test", 22, [timing]))
    assert named == {
        b"content-type": b"application/json",
        b"x-compute-type": b"1-test",
        b"x-compute-time": b"1.234500",
        b"x-compute-characters": b"22",
        b"x-total-time": b"1234",
        b"x-validation-time": b"12",
        b"x-queue-time": b"200",
        b"x-inference-time": b"1022",
        b"x-time-per-token": b"255",
        b"x-prompt-tokens": b"7",
        b"x-generated-tokens": b"4",
    }


def test_no_token_and_a_queue_longer_than_all_give_no_nonsense() -> None:
    timing = Timing(total_s=0.1, validation_s=0.01, queue_s=0.2, n_input=7, n_generated=0)
    assert (timing.inference_s, timing.per_token_s) == (0.0, 0.0)


@pytest.mark.parametrize(("given", "expected"), [(b"12", 12), (b"-1", None), (b"x", None), (None, None)])
def test_the_declared_length(given: bytes | None, expected: int | None) -> None:
    assert headers.length([] if given is None else [(b"content-length", given)]) == expected
