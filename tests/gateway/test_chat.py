"""`/v1/chat/completions` and `/chat_tokenize` over HTTP (TGI reference §1.8, §1.9, §2.3; clients.md §0)."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from tokenizers import Tokenizer

from common.messages import Failure
from tests.gateway.conftest import Gateway, sse
from tests.gateway.scripted import LENGTH, Said, ScriptedWorker, tokenizer_json

HI = [{"role": "user", "content": "hi"}]
CHAT = "/v1/chat/completions"


def ask(http: httpx.Client, **body: Any) -> Any:
    response = http.post(CHAT, json={"messages": HI, **body})
    assert response.status_code == 200, response.text
    return response.json()


def stream(http: httpx.Client, path: str = CHAT, **body: Any) -> list[dict[str, Any]]:
    """The chunks of a stream that must end with [DONE]."""
    given = {} if path != CHAT else {"messages": HI}
    with http.stream("POST", path, json={**given, "stream": True, **body}) as response:
        assert response.status_code == 200, response.read()
        data = response.read().decode()
    assert data.endswith("data: [DONE]\n\n")
    return sse(httpx.Response(200, content=data.removesuffix("data: [DONE]\n\n").encode()))


def prompt_of(worker: ScriptedWorker) -> str:
    """What the model was given, in text."""
    ids = list(worker.seen[-1].input_ids)
    text: str = Tokenizer.from_str(tokenizer_json().decode()).decode(ids, skip_special_tokens=False)
    return text


def test_the_answer(http: httpx.Client, worker: ScriptedWorker) -> None:
    answer = ask(http, max_tokens=3, model="anything")
    assert list(answer) == ["object", "id", "created", "model", "system_fingerprint", "choices", "usage"]
    assert (answer["object"], answer["model"], answer["system_fingerprint"]) == ("chat.completion", "anything", "3.3.7-native")
    assert answer["choices"] == [
        {"index": 0, "message": {"role": "assistant", "content": " 0 1 2", "refusal": None}, "logprobs": None, "finish_reason": "length"}
    ]
    n_prompt = len(worker.seen[-1].input_ids)
    assert answer["usage"] == {"prompt_tokens": n_prompt, "completion_tokens": 3, "total_tokens": n_prompt + 3}
    assert prompt_of(worker) == "<s>u:hi;a:"
    other = ask(http, max_tokens=1, model="tgi")
    assert other["model"] == "org/tiny" and other["id"] != answer["id"] and answer["id"].startswith("chatcmpl-")


def test_chunks(http: httpx.Client) -> None:
    chunks = stream(http, max_tokens=3)
    assert len({chunk["id"] for chunk in chunks}) == 1 and chunks[0]["id"]
    for chunk in chunks:
        assert list(chunk) == ["object", "id", "created", "model", "system_fingerprint", "choices", "usage"]
        assert (chunk["object"], chunk["usage"]) == ("chat.completion.chunk", None)
        assert chunk["choices"][0]["delta"]["role"] == "assistant"
    assert [chunk["choices"][0]["delta"]["content"] for chunk in chunks] == [" 0", " 1", " 2"]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None, None, "length"]


STOPPED = [Said(f"{n} ") for n in range(1, 7)] + [Said("7", reason="stop_sequence")]
CASES: list[tuple[list[Said], list[str], str, str]] = [
    (STOPPED, ["7"], "1 2 3 4 5 6 ", "stop"),
    ([Said("a EN"), Said("D of", reason="stop_sequence")], ["END"], "a ", "stop"),
    ([Said("a EN"), Said("TER"), Said("", token=1, special=True, reason="eos_token")], ["END"], "a ENTER", "stop"),
    ([Said("a EN", reason="length")], ["END"], "a EN", "length"),
    ([Said("a"), Said("END", reason="length")], ["END"], "a", "stop"),
    ([Said("a"), Said("</s>", token=1, special=True, reason="eos_token")], [], "a", "stop"),
    ([Said("END x", reason="stop_sequence")], ["END"], "", "stop"),
]


@pytest.mark.parametrize(("said", "stop", "text", "reason"), CASES)
def test_stop_text_is_cut_alike_whole_and_streamed_and_kept_on_native_routes(
    http: httpx.Client, worker: ScriptedWorker, said: list[Said], stop: list[str], text: str, reason: str
) -> None:
    worker.script = lambda _: said
    kept = "".join(each.text for each in said if not each.special)
    choice = ask(http, stop=stop)["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == (text, reason)
    chunks = [chunk["choices"][0] for chunk in stream(http, stop=stop)]
    assert len(chunks) == len(said)
    assert ("".join(chunk["delta"]["content"] for chunk in chunks), chunks[-1]["finish_reason"]) == (text, reason)
    choice = http.post("/v1/completions", json={"prompt": "x", "stop": stop}).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == (text, reason)
    chunks = [chunk["choices"][0] for chunk in stream(http, "/v1/completions", prompt="x", stop=stop)]
    assert ("".join(chunk["text"] for chunk in chunks), chunks[-1]["finish_reason"]) == (text, reason)
    native = {"inputs": "x", "parameters": {"stop": stop}}
    assert http.post("/generate", json=native).json()["generated_text"] == kept
    events = sse(http.post("/generate_stream", json=native))
    assert events[-1]["generated_text"] == kept


@pytest.mark.parametrize("path", [CHAT, "/v1/completions"])
def test_usage_comes_when_asked_for_and_agrees(http: httpx.Client, path: str) -> None:
    body: dict[str, Any] = {"messages": HI, "prompt": "x", "max_tokens": 4, "n": 2}
    whole = http.post(path, json=body).json()["usage"]
    chunks = stream(http, path, **body, stream_options={"include_usage": True})
    assert (chunks[-1]["choices"], chunks[-1]["usage"]) == ([], whole)
    assert whole["completion_tokens"] == 8
    for options in ({"stream_options": {"include_usage": False}}, {"stream_options": {}}, {"stream_options": None}, {}):
        assert all(chunk["usage"] is None and chunk["choices"] for chunk in stream(http, path, **body, **options))


def test_an_error_in_mid_stream_has_its_status_and_ends_with_done(http: httpx.Client, worker: ScriptedWorker) -> None:
    failure = Failure("generation", "Request failed during generation: x")
    worker.script = lambda _: [Said("a"), Said("", error=failure)]
    for path in (CHAT, "/v1/completions"):
        *_, last = stream(http, path, messages=HI, prompt="x")
        assert last == {"error": {"message": failure.message, "http_status_code": 424}}
        response = http.post(path, json={"messages": HI, "prompt": "x"})
        assert (response.status_code, response.json()["error_type"]) == (424, "generation")


def test_sampling_as_openai_means_it(http: httpx.Client, worker: ScriptedWorker) -> None:
    ask(http, max_tokens=1)
    assert worker.seen[-1].params.do_sample
    ask(http, max_tokens=1, temperature=0)
    assert not worker.seen[-1].params.samples
    ask(http, max_tokens=1, top_p=1, top_k=-1, typical_p=1.0, min_p=0.1, presence_penalty=1.5, logit_bias={"7": -100}, ignore_eos=True)
    params = worker.seen[-1].params
    assert (params.top_p, params.top_k, params.presence_penalty, params.logit_bias) == (1.0, 0, 1.5, ((7, -100.0),))
    assert params.ignore_eos and params.min_p == pytest.approx(0.1) and params.repetition_penalty == 1.0
    ask(http, max_tokens=1, logit_bias=[0.0, 2.0])
    assert worker.seen[-1].params.logit_bias == ((1, 2.0),)
    ask(http, stop=["", "END"], max_tokens=1)
    assert worker.seen[-1].stop == ("END",)
    ask(http, n=3, seed=5, max_tokens=1)
    assert [submit.seed for submit in worker.seen[-3:]] == [5, 6, 7]


def test_null_is_absent_and_unknown_fields_are_ignored(http: httpx.Client, worker: ScriptedWorker) -> None:
    names = "max_tokens stop seed tools response_format logit_bias user n stream stream_options logprobs top_p tool_choice adapter_id"
    unknown = {"max_retries": 0, "parallel_tool_calls": True, "continuous_usage_stats": 1, "documents": []}
    ask(http, **dict.fromkeys(names.split()), **unknown)
    assert worker.seen[-1].n_max_new == LENGTH - len(worker.seen[-1].input_ids)
    assert (
        http.post("/v1/completions", json={"prompt": "x", **dict.fromkeys([*names.split(), "suffix", "echo", "best_of"])}).status_code
        == 200
    )


def test_logprobs_and_what_json_cannot_say(http: httpx.Client, worker: ScriptedWorker) -> None:
    top = ((5, -0.5, "é"), (6, float("-inf"), "\ufffd"))
    said = [Said("é", 5, -0.5, top=top), Said("x", 6, float("nan"), reason="length")]
    worker.script = lambda _: said
    content = ask(http, logprobs=True, top_logprobs=2)["choices"][0]["logprobs"]["content"]
    assert content == [
        {
            "token": "é", "logprob": -0.5, "bytes": [195, 169],
            "top_logprobs": [
                {"token": "é", "logprob": -0.5, "bytes": [195, 169]},
                {"token": "\ufffd", "logprob": None, "bytes": None},
            ],
        },
        {"token": "x", "logprob": None, "bytes": [120], "top_logprobs": []},
    ]  # fmt: skip
    assert [chunk["choices"][0]["logprobs"]["content"][0] for chunk in stream(http, logprobs=True, top_logprobs=2)] == content
    assert worker.seen[-1].params.top_n_tokens == 2


def test_templates_get_parts_tool_calls_and_results(http: httpx.Client, worker: ScriptedWorker) -> None:
    calls = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": 3}'}}]
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": [{"type": "text", "text": "be "}, {"type": "text", "text": "brief"}]},
        *HI,
        {"role": "assistant", "content": None, "tool_calls": calls},
        {"role": "tool", "tool_call_id": "1", "content": "9"},
    ]
    ask(http, messages=messages, max_tokens=1)
    assert prompt_of(worker) == "<s>s:be brief;u:hi;a:f(3);t:9#1;a:"
    messages[2] = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": {"x": 4}}}]}
    ask(http, messages=messages, max_tokens=1, tools=[{"type": "function"}], tool_choice="none", chat_template_kwargs={"style": "!"})
    assert prompt_of(worker) == "<s>!s:be brief;u:hi;a:f(4);t:9#1;a:"


def test_the_last_message_of_the_assistant_is_continued(http: httpx.Client, worker: ScriptedWorker) -> None:
    messages = [*HI, {"role": "assistant", "content": "I a: "}]
    ask(http, messages=messages, max_tokens=1)
    assert prompt_of(worker) == "<s>u:hi;a:I a:"
    ask(http, messages=messages, max_tokens=1, continue_final_message=False)
    assert prompt_of(worker) == "<s>u:hi;a:I a: ;a:"
    ask(http, continue_final_message=True, max_tokens=1)
    assert prompt_of(worker) == "<s>u:hi"


MISSHAPEN: list[dict[str, Any]] = [
    {"messages": None},
    {"messages": "hi"},
    {"messages": [{"content": "x"}]},
    {"messages": [{"role": "user"}]},
    {"messages": [{"role": "user", "content": 5}]},
    {"messages": [{"role": "user", "content": [{"type": "sound"}]}]},
    {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
    {"logit_bias": {"x": 1}},
    {"logit_bias": "x"},
    {"max_tokens": 1, "max_completion_tokens": 1},
    {"max_tokens": -1},
    {"stop": 5},
    {"n": "2"},
    {"response_format": {"type": "sound"}},
    {"response_format": {}},
    {"chat_template_kwargs": []},
]


@pytest.mark.parametrize("body", MISSHAPEN)
def test_bodies_of_the_wrong_shape(http: httpx.Client, worker: ScriptedWorker, body: dict[str, Any]) -> None:
    for path in (CHAT, "/chat_tokenize"):
        response = http.post(path, json={"messages": HI, **body})
        assert response.status_code == 422
        assert response.json()["error"].startswith("Failed to deserialize the JSON body into the target type: ")
    assert not worker.seen


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"messages": []}, "validation", "Input validation error: `inputs` cannot be empty"),
    ({"top_p": 0.0}, "validation", "Input validation error: `top_p` must be > 0.0 and < 1.0"),
    ({"temperature": -1}, "validation", "Input validation error: `temperature` must be strictly positive"),
    ({"top_k": -2}, "validation", "Input validation error: `top_k` must be strictly positive"),
    ({"min_p": 1.5}, "validation", "Input validation error: `min_p` must be >= 0.0 and <= 1.0"),
    ({"presence_penalty": 3}, "validation", "Input validation error: `presence_penalty` must be >= -2.0 and <= 2.0"),
    ({"frequency_penalty": 3}, "validation", "Input validation error: `frequency_penalty` must be >= -2.0 and <= 2.0"),
    ({"logit_bias": {"1": 101}}, "validation", "Input validation error: `logit_bias` values must be >= -100.0 and <= 100.0"),
    (
        {"logit_bias": {str(n): 1 for n in range(1025)}},
        "validation",
        "Input validation error: `logit_bias` supports up to 1024 tokens. Given: 1025",
    ),
    ({"logit_bias": {"99999": 1}}, "validation", "Input validation error: `logit_bias` token ids must be < 300. Given: 99999"),
    ({"top_logprobs": 6}, "validation", "Input validation error: `top_n_tokens` must be >= 0 and <= 5. Given: 6"),
    ({"n": 5}, "validation", "Input validation error: `n` must be > 0 and <= 4. Given: 5"),
    ({"n": 0}, "validation", "Input validation error: `n` must be > 0 and <= 4. Given: 0"),
    ({"max_tokens": 0}, "validation", "Input validation error: `max_new_tokens` must be strictly positive"),
    ({"stop": list("abcde")}, "validation", "Input validation error: `stop` supports up to 4 stop sequences. Given: 5"),
    ({"adapter_id": "x"}, "validation", "Input validation error: `adapter_id` is not supported yet"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://127.0.0.1/"}}]}]},
        "validation",
        "Input validation error: images are not supported by this model",
    ),
    ({"messages": [*HI, {"role": "critic", "content": "no"}]}, "template_error", "Template error: Roles must alternate"),
    ({"chat_template": "rag"}, "template_error", "Template error: template not found"),
    ({"tools": [{"type": "function"}]}, "tool_error", "Tool error: tools are not supported yet"),
    (
        {"tools": [], "response_format": {"type": "json_object"}},
        "tool_error",
        "Tool error: Grammar and tools are mutually exclusive",
    ),
    *[
        ({"response_format": shape}, "validation", "Input validation error: grammar is not supported")
        for shape in (
            {"type": "json_object"},
            {"type": "json_object", "value": {"type": "object"}},
            {"type": "json_object", "schema": {"type": "object"}},
            {"type": "json_schema", "json_schema": {"schema": {}}},
            {"type": "json_schema", "value": {"schema": {}}},
        )
    ],
]


@pytest.mark.parametrize(("body", "kind", "message"), REFUSED)
@pytest.mark.parametrize("streamed", [False, True])
def test_refusals_are_plain_answers_also_for_streams(
    http: httpx.Client, worker: ScriptedWorker, body: dict[str, Any], kind: str, message: str, streamed: bool
) -> None:
    response = http.post(CHAT, json={"messages": HI, "stream": streamed, **body})
    assert (response.status_code, response.json()) == (422, {"error": message, "error_type": kind})
    assert not worker.seen


def test_what_is_neutral_is_taken(http: httpx.Client) -> None:
    ask(http, max_tokens=1, response_format={"type": "text"}, tools=[], tool_choice="auto", top_p=1.0, presence_penalty=0)


def test_chat_tokenize(http: httpx.Client, keyed: httpx.Client, strict: Gateway) -> None:
    answer = http.post("/chat_tokenize", json={"messages": HI}).json()
    assert list(answer) == ["tokenize_response", "templated_text"]
    assert answer["templated_text"] == "<s>u:hi;a:"
    assert answer["tokenize_response"][0] == {"id": 0, "text": "<s>", "start": 0, "stop": 3}
    assert "".join(token["text"] for token in answer["tokenize_response"]) == "<s>u:hi;a:"
    with strict.http as stranger:
        assert stranger.post("/chat_tokenize", json={"messages": HI}).status_code == 401


def test_template_failures_are_counted(gateway: Gateway, http: httpx.Client) -> None:
    before = gateway.number('tgi_request_failure{err="template"}')
    http.post(CHAT, json={"messages": [{"role": "critic", "content": ""}]})
    assert gateway.number('tgi_request_failure{err="template"}') == before + 1


def test_models(http: httpx.Client) -> None:
    assert http.get("/v1/models/org/tiny").json() == {"id": "org/tiny", "object": "model", "created": 0, "owned_by": "org/tiny"}
    assert http.get("/v1/models/other").status_code == 404


def test_permits_count_generations(keyed: httpx.Client) -> None:
    assert keyed.post(CHAT, json={"messages": HI, "n": 2}).status_code == 429
    assert keyed.post(CHAT, json={"messages": HI, "max_tokens": 1}).status_code == 200


def test_no_prompt_reaches_the_log(gateway: Gateway, http: httpx.Client) -> None:
    for body in ({"messages": [{"role": "user", "content": "canary-5"}]}, {"messages": [{"role": "critic", "content": "canary-6"}]}):
        http.post(CHAT, content=json.dumps(body), headers={"content-type": "application/json"})
    assert "canary" not in gateway.process.text()


def test_a_stream_can_be_come_back_for(http: httpx.Client) -> None:
    body = {"messages": HI, "max_tokens": 4, "stream": True}
    data = http.post(CHAT, json=body, headers={"x-farm-resume": "1"}).text
    ids = [line.removeprefix("id: ") for line in data.splitlines() if line.startswith("id: ")]
    assert len(ids) == 4 and len({each.partition("/")[0] for each in ids}) == 1
    retry = {"idempotency-key": "chat-1"}
    first = http.post(CHAT, json={"messages": HI, "max_tokens": 4, "seed": 1}, headers=retry).json()
    again = http.post(CHAT, json={"messages": HI, "max_tokens": 4, "seed": 1}, headers=retry).json()
    assert first["choices"] == again["choices"]
    assert http.post(CHAT, json={"messages": HI, "max_tokens": 5}, headers=retry).status_code == 422
