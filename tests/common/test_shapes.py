from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from common.shapes import Bucket, Shape, doubling, lane_for, prefill_length, smallest_bucket


def test_doubling_ends_exactly() -> None:
    assert doubling(16, 100) == (16, 32, 64, 100)
    assert doubling(16, 16) == (16,)
    assert doubling(16, 64) == (16, 32, 64)


def test_lanes() -> None:
    assert lane_for(10, 20, (512, 64)) == 64
    assert lane_for(10, 60, (512, 64)) == 512
    assert lane_for(10, 600, (512, 64)) is None
    assert lane_for(10, None, (512, 2048)) == 2048
    assert lane_for(10, None, (512, 600)) == 600
    assert lane_for(600, None, (512, 600)) is None
    assert lane_for(1, 1, ()) is None


@given(st.integers(1, 5000), st.integers(1, 300), st.integers(1, 4))
def test_every_row_starts_in_a_warmed_bucket_or_by_replay(n_tokens: int, largest: int, min_prefill: int) -> None:
    shape = Shape(4, 8192, tuple(Bucket(1, length) for length in doubling(min(16, largest), largest)), min_prefill)
    length = prefill_length(n_tokens, shape)
    assert 0 <= length <= n_tokens
    if length == 0:
        assert n_tokens < min_prefill
    else:
        bucket = smallest_bucket([length], shape)
        assert bucket is not None
        assert bucket.length >= length
