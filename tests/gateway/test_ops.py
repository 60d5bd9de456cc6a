"""Health, info, models, metrics, request ids and what no route takes (TGI reference §1.0, §1.4–§1.6, §5; design §9)."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest
from packaging.version import Version

from tests.farm import wait_for
from tests.gateway.conftest import Gateway, start_gateway
from tests.gateway.scripted import LENGTH, MAX_INPUT, Said, ScriptedWorker

GETS = ("/", "/health", "/ping", "/health/live", "/health/accept", "/info", "/v1/models", "/metrics")


def test_health_is_200_with_nothing(http: httpx.Client) -> None:
    for path in ("/", "/health", "/ping", "/health/live", "/health/accept"):
        response = http.get(path)
        assert (response.status_code, response.content) == (200, b"")


@pytest.mark.parametrize("path", GETS)
def test_head_is_get_without_a_body(http: httpx.Client, path: str) -> None:
    response = http.head(path)
    assert (response.status_code, response.content) == (200, b"")


def test_a_farm_without_workers_says_so_and_refuses_softly(redis_url: str, tmp_path: Path) -> None:
    gateway = start_gateway(redis_url, "nobody", tmp_path / "log")
    try:
        with gateway.http as http:
            for path in ("/", "/health", "/ping"):
                response = http.get(path)
                assert (response.status_code, response.json()) == (503, {"error": "unhealthy", "error_type": "healthcheck"})
            assert http.get("/health/live").status_code == http.get("/health/accept").status_code == 200
            for path in ("/generate", "/generate_stream", "/", "/tokenize"):
                response = http.post(path, json={"inputs": "x"})
                assert (response.status_code, response.json()["error_type"]) == (429, "overloaded")
                assert 1 <= int(response.headers["retry-after"]) <= 60
            assert http.get("/info").status_code == http.get("/metrics").status_code == http.get("/v1/models").status_code == 200
            worker = ScriptedWorker(redis_url, "nobody", id="late").start()
            wait_for(lambda: http.get("/health").status_code == 200)
            assert http.post("/generate", json={"inputs": "x", "parameters": {"max_new_tokens": 1}}).status_code == 200
            worker.stop()
            wait_for(lambda: http.get("/health").status_code == 503)
    finally:
        gateway.process.end()


def test_a_gateway_without_redis_lives_and_refuses_softly(tmp_path: Path) -> None:
    gateway = start_gateway("redis://127.0.0.1:1/0", "farm", tmp_path / "log")
    try:
        assert [gateway.get(path).status_code for path in ("/health", "/health/live", "/health/accept")] == [503, 200, 200]
        with gateway.http as http:
            assert http.post("/generate", json={"inputs": "x"}).status_code == 429
    finally:
        assert gateway.process.end() == 0


def test_info(http: httpx.Client, strict: Gateway) -> None:
    response = http.get("/info")
    info = response.json()
    assert list(info) == [
        "model_id", "model_sha", "model_pipeline_tag", "max_concurrent_requests", "max_best_of", "max_stop_sequences", "max_input_tokens",
        "max_total_tokens", "validation_workers", "max_client_batch_size", "router", "version", "sha", "docker_label",
    ]  # fmt: skip
    assert (info["model_id"], info["model_sha"], info["model_pipeline_tag"]) == ("org/tiny", "abc123", "text-generation")
    assert (info["max_input_tokens"], info["max_total_tokens"], info["max_concurrent_requests"]) == (MAX_INPUT, LENGTH, 128)
    assert Version(info["version"]) >= Version("2.0.1")
    assert strict.get("/info").json()["max_concurrent_requests"] == 1


def test_models(http: httpx.Client) -> None:
    expected = {"object": "list", "data": [{"id": "org/tiny", "object": "model", "created": 0, "owned_by": "org/tiny"}]}
    assert http.get("/v1/models").json() == expected


@pytest.mark.parametrize(("method", "path"), [("GET", "/nowhere"), ("POST", "/generate/"), ("POST", "/health/live/x"), ("GET", "/docs/x")])
def test_unknown_paths(http: httpx.Client, method: str, path: str) -> None:
    response = http.request(method, path)
    assert (response.status_code, response.json()) == (404, {"error": "Not Found", "error_type": "not_found"})


def test_wrong_methods_name_the_right_ones(http: httpx.Client) -> None:
    response = http.get("/generate")
    assert (response.status_code, response.json()["error_type"], response.headers["allow"]) == (405, "method_not_allowed", "POST")
    assert set(http.delete("/").headers["allow"].split(", ")) == {"GET", "HEAD", "POST"}


def test_every_answer_has_a_request_id(gateway: Gateway, http: httpx.Client) -> None:
    body = {"inputs": "x", "parameters": {"max_new_tokens": 1}}
    given = {"x-request-id": "my-id/7"}
    answers = [
        http.post("/generate", json=body, headers=given),
        http.post("/generate_stream", json=body, headers=given),
        http.post("/generate", json={"inputs": ""}, headers=given),
        http.post("/generate", content=b"{", headers=given),
        http.get("/health", headers=given),
        http.get("/nowhere", headers=given),
        http.delete("/", headers=given),
        http.options("/generate", headers={**given, "origin": "https://a.example", "access-control-request-method": "POST"}),
    ]
    assert [answer.headers.get_list("x-request-id") for answer in answers] == [["my-id/7"]] * len(answers)
    made = {http.get("/health").headers["x-request-id"] for _ in range(3)}
    assert len(made) == 3
    assert "x_request_id=my-id/7" in gateway.process.text()


def test_browsers_may_send_their_key(http: httpx.Client) -> None:
    asked = {
        "origin": "https://a.example",
        "access-control-request-method": "POST",
        "access-control-request-headers": "authorization,content-type",
    }
    response = http.options("/generate", headers=asked)
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == "*"
    assert "authorization" in response.headers["access-control-allow-headers"].lower()
    assert http.get("/health", headers={"origin": "https://a.example"}).headers["access-control-allow-origin"] == "*"


def test_one_log_line_for_a_request(gateway: Gateway, http: httpx.Client, worker: ScriptedWorker) -> None:
    body = {"inputs": "x", "parameters": {"max_new_tokens": 2, "do_sample": True, "seed": 5}}
    http.post("/generate", json=body, headers={"x-request-id": "one-line"})
    wait_for(lambda: "one-line" in gateway.process.text())
    (line,) = [line for line in gateway.process.text().splitlines() if "one-line" in line]
    for field in (
        r"INFO .*Success", rf"rid={worker.seen[0].rid.hex()}", r"compute_type=cpu", r"total_time=\d+\.\d+ms", r"validation_time=\d+\.\d+ms",
        r"queue_time=\d+\.\d+ms", r"inference_time=\d+\.\d+ms", r"time_per_token=\d+\.\d+ms", r"seed=5", r"tokens=2", r"worker=scripted-1",
        r"takeovers=0",
    ):  # fmt: skip
        assert re.search(field, line), field


def test_metrics_count_what_happened(gateway: Gateway, http: httpx.Client, worker: ScriptedWorker) -> None:
    names = (
        "tgi_request_count", "tgi_request_success", 'tgi_request_failure{err="validation"}', "tgi_request_duration_count",
        "tgi_request_queue_duration_count", "tgi_request_generated_tokens_sum", "tgi_request_input_length_sum",
        "tgi_request_max_new_tokens_sum", "tgi_request_skipped_tokens_count",
    )  # fmt: skip
    before = [gateway.number(name) for name in names]
    http.post("/generate", json={"inputs": "x", "parameters": {"max_new_tokens": 3}})
    http.post("/generate_stream", json={"inputs": "x", "parameters": {"max_new_tokens": 4}}).read()
    http.post("/generate", json={"inputs": ""})
    http.post("/generate", content=b"{")
    http.post("/tokenize", json={"inputs": "x"})
    wait_for(lambda: gateway.number("tgi_request_success") == before[1] + 2)
    assert [gateway.number(name) - was for name, was in zip(names, before, strict=True)] == [3, 2, 1, 2, 2, 7, 4, 7, 2]
    assert http.get("/metrics").headers["content-type"] == "text/plain; charset=utf-8"


def test_buckets_are_those_of_the_served_model(http: httpx.Client) -> None:
    edges = re.findall(r'^tgi_request_input_length_bucket{le="([\d.]+)"}', http.get("/metrics").text, re.MULTILINE)
    assert [float(edge) for edge in edges] == pytest.approx([i * MAX_INPUT / 100 for i in range(1, 101)])


def test_the_queue_is_seen_and_empty_again(gateway: Gateway, http: httpx.Client, worker: ScriptedWorker) -> None:
    worker.go.clear()
    with http.stream("POST", "/generate_stream", json={"inputs": "x", "parameters": {"max_new_tokens": 2}}) as response:
        assert gateway.number("tgi_queue_size") == 1
        worker.go.set()
        response.read()
    wait_for(lambda: gateway.number("tgi_queue_size") == 0)


def test_labels_are_bounded(gateway: Gateway, http: httpx.Client, worker: ScriptedWorker) -> None:
    """Whatever clients send, no series is added."""
    worker.script = lambda _: [Said("x", reason="length")]
    n_before = len(http.get("/metrics").text.splitlines())
    for n in range(50):
        body = {"inputs": f"x{n}", "model": f"model-{n}", "parameters": {"seed": n}}
        http.post("/generate", json=body, headers={"x-request-id": f"id-{n}", "authorization": f"Bearer {n}"})
        http.get(f"/nowhere/{n}")
    assert len(http.get("/metrics").text.splitlines()) == n_before
