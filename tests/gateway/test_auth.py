from __future__ import annotations

import pytest

from gateway.auth import ApiKey


def test_without_a_key_everybody_may_enter() -> None:
    for header in (None, b"", b"Bearer ", b"Bearer -", b"Basic x", b"\xff"):
        assert ApiKey(None).admits(header)


def test_the_key_is_compared_exactly() -> None:
    key = ApiKey("Secret-Kéy")
    assert key.admits("Bearer Secret-Kéy".encode())
    assert key.admits("bearer Secret-Kéy".encode())
    for wrong in ("Bearer secret-kéy", "Bearer Secret-Ké", "Bearer Secret-Kéyy", "Secret-Kéy", "Basic Secret-Kéy", "Bearer", ""):
        assert not key.admits(wrong.encode())
    assert not key.admits(None)


@pytest.mark.parametrize("header", [b"Bearer \xff\xfe", b"Bearer " + b"x" * 100_000])
def test_odd_headers_are_only_wrong(header: bytes) -> None:
    assert not ApiKey("key").admits(header)
