"""Several API keys over HTTP: who may enter, how much at once, and what it is counted as."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.farm import healthy, wait_for
from tests.gateway.conftest import Gateway, start_gateway
from tests.gateway.scripted import ScriptedWorker

BODY = {"inputs": "x", "parameters": {"max_new_tokens": 2}}


@pytest.fixture(scope="module")
def shared(redis_url: str, shared_worker: ScriptedWorker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder = tmp_path_factory.mktemp("keys")
    (folder / "keys").write_text("wide sk-canary-1\nnarrow sk-canary-2 running=1 queued=1\n")
    gateway = start_gateway(redis_url, "farm", folder / "log", FARM_API_KEYS_FILE=str(folder / "keys"))
    wait_for(lambda: healthy(gateway.port), 10, gateway.process.text)
    yield gateway
    assert gateway.process.end() == 0


def post(gateway: Gateway, key: str, path: str = "/generate") -> httpx.Response:
    with gateway.http as http:
        return http.post(path, json=BODY, headers={"authorization": f"Bearer {key}"})


def tokens(gateway: Gateway, key: str, kind: str) -> float:
    return gateway.number(f'farm_tokens_total{{key="{key}",kind="{kind}"}}')


def test_each_key_enters_and_its_tokens_are_counted(shared: Gateway, worker: ScriptedWorker) -> None:
    before = [tokens(shared, key, kind) for key in ("wide", "narrow") for kind in ("prompt", "generated")]
    assert post(shared, "sk-canary-1").status_code == 200
    assert (post(shared, "sk-canary-3").status_code, post(shared, "sk").status_code) == (401, 401)
    after = [tokens(shared, key, kind) for key in ("wide", "narrow") for kind in ("prompt", "generated")]
    assert [now - then for now, then in zip(after, before, strict=True)] == [2, 2, 0, 0]
    assert worker.seen[-1].tenant == "wide"
    assert "canary" not in shared.process.text() + shared.get("/metrics").text


def test_a_key_runs_and_queues_no_more_than_it_may(shared: Gateway, worker: ScriptedWorker) -> None:
    worker.go.clear()
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(post, shared, "sk-canary-2")
        wait_for(lambda: len(worker.seen) == 1)
        n_requests = shared.number("tgi_request_count")
        second = pool.submit(post, shared, "sk-canary-2")
        wait_for(lambda: shared.number("tgi_request_count") == n_requests + 1)
        refused = []
        wait_for(lambda: refused.append(post_quickly(shared)) or refused[-1] == 429)
        assert len(worker.seen) == 1
        other = pool.submit(post, shared, "sk-canary-1")
        wait_for(lambda: len(worker.seen) == 2)
        worker.go.set()
        assert [each.result().status_code for each in (first, second, other)] == [200, 200, 200]


def post_quickly(gateway: Gateway) -> int:
    """The status of one more request of the narrow key; it leaves when it has to wait."""
    with gateway.http as http:
        try:
            return http.post("/generate", json=BODY, headers={"authorization": "Bearer sk-canary-2"}, timeout=0.3).status_code
        except httpx.ReadTimeout:
            return 0
