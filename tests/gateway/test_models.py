"""Several models in one farm: a request goes to the one it names, any other name to one that is ready."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.farm import wait_for
from tests.gateway.conftest import Gateway, start_gateway
from tests.gateway.scripted import ScriptedWorker

CHAT = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}


@pytest.fixture(scope="module")
def workers(redis_url: str) -> Iterator[dict[str, ScriptedWorker]]:
    made = {name: ScriptedWorker(redis_url, "two", id=name, model=f"org/{name}").start() for name in ("one", "two")}
    yield made
    for worker in made.values():
        worker.stop()


@pytest.fixture(scope="module")
def both(redis_url: str, workers: dict[str, ScriptedWorker], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    gateway = start_gateway(redis_url, "two", tmp_path_factory.mktemp("two") / "log")
    wait_for(lambda: len(gateway.get("/v1/models").json()["data"]) == 2, 10, gateway.process.text)
    yield gateway
    assert gateway.process.end() == 0


def ask(http: httpx.Client, name: str | None) -> str:
    wait_for(lambda: http.post("/v1/chat/completions", json={**CHAT, "model": name}).status_code == 200)
    answer = http.post("/v1/chat/completions", json={**CHAT, "model": name}).json()
    return str(answer["model"])


def test_the_named_model_answers(both: Gateway, workers: dict[str, ScriptedWorker]) -> None:
    assert [model["id"] for model in both.get("/v1/models").json()["data"]] == ["org/one", "org/two"]
    with both.http as http:
        for name, worker in workers.items():
            before = {each: len(other.seen) for each, other in workers.items()}
            assert ask(http, f"org/{name}") == f"org/{name}"
            assert len(worker.seen) > before[name]
            assert all(len(other.seen) == before[each] for each, other in workers.items() if each != name)
            body = {"prompt": "x", "max_tokens": 1, "model": f"org/{name}"}
            assert http.post("/v1/completions", json=body).json()["model"] == f"org/{name}"
        assert ask(http, "gpt-4") == "gpt-4"
        assert ask(http, None) in ("org/one", "org/two")
        assert http.get("/v1/models/org/two").status_code == 200
