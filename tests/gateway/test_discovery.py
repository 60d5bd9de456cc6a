"""What operators see: discovery, overview, lanes, goodput, the trace of a request."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic_ns

import httpx
import pytest

from common.trace import TRACE, enter
from tests.farm import wait_for
from tests.gateway.conftest import Gateway, start_gateway
from tests.gateway.scripted import ScriptedWorker

TRACE_ID, PARENT_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.fixture
def own_worker(redis_url: str) -> Iterator[ScriptedWorker]:
    worker = ScriptedWorker(redis_url, f"farm-{monotonic_ns()}", metrics_url="http://host-a:9100/metrics").start()
    yield worker
    worker.stop()


@pytest.fixture
def own(redis_url: str, own_worker: ScriptedWorker, tmp_path: Path) -> Iterator[Gateway]:
    gateway = start_gateway(
        redis_url, own_worker.farm, tmp_path / "log", JSON_OUTPUT="true", FARM_SLO_TTFT_MS="9000", FARM_SLO_ITL_MS="9000"
    )
    wait_for(lambda: gateway.get("/health").status_code == 200, 10, gateway.process.text)
    yield gateway
    assert gateway.process.end() == 0


def ended(gateway: Gateway) -> dict[str, str]:
    """The fields of the log line of the last request."""
    lines = [json.loads(line)["fields"] for line in gateway.process.text().splitlines()]
    return next((line for line in reversed(lines) if "total_time" in line), {})


def test_workers_are_found_with_their_labels_and_only_at_addresses(own: Gateway, http: httpx.Client) -> None:
    (target,) = own.get("/sd/workers").json()
    assert target["targets"] == ["host-a:9100"]
    assert set(target["labels"]) == {"worker", "model", "backend", "host"}
    assert http.get("/sd/workers").json() == [], "a worker on a unix socket is no target"


def test_the_overview_shows_workers_and_lanes(own: Gateway, own_worker: ScriptedWorker) -> None:
    wait_for(lambda: own.get("/farm").json()["lanes"], 5)  # a broker that takes longer than 0.5 s is left out
    view = own.get("/farm").json()
    assert view["broker"]["up"] and view["broker"]["used_bytes"] > 0
    (model,), (worker,), (lane,) = view["models"], view["workers"], view["lanes"]
    assert model["ready"] and worker["state"] == "ready"
    assert (lane["waiting"], lane["running"], lane["oldest_s"]) == (0, 0, 0)
    assert own.number('farm_workers{state="ready"}') == 1
    assert own.number(f'farm_queue_waiting{{model="{model["name"]}",lane="{lane["lane"]}"}}') == 0


def test_waiting_requests_have_an_age(own: Gateway, own_worker: ScriptedWorker) -> None:
    own_worker.batch_size = 1
    own_worker.go.clear()

    def generate(_: int) -> int:
        with own.http as http:
            return http.post("/generate", json={"inputs": "x", "parameters": {"max_new_tokens": 1}}).status_code

    def lane() -> tuple[int, int, bool]:
        (seen,) = own.get("/farm").json()["lanes"]
        return seen["waiting"], seen["running"], seen["oldest_s"] > 0

    with ThreadPoolExecutor(2) as clients:
        answers = clients.map(generate, range(2))
        wait_for(lambda: lane() == (1, 1, True), 10, lambda: str(lane()))
        own_worker.go.set()
        assert list(answers) == [200, 200]
    wait_for(lambda: lane() == (0, 0, False), 5)


def test_goodput_counts_what_the_farm_could_have_served(own: Gateway, own_worker: ScriptedWorker) -> None:
    with own.http as http:
        assert http.post("/generate", json={"inputs": "x", "parameters": {"max_new_tokens": 3}}).status_code == 200
        assert http.post("/generate", json={"inputs": "x", "parameters": {"temperature": -1}}).status_code == 422
    assert (own.number('farm_slo_requests_total{met="yes"}'), own.number('farm_slo_requests_total{met="no"}')) == (1, 0)
    assert own.number("farm_first_token_seconds_count") == own.number("farm_token_gap_seconds_count") == 1


def test_a_trace_is_in_the_log_of_its_request_only(own: Gateway) -> None:
    body = {"inputs": "x", "parameters": {"max_new_tokens": 1}}
    with own.http as http:
        http.post("/generate", json=body, headers={"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"})
        wait_for(lambda: ended(own).get("trace_id") == TRACE_ID and ended(own)["parent_id"] == PARENT_ID, 5, own.process.text)
        http.post("/generate", json=body)
        wait_for(lambda: ended(own).get("trace_id", "") == "", 5, own.process.text)


@pytest.mark.parametrize(
    "header",
    ["", "x", f"00-{'0' * 32}-{PARENT_ID}-01", f"ff-{TRACE_ID}-{PARENT_ID}-01", f"00-{TRACE_ID.upper()}-{PARENT_ID}-01"],
)
def test_a_malformed_trace_counts_as_none(header: str) -> None:
    enter(f"00-{TRACE_ID}-{PARENT_ID}-01".encode())
    assert TRACE.get() == {"trace_id": TRACE_ID, "parent_id": PARENT_ID}
    enter(header.encode())
    assert TRACE.get() == {}
