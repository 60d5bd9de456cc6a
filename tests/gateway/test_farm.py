"""The gateway in front of real workers with the oracle engine: what a client sees of the whole way."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.farm import Farm
from tests.gateway.conftest import sse
from tests.servers import Server

LENGTH = 2048


@pytest.fixture(scope="module")
def farm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    folder = tmp_path_factory.mktemp("farm")
    server = Server(folder).start()
    with Farm(folder, server, {"MAX_TOTAL_TOKENS": str(LENGTH), "MAX_BATCH_SIZE": "4"}) as farm:
        farm.gateway()
        farm.worker()
        farm.wait_ready()
        yield farm
    server.stop()


@pytest.fixture
def http(farm: Farm) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://127.0.0.1:{farm.ports[0]}", timeout=60, trust_env=False, verify=False) as http:
        yield http


def ask(http: httpx.Client, inputs: str = "w5 w6 w7", **parameters: Any) -> Any:
    response = http.post("/generate", json={"inputs": inputs, "parameters": {"details": True, **parameters}})
    assert response.status_code == 200, response.text
    return response.json()


def test_stream_and_answer_say_the_same(http: httpx.Client) -> None:
    parameters = {"max_new_tokens": 20, "seed": 3, "do_sample": True, "details": True}
    whole = ask(http, **parameters)
    events = sse(http.post("/generate_stream", json={"inputs": "w5 w6 w7", "parameters": parameters}))
    assert [event["token"] for event in events] == whole["details"]["tokens"]
    assert "".join(event["token"]["text"] for event in events) == whole["generated_text"] == events[-1]["generated_text"]
    assert events[-1]["details"] == {"finish_reason": "length", "generated_tokens": 20, "seed": 3, "input_length": 3}


def test_more_than_1024_tokens_are_exact(http: httpx.Client) -> None:
    details = ask(http, max_new_tokens=1500, seed=1)["details"]
    assert (details["finish_reason"], len(details["tokens"]), details["generated_tokens"]) == ("length", 1500, 1500)
    assert http.post("/generate", json={"inputs": "w5", "parameters": {"max_new_tokens": LENGTH}}).status_code == 422


def test_a_stop_string_ends_it_and_stays(http: httpx.Client) -> None:
    text = ask(http, max_new_tokens=10, seed=7)["generated_text"]
    stop = text[8:15]
    stopped = ask(http, max_new_tokens=10, seed=7, stop=stop)
    assert stopped["details"]["finish_reason"] == "stop_sequence"
    assert stop in stopped["generated_text"] and text.startswith(stopped["generated_text"])
    assert len(stopped["details"]["tokens"]) < 10


def test_more_requests_than_slots_all_end_as_if_alone(farm: Farm, http: httpx.Client) -> None:
    def text(seed: int) -> str:
        with httpx.Client(base_url=http.base_url, timeout=60, trust_env=False, verify=False) as own:
            answer = ask(own, inputs="w5 " * (1 + seed * 7), max_new_tokens=5 + 3 * seed, seed=seed)["generated_text"]
            assert isinstance(answer, str)
            return answer

    with ThreadPoolExecutor(9) as pool:
        together = list(pool.map(text, range(9)))
    assert together == [text(seed) for seed in range(9)]
