from __future__ import annotations

import json
import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway import sse


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_floats_are_the_shortest_decimals_of_their_float32(value: float) -> None:
    assert repr(sse.float32(value)) == repr(float(str(np.float32(value))))


def test_powers_of_two_read_back_although_their_neighbours_are_uneven() -> None:
    for exponent in range(-149, 128):
        value = math.ldexp(1.0, exponent)
        assert struct.unpack("f", struct.pack("f", sse.float32(value)))[0] == value
        if abs(exponent) <= 30:
            assert repr(sse.float32(value)) == repr(float(str(np.float32(value))))


def test_a_known_float() -> None:
    assert sse.dumps(sse.float32(struct.unpack("f", struct.pack("f", -2.5839844))[0])) == b"-2.5839844"


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_json_cannot_say_is_null(value: float) -> None:
    assert sse.float32(value) is None


def test_an_event_is_one_line_for_every_reader_of_lines() -> None:
    text = "a\u2028b\u2029c\u0085d\ne\r é🧑"
    line = sse.event({"text": text}).decode()
    assert line.startswith("data: {") and line.endswith("}\n\n")
    assert len(line.splitlines()) == 2
    assert json.loads(line.removeprefix("data: "))["text"] == text
    assert "é🧑" in line


def test_json_is_compact_and_keeps_the_order() -> None:
    assert sse.dumps({"b": 1, "a": [None, True, "é"]}) == '{"b":1,"a":[null,true,"é"]}'.encode()
