"""`/v1/completions` and `/invocations` over HTTP (TGI reference §1.10, §1.11, §2.4)."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from common.messages import Failure, Submit, Want
from tests.gateway.scripted import Said, ScriptedWorker, count
from tests.gateway.test_chat import HI, stream

PATH = "/v1/completions"


def ask(http: httpx.Client, **body: Any) -> Any:
    response = http.post(PATH, json={"prompt": "x", "max_tokens": 2, **body})
    assert response.status_code == 200, response.text
    return response.json()


def by_length(submit: Submit) -> list[Said]:
    """A longer prompt gets a shorter answer, so that answers end out of order."""
    n = max(1, 12 - 2 * len(submit.input_ids))
    return [*[Said(f"{len(submit.input_ids)} ") for _ in range(n - 1)], Said(".", reason="eos_token")]


def test_the_answer(http: httpx.Client) -> None:
    response = http.post(PATH, json={"prompt": "x", "max_tokens": 2, "model": "any"})
    answer = response.json()
    assert list(answer) == ["object", "id", "created", "model", "system_fingerprint", "choices", "usage"]
    assert (answer["object"], answer["model"]) == ("text_completion", "org/tiny")
    assert answer["choices"] == [{"index": 0, "text": " 0 1", "logprobs": None, "finish_reason": "length"}]
    assert answer["usage"] == {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4}
    assert response.headers["x-generated-tokens"] == "2" and "x-compute-time" not in response.headers


def test_several_prompts_come_in_order_and_headers_are_sums(http: httpx.Client, worker: ScriptedWorker) -> None:
    worker.script = by_length
    response = http.post(PATH, json={"prompt": ["x", "xyz", "xy"]})
    answer = response.json()
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert [choice["text"][0] for choice in answer["choices"]] == ["2", "4", "3"]
    assert answer["usage"]["prompt_tokens"] == 9 == int(response.headers["x-prompt-tokens"])
    assert int(response.headers["x-compute-characters"]) == 6
    chunks = [chunk["choices"][0] for chunk in stream(http, PATH, prompt=["x", "xyz", "xy"])]
    for index, choice in enumerate(answer["choices"]):
        mine = [chunk for chunk in chunks if chunk["index"] == index]
        assert "".join(chunk["text"] for chunk in mine) == choice["text"]
        assert [chunk["finish_reason"] for chunk in mine] == [None] * (len(mine) - 1) + ["stop"]


def test_choices_and_the_best_of_more(http: httpx.Client, worker: ScriptedWorker) -> None:
    def by_seed(submit: Submit) -> list[Said]:
        return [Said(f"s{submit.seed}", logprob=-float(submit.seed % 3), reason="length")]

    worker.script = by_seed
    assert [choice["text"] for choice in ask(http, prompt=["x", "y"], n=2, seed=6)["choices"]] == ["s6", "s7", "s6", "s7"]
    answer = ask(http, n=1, best_of=2)
    assert len(worker.seen) == 6 and answer["usage"]["completion_tokens"] == 2
    best = max(worker.seen[-2:], key=lambda submit: -(submit.seed % 3))
    assert answer["choices"][0]["text"] == f"s{best.seed}" or worker.seen[-1].seed % 3 == worker.seen[-2].seed % 3


def test_best_of_on_generate(http: httpx.Client, worker: ScriptedWorker) -> None:
    worker.script = lambda submit: [Said(str(submit.seed), logprob=-1.0 - submit.seed % 2, reason="length")]
    body = {"inputs": "x", "parameters": {"best_of": 2, "do_sample": True, "details": True, "top_n_tokens": 1}}
    answer = http.post("/generate", json=body).json()
    (other,) = answer["details"]["best_of_sequences"]
    assert {answer["generated_text"], other["generated_text"]} == {str(submit.seed) for submit in worker.seen}
    assert answer["details"]["tokens"][0]["logprob"] >= other["tokens"][0]["logprob"]
    assert list(answer["details"])[-2:] == ["best_of_sequences", "top_tokens"]
    assert answer["details"]["seed"] == int(answer["generated_text"])


def test_token_ids_are_taken_as_they_are(http: httpx.Client, worker: ScriptedWorker) -> None:
    ask(http, prompt=[5, 6, 7])
    assert worker.seen[-1].input_ids == (5, 6, 7)
    ask(http, prompt=[[5], [6, 7]])
    assert {submit.input_ids for submit in worker.seen[-2:]} == {(5,), (6, 7)}


def test_echo_and_logprobs(http: httpx.Client, keyed: httpx.Client, worker: ScriptedWorker) -> None:
    assert ask(http, echo=True)["choices"][0]["text"] == "x 0 1"
    prefill = ((5, float("nan"), "x"), (6, -2.0, "y"))
    said = [Said("a", 8, -1.0, top=((9, -0.5, "b"),), prefill=prefill), Said("c", 7, -0.25, reason="length")]
    worker.script = lambda _: said
    choice = ask(keyed, prompt=[5, 6], echo=True, logprobs=1)["choices"][0]
    assert worker.seen[-1].want & Want.PREFILL_LOGPROBS
    assert choice["logprobs"] == {
        "tokens": ["x", "y", "a", "c"],
        "token_logprobs": [None, -2.0, -1.0, -0.25],
        "top_logprobs": [None, {"y": -2.0}, {"b": -0.5, "a": -1.0}, {"c": -0.25}],
        "text_offset": [0, 1, 2, 3],
    }
    pieces = [chunk["choices"][0] for chunk in stream(keyed, PATH, prompt=[5, 6], echo=True, logprobs=1)]
    for key, values in choice["logprobs"].items():
        assert [value for piece in pieces for value in piece["logprobs"][key]] == values
    assert "".join(piece["text"] for piece in pieces) == choice["text"]
    response = http.post(PATH, json={"prompt": "x", "echo": True, "logprobs": 1})
    assert response.json()["error"].startswith("Input validation error: `echo` with `logprobs` needs --enable-prefill-logprobs")


def test_one_failing_prompt_fails_the_request(http: httpx.Client, worker: ScriptedWorker) -> None:
    failure = Failure("generation", "Request failed during generation: x")
    worker.script = lambda submit: [Said("", error=failure)] if len(submit.input_ids) == 3 else count(submit)
    assert http.post(PATH, json={"prompt": ["x", "xy"], "max_tokens": 2}).status_code == 424
    assert stream(http, PATH, prompt=["xy", "x"], max_tokens=2)[-1] == {"error": {"message": failure.message, "http_status_code": 424}}


EMPTY = "Failed to deserialize the JSON body into the target type: Empty array detected. Do not use an empty array for the prompt."
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"prompt": []}, "validation", EMPTY),
    ({"prompt": ""}, "validation", "Input validation error: `inputs` cannot be empty"),
    ({"prompt": [""]}, "validation", "Input validation error: `inputs` cannot be empty"),
    ({"prompt": [[]]}, "validation", "Input validation error: `inputs` cannot be empty"),
    ({"prompt": [300]}, "validation", "Input validation error: `prompt` token ids must be < 300. Given: 300"),
    ({"prompt": [1] * 101}, "validation", "Input validation error: `inputs` must have less than 100 tokens. Given: 101"),
    (
        {"suffix": "", "prompt": ["x"] * 5},
        "suffix not supported",
        "Suffix is not supported and can be achieved by preprocessing the prompt.",
    ),
    ({"prompt": ["x"] * 5}, "batch size exceeded", "Number of prompts exceeds the maximum allowed batch size of 4"),
    ({"n": 2, "best_of": 1}, "validation", "Input validation error: `best_of` must be >= `n`. Given: 1"),
    ({"best_of": 3}, "validation", "Input validation error: `best_of` must be > 0 and <= 2. Given: 3"),
    ({"best_of": 2, "temperature": 0}, "validation", "Input validation error: you must use sampling when `best_of` is > 1"),
    ({"best_of": 2, "stream": True}, "validation", "Input validation error: `best_of` != 1 is not supported when streaming tokens"),
    ({"logprobs": 6}, "validation", "Input validation error: `top_n_tokens` must be >= 0 and <= 5. Given: 6"),
]


@pytest.mark.parametrize(("body", "kind", "message"), REFUSED)
def test_refusals(http: httpx.Client, worker: ScriptedWorker, body: dict[str, Any], kind: str, message: str) -> None:
    response = http.post(PATH, json={"prompt": "x", **body})
    assert (response.status_code, response.json()) == (422, {"error": message, "error_type": kind})


@pytest.mark.parametrize("prompt", [5, None, {}, [True], ["x", 5], [1, "x"], [-1], [[1.5]], [[[1]]]])
def test_prompts_of_the_wrong_shape(http: httpx.Client, prompt: Any) -> None:
    response = http.post(PATH, json={"prompt": prompt})
    assert response.status_code == 422
    assert response.json()["error"].startswith("Failed to deserialize")


def test_the_shape_of_an_invocation_decides(http: httpx.Client) -> None:
    def invoke(**body: Any) -> Any:
        return http.post("/invocations", json=body).json()

    assert invoke(inputs="x", parameters={"max_new_tokens": 1}) == [{"generated_text": "x 0"}]
    assert invoke(inputs=5, messages=HI, max_tokens=1)["object"] == "chat.completion"
    assert invoke(messages=5, prompt="x", max_tokens=1)["object"] == "text_completion"
    expected = "Failed to deserialize the JSON body into the target type: data did not match any variant of untagged enum SagemakerRequest"
    for body in ({}, {"inputs": 5}, {"messages": HI, "n": "x"}, {"prompt": "x", "max_tokens": -1}):
        assert invoke(**body) == {"error": expected, "error_type": "validation"}
    assert invoke(messages=[])["error"] == "Input validation error: `inputs` cannot be empty"
    assert stream(http, "/invocations", messages=HI, max_tokens=1)[0]["object"] == "chat.completion.chunk"
