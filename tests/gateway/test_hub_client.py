"""`huggingface_hub`'s own client against the gateway: text, details, streams and its error classes (clients.md A1)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import GenerationError, OverloadedError, ValidationError

from common.messages import Failure
from tests.farm import wait_for
from tests.gateway.conftest import Gateway
from tests.gateway.scripted import Said, ScriptedWorker


@pytest.fixture
def client(gateway: Gateway, worker: ScriptedWorker, monkeypatch: pytest.MonkeyPatch) -> Iterator[InferenceClient]:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with InferenceClient(f"http://127.0.0.1:{gateway.port}") as client:
        yield client


def test_text(client: InferenceClient) -> None:
    assert client.text_generation("Hi", max_new_tokens=3, return_full_text=False) == " 0 1 2"
    assert client.text_generation("Hi", max_new_tokens=3) == "Hi 0 1 2"


def test_details(client: InferenceClient, worker: ScriptedWorker) -> None:
    worker.script = lambda _: [Said(" a", 5, top=((5, -0.5, " a"),)), Said("</s>", 1, special=True, reason="eos_token")]
    output = client.text_generation("Hi", details=True, do_sample=True, seed=3, top_n_tokens=1, return_full_text=False)
    assert output.generated_text == " a"
    assert output.details is not None
    assert (output.details.finish_reason, output.details.generated_tokens, output.details.seed) == ("eos_token", 2, 3)
    assert [token.text for token in output.details.tokens] == [" a", "</s>"]
    assert output.details.top_tokens is not None and output.details.top_tokens[0][0]["id"] == 5  # type: ignore[index]


def test_streams(client: InferenceClient, worker: ScriptedWorker) -> None:
    worker.script = lambda _: [Said("a\u2028b\u0085"), Said("é🧑‍🚀", reason="length")]
    assert list(client.text_generation("Hi", stream=True)) == ["a\u2028b\u0085", "é🧑‍🚀"]
    *_, last = client.text_generation("Hi", stream=True, details=True)
    assert last.generated_text == "Hia\u2028b\u0085é🧑‍🚀"
    assert last.details is not None and last.details.finish_reason == "length"


@pytest.mark.parametrize("stream", [False, True])
def test_errors(client: InferenceClient, worker: ScriptedWorker, stream: bool) -> None:
    with pytest.raises(ValidationError, match="`temperature` must be strictly positive"):
        list(client.text_generation("Hi", temperature=-1.0, stream=stream))  # type: ignore[call-overload]
    worker.script = lambda _: [Said("a"), Said("", error=Failure("generation", "Request failed during generation: x"))]
    with pytest.raises(GenerationError, match="Request failed during generation: x"):
        list(client.text_generation("Hi", stream=stream))  # type: ignore[call-overload]


def test_overload(strict: Gateway, worker: ScriptedWorker) -> None:
    worker.go.clear()
    with InferenceClient(f"http://127.0.0.1:{strict.port}", token="Secret-Key") as client, strict.http as http:
        request = http.build_request("POST", "/generate_stream", json={"inputs": "x"}, headers={"authorization": "Bearer Secret-Key"})
        response = http.send(request, stream=True)
        with pytest.raises(OverloadedError, match="Model is overloaded"):
            client.text_generation("Hi")
        response.close()
    wait_for(lambda: worker.cancelled)
