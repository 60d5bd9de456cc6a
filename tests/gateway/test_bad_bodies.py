"""Every field of every route with values nobody should send: a clear refusal or an answer, never a 500, never a stuck request."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from common.errors import TABLE
from gateway import app
from gateway.openapi import spec
from tests.farm import wait_for
from tests.gateway.scripted import ScriptedWorker

JSON = {"content-type": "application/json"}
DEEP: Any = "x"
for _ in range(60):
    DEEP = [DEEP]
ODD: tuple[Any, ...] = (None, True, -1, 2**64, 1e308, "", "\x00\u2028", [], [None], {"type": 5}, DEEP)
VALID: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1},
    "/v1/completions": {"prompt": "x", "max_tokens": 1},
    "/chat_tokenize": {"messages": [{"role": "user", "content": "x"}]},
    "/generate": {"inputs": "x", "parameters": {"max_new_tokens": 1}},
}


def fields(path: str) -> dict[str, Any]:
    schema = spec()["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
    assert isinstance(schema, dict)
    return schema


def check(response: httpx.Response) -> None:
    """An answer, or one error object of the table."""
    if response.status_code == 200:
        return
    answer = response.json()
    assert 400 <= response.status_code < 500, (response.status_code, answer)
    assert sorted(answer) == ["error", "error_type"] and answer["error_type"] in TABLE


@pytest.mark.parametrize("path", VALID)
def test_odd_values_in_every_field(http: httpx.Client, worker: ScriptedWorker, path: str) -> None:
    for name in fields(path):
        for value in ODD:
            check(http.post(path, json={**VALID[path], name: value}))
    wait_for(lambda: not worker.running())


def test_odd_values_in_every_parameter_and_message(http: httpx.Client, worker: ScriptedWorker) -> None:
    for name in fields("/generate")["parameters"]["anyOf"][0]["properties"]:
        for value in ODD:
            check(http.post("/generate", json={"inputs": "x", "parameters": {"max_new_tokens": 1, name: value}}))
    for name in ("role", "content", "tool_calls", "name", "tool_call_id", "reasoning_content"):
        for value in (*ODD, [{"type": "text", "text": 5}], [{"function": {"name": "f", "arguments": '{"x":' + "[" * 5000}}]):
            messages = [{"role": "user", "content": "x", name: value}]
            check(http.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 1}))
    wait_for(lambda: not worker.running())


@pytest.mark.parametrize("path", sorted(app.PROTECTED))
@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"\x80\x81\xff", 400),
        (b"\x89PNG\r\n\x1a\n", 400),
        (b"", 400),
        (b'{"messages":[{"role":"user","content":"\\ud800"}],"prompt":"\\udfff","inputs":"\\ud83d"}', 400),
        (b"[" * 5000 + b"]" * 5000, 400),
        (b'{"max_tokens":1e999}', 400),
        (b'{"max_tokens":NaN}', 400),
        (b"[]", 422),
        (b"{}", 422),
        (b'{"inputs":"x","inputs":"x","prompt":"x","prompt":"x","messages":[],"messages":[]}', 422),
        (b'{"inputs":' + b"9" * 4000 + b',"prompt":1,"messages":1}', 422),
    ],
)
def test_bodies_no_route_takes(http: httpx.Client, worker: ScriptedWorker, path: str, data: bytes, status: int) -> None:
    response = http.post(path, content=data, headers=JSON)
    assert response.status_code == status
    check(response)
    assert not worker.seen


def test_other_content_types(http: httpx.Client) -> None:
    for path in app.PROTECTED:
        assert http.post(path, content=json.dumps(VALID["/generate"]), headers={"content-type": "text/plain"}).status_code == 415


@pytest.mark.parametrize("path", sorted(app.PROTECTED))
def test_a_wrong_key_is_401_with_nothing(strict: Any, path: str) -> None:
    with strict.http as stranger:
        response = stranger.post(path, json={}, headers={"authorization": "Bearer no"})
    assert (response.status_code, response.content) == (401, b"")
