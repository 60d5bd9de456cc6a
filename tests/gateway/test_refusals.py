"""Requests that are refused, over HTTP, streamed or not (TGI reference §1.0, §1.1.2, §1.1.3)."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.gateway.conftest import Gateway
from tests.gateway.scripted import ScriptedWorker

JSON = {"content-type": "application/json"}
ROUTES = ("/generate", "/generate_stream", "/", "/tokenize")


def post(http: httpx.Client, path: str, data: bytes | str, headers: dict[str, str] | None = None) -> httpx.Response:
    return http.post(path, content=data, headers=JSON if headers is None else headers)


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x80\x81\xff", 400),
        (b"\x89PNG\r\n\x1a\n" + b"\x00secret" * 10, 400),
        (b"", 400),
        (b'{"inputs":"secret', 400),
        (b'{"inputs":"x","parameters":{"temperature":NaN}}', 400),
        (b'{"inputs":"x","parameters":{"temperature":Infinity}}', 400),
        (b'{"inputs":"secret\\ud800"}', 400),
        (b"[" * 5000 + b"]" * 5000, 400),
        (b"[]", 422),
        (b'"secret"', 422),
        (b"{}", 422),
        (b'{"inputs":null}', 422),
        (b'{"inputs":["secret"]}', 422),
        (b'{"inputs":"x","inputs":"secret"}', 422),
        (b'{"inputs":"x","parameters":{"temperature":"secret"}}', 422),
        (b'{"inputs":"x","parameters":{"best_of":-1}}', 422),
        (b'{"inputs":"x","parameters":"secret"}', 422),
    ],
)
def test_bodies_no_route_takes(http: httpx.Client, path: str, data: bytes, status: int) -> None:
    response = post(http, path, data)
    assert response.status_code == status
    assert response.headers["content-type"] == "application/json"
    answer = response.json()
    assert sorted(answer) == ["error", "error_type"]
    assert answer["error_type"] == "validation"
    assert "secret" not in response.text
    assert response.headers["x-request-id"]


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("content_type", [None, "text/plain", "multipart/form-data; boundary=x", "application/x-www-form-urlencoded"])
def test_other_content_types(http: httpx.Client, path: str, content_type: str | None) -> None:
    response = post(http, path, b"not even json", {} if content_type is None else {"content-type": content_type})
    assert response.status_code == 415
    assert response.json() == {"error": "Expected request with `Content-Type: application/json`", "error_type": "validation"}


def test_a_body_over_the_limit(keyed: httpx.Client) -> None:
    def padded(n_bytes: int) -> bytes:
        body = b'{"inputs":"","parameters":{"pad":"%s"}}'
        return body % (b"x" * (n_bytes - len(body) + 2))

    expected = {"error": "Failed to buffer the request body: length limit exceeded", "error_type": "payload_too_large"}
    for response in (post(keyed, "/generate", padded(5001)), keyed.post("/generate", content=iter([padded(5001)]), headers=JSON)):
        assert (response.status_code, response.json()) == (413, expected)
    assert post(keyed, "/generate", padded(5000)).status_code == 422


def test_the_order_is_key_then_type_then_size_then_syntax_then_shape(strict: Gateway, keyed: httpx.Client) -> None:
    huge = b"{" * 6000
    with strict.http as stranger:
        assert post(stranger, "/generate", huge, {}).status_code == 401
    assert post(keyed, "/generate", huge, {}).status_code == 415
    assert post(keyed, "/generate", huge).status_code == 413
    assert post(keyed, "/generate", huge[:100]).status_code == 400
    assert post(keyed, "/generate", b"{}").status_code == 422


BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"parameters": {"best_of": 3}}, "`best_of` must be > 0 and <= 2. Given: 3"),
    ({"parameters": {"best_of": 2}}, "you must use sampling when `best_of` is > 1"),
    ({"parameters": {"best_of": 2, "do_sample": True, "seed": 1}}, "`seed` must not be set when `best_of` > 1"),
    ({"parameters": {"temperature": 0}}, "`temperature` must be strictly positive"),
    ({"parameters": {"temperature": -1}}, "`temperature` must be strictly positive"),
    ({"parameters": {"repetition_penalty": 0}}, "`repetition_penalty` must be strictly positive"),
    ({"parameters": {"frequency_penalty": -2.5}}, "`frequency_penalty` must be >= -2.0 and <= 2.0"),
    ({"parameters": {"top_p": 0.0}}, "`top_p` must be > 0.0 and < 1.0"),
    ({"parameters": {"top_p": 1.0}}, "`top_p` must be > 0.0 and < 1.0"),
    ({"parameters": {"typical_p": 1.0}}, "`typical_p` must be > 0.0 and < 1.0"),
    ({"parameters": {"top_k": 0}}, "`top_k` must be strictly positive"),
    ({"parameters": {"top_k": -1}}, "`top_k` must be strictly positive"),
    ({"parameters": {"max_new_tokens": 0}}, "`max_new_tokens` must be strictly positive"),
    ({"parameters": {"stop": ["a", "b", "c", "d", "e"]}}, "`stop` supports up to 4 stop sequences. Given: 5"),
    ({"parameters": {"top_n_tokens": 6}}, "`top_n_tokens` must be >= 0 and <= 5. Given: 6"),
    ({"parameters": {"watermark": True}}, "`watermark` is not supported yet"),
    ({"parameters": {"adapter_id": "a"}}, "`adapter_id` is not supported yet"),
    ({"inputs": ""}, "`inputs` cannot be empty"),
    ({"parameters": {"truncate": 0}}, "`truncate` must be strictly positive and less than 100. Given: 0"),
    ({"parameters": {"truncate": 101}}, "`truncate` must be strictly positive and less than 100. Given: 101"),
    (
        {"parameters": {"max_new_tokens": 2000}},
        "`inputs` tokens + `max_new_tokens` must be <= 128. Given: 2 `inputs` tokens and 2000 `max_new_tokens`",
    ),
    ({"inputs": "@" * 100}, "`inputs` must have less than 100 tokens. Given: 101"),
    ({"parameters": {"grammar": {"type": "json", "value": {}}}}, "grammar is not supported"),
]


@pytest.mark.parametrize(("request_body", "message"), BROKEN)
def test_messages(http: httpx.Client, worker: ScriptedWorker, request_body: dict[str, Any], message: str) -> None:
    for path, stream in (("/generate", False), ("/", False), ("/generate_stream", True), ("/", True)):
        if stream and "best_of" in message + str(request_body):
            message = "`best_of` != 1 is not supported when streaming tokens"
        response = http.post(path, json={"inputs": "x", "stream": stream, **request_body})
        assert response.status_code == 422
        assert response.json() == {"error": f"Input validation error: {message}", "error_type": "validation"}
    assert not worker.seen


def test_the_first_broken_rule_wins(http: httpx.Client) -> None:
    response = http.post("/generate", json={"inputs": "", "parameters": {"temperature": 0, "max_new_tokens": 0, "truncate": 0}})
    assert response.json()["error"] == "Input validation error: `temperature` must be strictly positive"


def test_the_permit_comes_before_validation(strict: Gateway, keyed: httpx.Client, worker: ScriptedWorker) -> None:
    worker.go.clear()
    with keyed.stream("POST", "/generate_stream", json={"inputs": "x"}):
        for path in ("/generate", "/generate_stream", "/"):
            response = keyed.post(path, json={"inputs": "", "parameters": {"temperature": 0}})
            assert (response.status_code, response.json()) == (429, {"error": "Model is overloaded", "error_type": "overloaded"})
            assert response.headers["retry-after"] == "1"
        assert keyed.post("/generate", json={"inputs": "", "parameters": {"best_of": 3}}).status_code == 422
        assert keyed.post("/tokenize", json={"inputs": "x"}).status_code == 200
        assert post(keyed, "/generate", b"{").status_code == 400


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("key", [None, "Bearer secret-key", "Bearer", "Basic Secret-Key", "Secret-Key"])
def test_a_wrong_key_is_401_with_nothing(strict: Gateway, path: str, key: str | None) -> None:
    with strict.http as http:
        response = http.post(path, json={"inputs": "x"}, headers={} if key is None else {"authorization": key})
    assert (response.status_code, response.content) == (401, b"")
    assert "www-authenticate" not in response.headers
    assert response.headers["x-request-id"]


def test_no_key_is_needed_where_none_is_set_or_for_open_routes(strict: Gateway, http: httpx.Client) -> None:
    body = {"inputs": "x", "parameters": {"max_new_tokens": 1}}
    for key in ("Bearer", "Bearer -", "nonsense"):
        assert http.post("/generate", json=body, headers={"authorization": key}).status_code == 200
    for path in ("/", "/health", "/ping", "/health/live", "/health/accept", "/info", "/v1/models", "/metrics"):
        assert strict.get(path).status_code == 200


def test_no_bytes_of_a_body_reach_the_log(gateway: Gateway, http: httpx.Client) -> None:
    for data in (
        b'{"inputs":"canary-1","parameters":{"max_new_tokens":1}}',
        b'{"inputs":"canary-2',
        b'{"inputs":"canary-3","parameters":{"top_k":0}}',
    ):
        post(http, "/generate", data)
    http.post("/tokenize", json={"inputs": "canary-4"})
    assert "canary" not in gateway.process.text()
