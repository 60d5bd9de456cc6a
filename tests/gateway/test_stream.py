"""`/generate_stream` and `POST /` with `stream` over HTTP (TGI reference §2)."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from common.messages import Failure
from tests.gateway.conftest import sse
from tests.gateway.scripted import Said, ScriptedWorker

TEXT = "What is Deep Learning?"


def stream(http: httpx.Client, path: str = "/generate_stream", **parameters: Any) -> list[dict[str, Any]]:
    body: dict[str, Any] = {"inputs": TEXT, "parameters": parameters}
    if path == "/":
        body["stream"] = True
    with http.stream("POST", path, json=body) as response:
        assert response.status_code == 200
        return sse(response)


def test_the_bytes_of_a_stream(http: httpx.Client, worker: ScriptedWorker) -> None:
    worker.script = lambda _: [Said(" a", 5), Said("</s>", 1, -0.125, special=True, reason="eos_token")]
    with http.stream("POST", "/generate_stream", json={"inputs": TEXT, "parameters": {"details": True}}) as response:
        data = response.read().decode()
    n_input = len(worker.seen[0].input_ids)
    assert data == (
        'data: {"index":1,"token":{"id":5,"text":" a","logprob":-0.5,"special":false},"generated_text":null,"details":null}\n\n'
        'data: {"index":2,"token":{"id":1,"text":"</s>","logprob":-0.125,"special":true},"generated_text":" a","details":'
        f'{{"finish_reason":"eos_token","generated_tokens":2,"seed":null,"input_length":{n_input}}}}}\n\n'
    )
    headers = response.headers
    assert headers["content-type"] == "text/event-stream"
    assert headers["cache-control"] == "no-cache"
    assert headers["x-accel-buffering"] == "no"
    assert headers["x-compute-type"] == "cpu"
    assert headers["x-compute-characters"] == str(len(TEXT))
    assert headers["transfer-encoding"] == "chunked"
    assert not {"x-total-time", "x-prompt-tokens", "content-length"} & set(headers)


def test_details_come_only_when_asked_for_and_only_at_the_end(http: httpx.Client) -> None:
    assert [event["details"] for event in stream(http, max_new_tokens=3)] == [None] * 3
    events = stream(http, max_new_tokens=3, details=True, do_sample=True, seed=9)
    assert [event["details"] is None for event in events] == [True, True, False]
    assert events[-1]["details"]["seed"] == 9
    assert [event["generated_text"] for event in events] == [None, None, " 0 1 2"]
    assert [event["index"] for event in events] == [1, 2, 3]


def test_top_tokens_are_absent_when_there_are_none(http: httpx.Client, worker: ScriptedWorker) -> None:
    worker.script = lambda _: [Said("a", 5, top=((5, -0.5, "a"),)), Said("b", reason="length")]
    first, second = stream(http, top_n_tokens=1)
    assert list(first) == ["index", "token", "top_tokens", "generated_text", "details"]
    assert first["top_tokens"] == [{"id": 5, "text": "a", "logprob": -0.5, "special": False}]
    assert "top_tokens" not in second


def test_the_root_streams_too(http: httpx.Client) -> None:
    assert stream(http, "/", max_new_tokens=2)[-1]["generated_text"] == TEXT + " 0 1"
    assert stream(http, max_new_tokens=2)[-1]["generated_text"] == " 0 1"


def test_line_ends_of_other_readers_are_escaped(http: httpx.Client, worker: ScriptedWorker) -> None:
    worker.script = lambda _: [Said("a\u2028b"), Said("\u0085c\u2029", reason="length")]
    with http.stream("POST", "/generate_stream", json={"inputs": TEXT}) as response:
        lines = [line for line in response.iter_lines() if line]
    assert len(lines) == 2
    assert "\\u2028" in lines[0] and "\\u0085" in lines[1] and "\\u2029" in lines[1]


@pytest.mark.parametrize(
    ("parameters", "status", "message"),
    [
        ({"temperature": 0.0}, 422, "`temperature` must be strictly positive"),
        ({"best_of": 2}, 422, "`best_of` != 1 is not supported when streaming tokens"),
        ({"best_of": 0}, 422, "`best_of` != 1 is not supported when streaming tokens"),
        ({"decoder_input_details": True}, 422, "`decoder_input_details` == true is not supported when streaming tokens"),
        ({"max_new_tokens": 10_000}, 422, "`max_new_tokens` must be <= 128"),
    ],
)
def test_errors_before_the_first_byte_have_their_status(http: httpx.Client, parameters: dict[str, Any], status: int, message: str) -> None:
    for path in ("/generate_stream", "/"):
        response = http.post(path, json={"inputs": TEXT, "stream": True, "parameters": parameters})
        assert response.status_code == status
        assert response.headers["content-type"] == "application/json"
        assert message in response.json()["error"]
        assert response.json()["error_type"] == "validation"


@pytest.mark.parametrize(
    ("failure", "shown"),
    [
        (Failure("generation", "Request failed during generation: x"), ("Request failed during generation: x", "generation")),
        (Failure("incomplete_generation", "Incomplete generation"), ("Incomplete generation stream", "incomplete_generation_stream")),
    ],
)
def test_an_error_in_mid_stream_is_its_last_event(
    http: httpx.Client, worker: ScriptedWorker, failure: Failure, shown: tuple[str, str]
) -> None:
    worker.script = lambda _: [Said("a"), Said("", error=failure)]
    events = stream(http)
    assert events[0]["token"]["text"] == "a"
    assert events[1:] == [{"error": shown[0], "error_type": shown[1]}]


def test_headers_are_sent_before_a_slot_is_free(http: httpx.Client, worker: ScriptedWorker) -> None:
    worker.go.clear()
    with http.stream("POST", "/generate_stream", json={"inputs": TEXT, "parameters": {"max_new_tokens": 2}}) as response:
        assert response.status_code == 200
        worker.go.set()
        assert len(sse(response)) == 2
