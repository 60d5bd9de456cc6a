from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from common.errors import RequestError
from gateway import body

pytestmark = pytest.mark.anyio


def refusal(data: bytes) -> RequestError:
    with pytest.raises(RequestError) as caught:
        body.parse(data)
    assert caught.value.status == 400
    assert caught.value.message.startswith("Failed to parse the request body as JSON: ")
    return caught.value


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x80\x81\xff",
        b"\x89PNG\r\n\x1a\n\x00secret",
        b'{"inputs":',
        b'{"inputs":"secret',
        b"{'inputs':1}",
        b'{"inputs":"a",}',
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":-Infinity}',
        b'{"a":1e999}',
        b'{"a":' + b"9" * 5000 + b"}",
        b'{"a":"secret\\ud800"}',
        b'{"a":"\\udc00secret"}',
        b'{"a":"sec\tret"}',
        b'{"a":"\\x41secret"}',
        b"{} secret",
        b"\xef\xbb\xbf{}",
        b'"\xed\xa0\x80"',
        b"[" * 5000 + b"]" * 5000,
        b"[" * 200 + b"]" * 200,
        b'{"a":' * 129 + b"1" + b"}" * 129,
        b"[" * 100_000,
    ],
)
def test_what_is_not_strict_json_is_400_and_shows_nothing_of_the_body(data: bytes) -> None:
    message = refusal(data).message
    assert "secret" not in message
    assert message.isascii()


def test_the_place_of_a_syntax_error_is_named() -> None:
    assert refusal(b'{\n "a": ?}').message.endswith("expected value at line 2 column 7")
    assert refusal(b'{"a"').message.endswith("at line 1 column 5")


def test_pairs_of_surrogates_and_deep_but_allowed_nesting_are_read() -> None:
    assert body.parse(b'"\\ud83e\\uddd1"') == "🧑"
    assert body.parse(b"[" * 128 + b"]" * 128)
    assert body.parse(("[" + ",".join(["[]"] * 500) + "]").encode()) == [[]] * 500


def test_repeated_keys_are_remembered() -> None:
    value = body.parse(b'{"a":1,"b":2,"a":3,"c":{"d":1,"d":1}}')
    assert value.repeated == {"a"}
    assert value["c"].repeated == {"d"}


@pytest.mark.parametrize(
    "given", [b"application/json", b"Application/JSON; charset=utf-8", b"application/problem+json", b" application/json"]
)
def test_json_content_types(given: bytes) -> None:
    body.require_json(given)


@pytest.mark.parametrize("given", [None, b"", b"text/plain", b"text/json", b"application/jsonx", b"multipart/form-data; boundary=x"])
def test_other_content_types(given: bytes | None) -> None:
    with pytest.raises(RequestError) as caught:
        body.require_json(given)
    assert (caught.value.status, caught.value.message) == (415, "Expected request with `Content-Type: application/json`")


def receiver(messages: Iterable[dict[str, Any]]) -> body.Receive:
    iterator = iter(messages)

    async def receive() -> dict[str, Any]:
        return next(iterator)

    return receive


def part(data: bytes, more: bool = True) -> dict[str, Any]:
    return {"type": "http.request", "body": data, "more_body": more}


async def test_the_limit_is_exact_and_ends_the_reading() -> None:
    assert await body.read(receiver([part(b"abc"), part(b"de", more=False)]), None, 5) == b"abcde"
    with pytest.raises(RequestError) as caught:
        await body.read(receiver([part(b"abc"), part(b"def")]), None, 5)
    assert (caught.value.status, caught.value.message) == (413, "Failed to buffer the request body: length limit exceeded")
    with pytest.raises(RequestError):
        await body.read(receiver([]), 6, 5)


async def test_a_client_that_leaves_while_it_sends() -> None:
    with pytest.raises(body.ClientGone):
        await body.read(receiver([part(b"abc"), {"type": "http.disconnect"}]), 100, 1000)
