"""`/generate`, `POST /` and `/tokenize` over HTTP (TGI reference §1.1, §1.3, §1.7)."""

from __future__ import annotations

import json
import struct
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from common.messages import Failure, Params, Want
from tests.farm import wait_for
from tests.gateway.conftest import Gateway
from tests.gateway.scripted import LENGTH, MAX_INPUT, Said, ScriptedWorker, count

TEXT = "What is Deep Learning?"


def ask(http: httpx.Client, path: str = "/generate", **parameters: Any) -> Any:
    response = http.post(path, json={"inputs": TEXT, "parameters": parameters})
    assert response.status_code == 200, response.text
    return response.json()


def test_the_answer_and_its_headers(http: httpx.Client, worker: ScriptedWorker) -> None:
    response = http.post("/generate", json={"inputs": TEXT + " é", "parameters": {"max_new_tokens": 3}})
    assert response.content == b'{"generated_text":" 0 1 2"}'
    headers = response.headers
    assert headers["content-type"] == "application/json"
    assert headers["x-compute-type"] == "cpu"
    assert headers["x-compute-characters"] == str(len(TEXT) + 2)
    assert headers["x-prompt-tokens"] == str(len(worker.seen[0].input_ids))
    assert headers["x-generated-tokens"] == "3"
    total_ms = int(headers["x-total-time"])
    assert abs(float(headers["x-compute-time"]) * 1000 - total_ms) <= 1
    parts_ms = sum(int(headers[f"x-{part}-time"]) for part in ("validation", "queue", "inference"))
    assert total_ms - 3 <= parts_ms <= total_ms
    assert "x-accel-buffering" not in headers


def test_details(http: httpx.Client, worker: ScriptedWorker) -> None:
    f32 = struct.unpack("f", struct.pack("f", -2.5839844))[0]
    worker.script = lambda _: [
        Said(" a", 5, f32),
        Said("", 6, float("-inf")),
        Said("é", 7, float("nan")),
        Said("</s>", 1, -0.125, special=True, reason="eos_token"),
    ]
    answer = http.post("/generate", json={"inputs": TEXT, "parameters": {"details": True}}).text
    assert answer == (
        '{"generated_text":" aé","details":{"finish_reason":"eos_token","generated_tokens":4,"seed":null,"prefill":[],"tokens":['
        '{"id":5,"text":" a","logprob":-2.5839844,"special":false},{"id":6,"text":"","logprob":null,"special":false},'
        '{"id":7,"text":"é","logprob":null,"special":false},{"id":1,"text":"</s>","logprob":-0.125,"special":true}]}}'
    )


def test_top_tokens(http: httpx.Client, worker: ScriptedWorker) -> None:
    worker.script = lambda _: [Said(" a", 5, top=((5, -0.5, " a"), (1, -1.5, "</s>"))), Said(" b", 6, top=(), reason="length")]
    details = ask(http, details=True, top_n_tokens=2)["details"]
    assert list(details) == ["finish_reason", "generated_tokens", "seed", "prefill", "tokens", "top_tokens"]
    assert details["top_tokens"] == [
        [{"id": 5, "text": " a", "logprob": -0.5, "special": False}, {"id": 1, "text": "</s>", "logprob": -1.5, "special": True}],
        [],
    ]
    assert worker.seen[0].params.top_n_tokens == 2
    assert "top_tokens" not in ask(http, details=True, top_n_tokens=0)["details"]


def test_prefill_needs_the_flag_and_is_silently_empty_without(http: httpx.Client, keyed: httpx.Client, worker: ScriptedWorker) -> None:
    worker.script = lambda _: [Said("x", prefill=((0, float("nan"), "<s>"), (9, -1.5, "W")), reason="length")]
    details = ask(keyed, decoder_input_details=True)["details"]
    assert details["prefill"] == [{"id": 0, "text": "<s>", "logprob": None}, {"id": 9, "text": "W", "logprob": -1.5}]
    worker.script = lambda _: [Said("x", reason="length")]
    assert ask(http, decoder_input_details=True)["details"]["prefill"] == []
    assert [submit.want & Want.PREFILL_LOGPROBS for submit in worker.seen] == [Want.PREFILL_LOGPROBS, 0]


def test_what_reaches_the_worker(http: httpx.Client, worker: ScriptedWorker) -> None:
    ask(
        http, max_new_tokens=2, temperature=0.5, top_k=3, top_p=0.5, typical_p=0.25, repetition_penalty=1.5, frequency_penalty=-0.5,
        seed=2**64 - 1, stop=["a", "b"], top_n_tokens=1,
    )  # fmt: skip
    (submit,) = worker.seen
    assert submit.params == Params(False, 0.5, 3, 0.5, 0.25, 1.5, -0.5, 1)
    assert (submit.n_max_new, submit.stop, submit.seed, submit.want) == (2, ("a", "b"), 2**64 - 1, Want.EXACT)
    assert submit.input_ids[0] == 0


@pytest.mark.parametrize(
    ("body", "samples"),
    [
        ({}, True),
        ({"parameters": {}}, False),
        ({"parameters": {"temperature": 1.0, "seed": 1}}, False),
        ({"parameters": {"temperature": 0.9, "seed": 1}}, True),
        ({"parameters": {"do_sample": True}}, True),
        ({"parameters": {"top_k": 1}}, True),
        ({"parameters": {"top_p": 0.5}}, True),
        ({"parameters": {"typical_p": 0.5}}, True),
    ],
)
def test_greedy_or_sampling(http: httpx.Client, worker: ScriptedWorker, body: dict[str, Any], samples: bool) -> None:
    worker.script = lambda _: [Said("x", reason="length")]
    assert http.post("/generate", json={"inputs": TEXT, **body}).status_code == 200
    assert worker.seen[0].params.samples is samples


def test_the_seed_is_reported_only_when_sampling(http: httpx.Client, worker: ScriptedWorker) -> None:
    assert ask(http, details=True, max_new_tokens=1, seed=5)["details"]["seed"] is None
    assert ask(http, details=True, max_new_tokens=1, seed=5, do_sample=True)["details"]["seed"] == 5
    drawn = [ask(http, details=True, max_new_tokens=1, do_sample=True)["details"]["seed"] for _ in range(2)]
    assert drawn == [submit.seed for submit in worker.seen[-2:]]
    assert drawn[0] != drawn[1]


def test_the_text_is_of_tokens_that_are_not_special(http: httpx.Client, worker: ScriptedWorker) -> None:
    worker.script = lambda _: [Said("<s>", 0, special=True), Said("a END"), Said("</s>", 1, special=True, reason="stop_sequence")]
    assert ask(http, stop=["END"]) == {"generated_text": "a END"}
    assert ask(http, return_full_text=True) == {"generated_text": TEXT + "a END"}


def test_max_new_tokens_unset_fills_the_context_and_set_is_exact(http: httpx.Client, worker: ScriptedWorker) -> None:
    worker.script = lambda _: [Said("x", reason="length")]
    n_input = int(http.post("/generate", json={"inputs": TEXT}).headers["x-prompt-tokens"])
    assert worker.seen[0].n_max_new == LENGTH - n_input
    assert http.post("/generate", json={"inputs": TEXT, "parameters": {"max_new_tokens": LENGTH - n_input}}).status_code == 200
    refused = http.post("/generate", json={"inputs": TEXT, "parameters": {"max_new_tokens": LENGTH - n_input + 1}})
    assert refused.status_code == 422
    assert f"Given: {n_input} `inputs` tokens and {LENGTH - n_input + 1} `max_new_tokens`" in refused.json()["error"]


def test_truncate_keeps_the_last_tokens_and_the_full_text_stays_whole(http: httpx.Client, worker: ScriptedWorker) -> None:
    long = "a" * 500
    body = {"inputs": long, "parameters": {"truncate": 10, "max_new_tokens": 1, "return_full_text": True}}
    response = http.post("/generate", json=body)
    assert response.json()["generated_text"] == long + " 0"
    assert len(worker.seen[0].input_ids) == 10
    assert worker.seen[0].input_ids[0] == 0
    assert http.post("/generate", json={"inputs": long}).status_code == 422


def test_the_longest_prompt_is_accepted_and_one_more_token_is_not(http: httpx.Client) -> None:
    body = {"inputs": "@" * (MAX_INPUT - 1), "parameters": {"max_new_tokens": 1}}
    assert http.post("/generate", json=body).headers["x-prompt-tokens"] == str(MAX_INPUT)
    body["inputs"] = "@" * MAX_INPUT
    assert http.post("/generate", json=body).json() == {
        "error": f"Input validation error: `inputs` must have less than {MAX_INPUT} tokens. Given: {MAX_INPUT + 1}",
        "error_type": "validation",
    }


def test_the_root_answers_in_a_list_with_the_prompt(http: httpx.Client) -> None:
    assert ask(http, "/", max_new_tokens=2) == [{"generated_text": TEXT + " 0 1"}]
    assert ask(http, "/", max_new_tokens=2, return_full_text=False) == [{"generated_text": " 0 1"}]
    response = http.post("/", json={"inputs": TEXT, "stream": False, "parameters": {"max_new_tokens": 1}})
    assert response.headers["x-generated-tokens"] == "1"
    refused = http.post("/", json={"inputs": ""})
    assert (refused.status_code, refused.json()["error"]) == (422, "Input validation error: `inputs` cannot be empty")


def test_tokenize(http: httpx.Client) -> None:
    response = http.post("/tokenize", json={"inputs": "aé🧑", "parameters": {"truncate": 1}})
    assert response.status_code == 200
    tokens = response.json()
    assert list(tokens[0]) == ["id", "text", "start", "stop"]
    assert tokens[0] == {"id": 0, "text": "", "start": 0, "stop": 0}
    assert (tokens[1]["text"], tokens[1]["start"], tokens[1]["stop"]) == ("a", 0, 1)
    assert tokens[-1]["stop"] == len("aé🧑".encode())
    assert http.post("/tokenize", json={"inputs": "a b " * 1000}).status_code == 200


def test_an_error_of_the_worker_is_one_clean_error(http: httpx.Client, worker: ScriptedWorker) -> None:
    failure = Failure("generation", "Request failed during generation: Server error: out of luck")
    worker.script = lambda _: [Said("a"), Said("", error=failure)]
    response = http.post("/generate", json={"inputs": TEXT})
    assert (response.status_code, response.json()) == (424, {"error": failure.message, "error_type": "generation"})
    assert not [name for name in response.headers if name.startswith("x-") and name != "x-request-id"]


def test_text_comes_back_as_utf8(http: httpx.Client, worker: ScriptedWorker) -> None:
    worker.script = lambda _: [Said("안녕 🧑‍🚀\u2028"), Said("\\ud83e", reason="length")]
    response = http.post("/generate", json={"inputs": TEXT})
    assert "안녕 🧑‍🚀" in response.content.decode()
    assert json.loads(response.content)["generated_text"] == "안녕 🧑‍🚀\u2028\\ud83e"


def test_any_model_name_is_served(http: httpx.Client) -> None:
    for name in ("tgi", "dummy", "http://127.0.0.1:8080", 5):
        body = {"inputs": TEXT, "model": name, "parameters": {"max_new_tokens": 1}}
        assert http.post("/generate", json=body).status_code == 200


def test_one_bad_request_of_a_batch_fails_alone(gateway: Gateway, worker: ScriptedWorker) -> None:
    failure = Failure("generation", "Request failed during generation: Server error: x")
    worker.script = lambda submit: [Said("a"), Said("", error=failure)] if submit.n_max_new == 3 else count(submit)
    worker.go.clear()

    def ask(max_new_tokens: int) -> int:
        with gateway.http as http:
            return http.post("/generate", json={"inputs": TEXT, "parameters": {"max_new_tokens": max_new_tokens}}).status_code

    with ThreadPoolExecutor(3) as pool:
        answers = pool.map(ask, (2, 3, 4))
        wait_for(lambda: len(worker.seen) == 3)
        worker.go.set()
    assert list(answers) == [200, 424, 200]
