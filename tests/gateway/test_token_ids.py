"""A model without a tokenizer: token ids in, token ids out (SKIP_TOKENIZER_IN_TGI)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from common.errors import RequestError
from gateway.token_ids import IdEncoder
from tests.farm import Farm, wait_for
from tests.gateway.conftest import sse
from tests.parity.drive import Job, expected
from tests.parity.tiny import MAX_LENGTH, VOCAB_SIZE, tiny_model
from tests.servers import Server

PROMPT = [15, 17, 13, 99, 42]
TEXT = "15, 17,13 ,99,42\n"
N_NEW = 12
N_TO_EOS = 3


@pytest.fixture(scope="module")
def greedy() -> list[int]:
    """What transformers gives for the prompt, as long as nothing ends it."""
    return expected(tiny_model("llama"), Job(PROMPT, 0, 0, N_NEW))


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory, greedy: list[int]) -> Iterator[Farm]:
    """Three models: `bare`, whose folder has no tokenizer, and the oracle with one and without."""
    folder = tmp_path_factory.mktemp("ids")
    tiny_model("llama").save_pretrained(folder / "model")
    (folder / "model" / "generation_config.json").write_text(json.dumps({"eos_token_id": greedy[N_TO_EOS - 1]}))
    server = Server(folder).start()
    with Farm(folder, server, {"ENABLE_PREFILL_LOGPROBS": "true", "MAX_TOTAL_TOKENS": str(MAX_LENGTH)}) as farm:
        farm.gateway()
        cpu = {"FARM_BACKEND": "cpu", "MODEL_ID": str(folder / "model"), "DTYPE": "float32", "OMP_NUM_THREADS": "1"}
        farm.worker(FARM_SERVED_NAME="bare", SKIP_TOKENIZER_IN_TGI="true", **cpu)
        farm.wait_ready()  # the first model is the one of all routes that name none
        farm.worker(FARM_SERVED_NAME="ids", SKIP_TOKENIZER_IN_TGI="true")
        farm.worker(FARM_SERVED_NAME="words")
        farm.wait_ready(3)
        wait_for(lambda: len(models(farm.ports[0])) == 3, 20, farm.logs)  # an unknown name is answered by the first model
        yield farm
    server.stop()


def models(port: int) -> list[Any]:
    listed: list[Any] = httpx.get(f"http://127.0.0.1:{port}/v1/models", trust_env=False).json()["data"]
    return listed


@pytest.fixture
def http(farm: Farm) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://127.0.0.1:{farm.ports[0]}", timeout=60, trust_env=False, verify=False) as http:
        yield http


def generate(http: httpx.Client, inputs: str = TEXT, path: str = "/generate", **parameters: Any) -> httpx.Response:
    return http.post(path, json={"inputs": inputs, "parameters": {"max_new_tokens": N_NEW, "ignore_eos": True, **parameters}})


def complete(http: httpx.Client, **body: Any) -> Any:
    response = http.post("/v1/completions", json={"max_tokens": N_NEW, "ignore_eos": True, **body})
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


def ids(text: str) -> list[int]:
    return [int(token) for token in text.split(",")]


def refusal(response: httpx.Response) -> str:
    assert (response.status_code, response.json()["error_type"]) == (422, "validation"), response.text
    return str(response.json()["error"])


def test_ids_give_the_ids_of_transformers_whole_and_streamed(http: httpx.Client, greedy: list[int]) -> None:
    answer = generate(http, details=True, decoder_input_details=True, top_n_tokens=2).json()
    details = answer["details"]
    assert ids(answer["generated_text"]) == greedy == [token["id"] for token in details["tokens"]]
    assert [token["text"] for token in details["prefill"]] == [str(token) for token in PROMPT]
    assert all(token["text"] == str(token["id"]) for tops in details["top_tokens"] for token in tops)
    events = sse(generate(http, path="/generate_stream", details=True))
    assert [event["token"] for event in events] == details["tokens"]
    assert "".join(event["token"]["text"] for event in events) == answer["generated_text"] == events[-1]["generated_text"]
    assert events[-1]["details"]["input_length"] == len(PROMPT)


def test_the_models_own_end_of_text_ends_it_and_is_shown(http: httpx.Client, greedy: list[int]) -> None:
    answer = generate(http, ignore_eos=False, details=True).json()
    assert answer["details"]["finish_reason"] == "eos_token"
    assert ids(answer["generated_text"]) == greedy[:N_TO_EOS]


def test_the_full_text_is_a_list_of_ids(http: httpx.Client, greedy: list[int]) -> None:
    assert ids(generate(http, path="/").json()[0]["generated_text"]) == PROMPT + greedy
    choice = complete(http, model="bare", prompt=PROMPT, temperature=0, echo=True, logprobs=1)
    assert ids(choice["text"]) == PROMPT + greedy
    places = zip(choice["logprobs"]["text_offset"], choice["logprobs"]["tokens"], strict=True)
    assert all(choice["text"].startswith(token, at) for at, token in places)


def test_truncation_keeps_the_last_ids_and_limits_count_ids(http: httpx.Client) -> None:
    assert generate(http, truncate=3).text == generate(http, inputs="13,99,42").text
    n = MAX_LENGTH
    said = refusal(generate(http, inputs=",".join(["7"] * n)))
    assert said.endswith(f"Given: {n} `inputs` tokens and {N_NEW} `max_new_tokens`")
    assert generate(http, inputs=",".join(["7"] * n), truncate=n - N_NEW).status_code == 200


def test_with_and_without_a_tokenizer_the_same_ids_give_the_same_ids(http: httpx.Client) -> None:
    words = complete(http, model="words", prompt=PROMPT, seed=3)["text"]
    as_ids = [int(word.removeprefix("w")) for word in words.split()]
    assert len(as_ids) == N_NEW
    for prompt in (PROMPT, TEXT):
        assert ids(complete(http, model="ids", prompt=prompt, seed=3)["text"]) == as_ids


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        ("", "`inputs` cannot be empty"),
        (" ", "Not an id: item 1"),
        ("1,two,3", "Not an id: item 2"),
        ("1,-2", "Not an id: item 2"),
        ("1,2,", "Not an id: item 3"),
        ("1 2", "Not an id: item 1"),
        ("1,²", "Not an id: item 2"),
        ("9" * 5000, "Not an id: item 1"),
        (f"1,{VOCAB_SIZE},2", f"`inputs` token ids must be < {VOCAB_SIZE}. Given: {VOCAB_SIZE}"),
    ],
)
def test_what_is_no_id_is_refused(http: httpx.Client, inputs: str, said: str) -> None:
    assert refusal(generate(http, inputs=inputs)).endswith(said)
    if inputs:
        assert refusal(http.post("/tokenize", json={"inputs": inputs})).endswith(said)


def test_what_needs_a_text_is_refused(http: httpx.Client) -> None:
    chat = {"messages": [{"role": "user", "content": "1,2"}], "max_tokens": 2}
    grammar = {"type": "regex", "value": "x"}
    for what, response in {
        "a chat": http.post("/v1/chat/completions", json=chat),
        "`stop`": generate(http, stop=["7"]),
        "`grammar`": generate(http, grammar=grammar),
    }.items():
        assert refusal(response) == (
            f"Input validation error: {what} is not supported: this model is served without a tokenizer (SKIP_TOKENIZER_IN_TGI)"
        )
    for path, body in {
        "/chat_tokenize": chat,
        "/invocations": chat,
        "/v1/completions": {"prompt": [1], "stop": "x"},
    }.items():
        assert "served without a tokenizer" in refusal(http.post(path, json=body))
    stream = http.post("/v1/chat/completions", json={**chat, "stream": True})
    assert "served without a tokenizer" in refusal(stream)


def test_tokenize_and_info(http: httpx.Client) -> None:
    spans = http.post("/tokenize", json={"inputs": "5, 17"}).json()
    assert spans == [{"id": 5, "text": "5", "start": 0, "stop": 1}, {"id": 17, "text": "17", "start": 3, "stop": 5}]
    info = http.get("/info").json()
    assert (info["model_id"], info["max_total_tokens"]) == ("bare", MAX_LENGTH)


def test_a_long_prompt_is_read_beside_the_event_loop_with_the_same_result() -> None:
    with ThreadPoolExecutor(1) as threads:
        encoder = IdEncoder(None, threads)
        many = list(range(5000))
        assert asyncio.run(encoder.encode(encoder.decode(many))) == many
        with pytest.raises(RequestError, match="item 5001"):
            asyncio.run(encoder.encode(encoder.decode(many) + ",x"))
