"""The whole compose file in containers: balancer, two gateways, broker, two workers, arq worker, Prometheus."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from collections.abc import Iterator
from datetime import datetime

import httpx
import pytest

from tests.chaos.streams import PROMPT, client, streams
from tests.compose.load import Client, under_load
from tests.compose.stack import DOCKER, ORACLE, TAG, Stack, Watch, engine
from tests.farm import wait_for
from tests.servers import free_port

pytestmark = pytest.mark.compose

STEP_MS = 30
SERVICES = ("balancer", "gateway", "broker", "jobs", "worker", "prometheus")
BODY = {"inputs": PROMPT, "parameters": {"max_new_tokens": 2}}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    stack = Stack(tmp_path_factory.mktemp("stack"), f"farm{free_port()}", FARM_ORACLE_STEP_MS=str(STEP_MS), FARM_LEASE_S="3", **ORACLE)
    try:
        stack.up(*SERVICES)
        stack.wait_ready(2)
        yield stack
    finally:
        stack.close()


def logged_s(log: str, words: str) -> float:
    """When a line of JSON log with these words was written."""
    line = json.loads(next(line for line in log.splitlines() if words in line))
    return datetime.fromisoformat(line["timestamp"]).timestamp()


def test_a_stream_keeps_its_pace_through_the_balancer(stack: Stack) -> None:
    (shown,) = asyncio.run(streams(stack.url, [1], 100))
    assert not shown.faults(stack.worker_ids())
    gaps_ms = [1000 * (b - a) for a, b in zip(shown.times_s, shown.times_s[1:], strict=False)]
    assert STEP_MS * 0.9 <= statistics.median(gaps_ms) <= STEP_MS * 1.5
    assert sum(gap < STEP_MS / 3 for gap in gaps_ms) <= len(gaps_ms) / 10, "events come in heaps"


def test_what_is_for_operators_stays_inside(stack: Stack) -> None:
    with httpx.Client(base_url=stack.url) as http:
        for path in ("/metrics", "/farm", "/sd/workers", "/farm/", "/%6detrics", "/sd%2Fworkers"):
            answer = http.get(path)
            assert (answer.status_code, answer.json()["error_type"]) == (404, "not_found"), path
        assert http.get("/health").status_code == http.get("/info").status_code == 200
    assert "tgi_request_count" in stack.inside("/metrics")


def test_health_checks_pass(stack: Stack) -> None:
    for service in ("gateway", "broker", "worker"):
        for name in stack.containers(service):
            if DOCKER:
                wait_for(lambda name=name: engine("inspect", "-f", "{{.State.Health.Status}}", name).strip() == "healthy", 30)
            else:
                engine("healthcheck", "run", name)


def test_a_worker_comes_and_goes_under_load(stack: Stack) -> None:
    log = worker = ""

    def come_and_go(watch: Watch) -> None:
        nonlocal log, worker
        stack.set(FARM_WORKERS="3")
        stack.up("worker")
        wait_for(lambda: len(stack.containers("worker")) == 3, 60)
        name = stack.containers("worker")[-1]
        wait_for(lambda: "Connected" in engine("logs", name), 30)
        worker = stack.worker_ids()[-1]
        wait_for(lambda: watch.first(lambda ids, ready: worker in ids), 10)
        engine("stop", "-t", "30", name)
        log = engine("logs", name)
        drained_s = logged_s(log, "Drained")
        wait_for(lambda: watch.first(lambda ids, ready: worker not in ids and ready == 2, after_s=drained_s - 1), 10)
        engine("rm", "-v", name)
        stack.set(FARM_WORKERS="2")

    with Watch(stack.containers("gateway")[0]) as watch:
        shown = under_load(stack.url, range(100, 112), 600, lambda: come_and_go(watch))
    assert [fault for one in shown for fault in one.faults([*stack.worker_ids(), worker])] == []
    connected_s, drained_s = logged_s(log, "Connected"), logged_s(log, "Drained")
    seen_s = watch.first(lambda ids, ready: worker in ids and ready == 3)
    gone_s = watch.first(lambda ids, ready: worker not in ids and ready == 2, after_s=drained_s - 1)
    assert seen_s is not None and seen_s - connected_s <= 2.0
    assert gone_s is not None and gone_s - drained_s <= 2.0
    assert '"ERROR"' not in log


def test_prometheus_finds_all_without_an_edit(stack: Stack) -> None:
    def targets() -> dict[str, int]:
        found: dict[str, int] = {}
        page = httpx.get(f"http://127.0.0.1:{stack.prometheus_port}/api/v1/targets").json()
        for target in page["data"]["activeTargets"]:
            found[target["labels"]["job"]] = found.get(target["labels"]["job"], 0) + (target["health"] == "up")
        return found

    wait_for(lambda: targets() == {"gateways": 2, "workers": 2, "balancer": 1}, 30, lambda: str(targets()))


def test_a_killed_worker_costs_no_stream(stack: Stack) -> None:
    victim = stack.containers("worker")[0]

    def kill() -> None:
        wait_for(lambda: stack.n_active() >= 10, 15)
        engine("kill", victim)

    ids = stack.worker_ids()
    shown = under_load(stack.url, range(200, 216), 200, kill)
    assert [fault for one in shown for fault in one.faults([*ids, *stack.worker_ids()])] == []
    assert max(one.longest_pause_s for one in shown) > 1, "nothing was taken over"
    engine("start", victim)
    stack.wait_ready(2)


def test_a_killed_gateway_costs_only_its_own_plain_streams(stack: Stack) -> None:
    """Resuming clients go on at the other one; 20 s later no row works for the dead one."""
    victim, survivor = stack.containers("gateway")

    async def run() -> tuple[list[Client], list[Client]]:
        async with client() as http:
            plain = [Client(stack.url, seed, 150, resumes=False) for seed in range(300, 306)]
            resuming = [Client(stack.url, seed, 150, resumes=True) for seed in range(310, 316)]
            endless = [asyncio.create_task(Client(stack.url, seed, 900, resumes=False).run(http)) for seed in range(320, 324)]
            running = [asyncio.create_task(one.run(http)) for one in (*plain, *resuming)]
            await asyncio.to_thread(wait_for, lambda: stack.n_active() >= 14, 15)
            await asyncio.to_thread(engine, "kill", victim)
            killed_s = time.monotonic()
            await asyncio.gather(*running)
            for task in endless:
                task.cancel()
            left_s = 20 - (time.monotonic() - killed_s)
            await asyncio.to_thread(wait_for, lambda: stack.n_active() == 0, left_s)
            return plain, resuming

    plain, resuming = asyncio.run(run())
    ids, log = stack.worker_ids(), engine("logs", survivor)
    assert [fault for one in resuming for fault in one.shown.faults(ids)] == []
    assert any(one.n_breaks for one in resuming), "none of them was on the dead gateway"
    failed = [one for one in plain if one.shown.faults(ids)]
    assert 0 < len(failed) < len(plain)
    assert not [one.name for one in failed if one.name in log], "a stream of the surviving gateway failed"
    engine("start", victim)
    stack.wait_ready(2)


def test_while_the_broker_is_away_every_post_gets_429(stack: Stack) -> None:
    """And running streams go on when it is back, although it lost its memory."""
    (broker,) = stack.containers("broker")
    answers: list[httpx.Response] = []

    async def post(http: httpx.AsyncClient) -> None:
        answers.append(await http.post(f"{stack.url}/generate", json=BODY))

    async def posts() -> None:
        async with client() as http, asyncio.TaskGroup() as group:
            for _ in range(40):
                group.create_task(post(http))
                await asyncio.sleep(0.25)

    def outage() -> None:
        wait_for(lambda: stack.n_active() >= 6, 15)
        engine("stop", "-t", "1", broker)
        asyncio.run(posts())
        engine("start", broker)

    shown = under_load(stack.url, range(400, 408), 300, outage)
    assert {answer.status_code for answer in answers} == {429}
    assert all(1 <= int(answer.headers["retry-after"]) <= 60 for answer in answers)
    assert [fault for one in shown for fault in one.faults(stack.worker_ids())] == []
    wait_for(lambda: httpx.post(f"{stack.url}/generate", json=BODY, timeout=20).status_code == 200, 20)


def test_without_any_gateway_the_balancer_says_429(stack: Stack) -> None:
    gateways = stack.containers("gateway")
    for name in gateways:
        engine("kill", name)

    def answer() -> tuple[int, str | None]:
        response = httpx.post(f"{stack.url}/generate", json=BODY, timeout=20)
        return response.status_code, response.headers.get("retry-after")

    wait_for(lambda: answer() == (429, "2"), 10, lambda: str(answer()))
    for name in gateways:
        engine("start", name)
    stack.wait_ready(2)


def test_the_demo_model_is_made_once_for_two_workers(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The real CPU worker, with the model from the arq worker's volume."""
    settings = {"FARM_GATEWAYS": "1", "MAX_BATCH_SIZE": "2", "MAX_TOTAL_TOKENS": "128", "WORKER_MEMORY": "3g"}
    stack = Stack(tmp_path_factory.mktemp("demo"), f"farm{free_port()}", **settings)
    try:
        stack.up("balancer", "gateway", "broker", "jobs", "worker")
        stack.wait_ready(2, 200)
        assert stack.logs("jobs").count("Started job=convert") == 1
        assert stack.logs("worker").count("is ready in /data/tokenfarm/") == 2
        body = {"inputs": "The capital of France is", "parameters": {"max_new_tokens": 8}}
        assert "Paris" in httpx.post(f"{stack.url}/generate", json=body, timeout=60).json()["generated_text"]
    finally:
        stack.close()


def run(image: str, *arguments: str, **env: str) -> tuple[int, list[str]]:
    """Status and lines of a container that ends by itself."""
    name = f"once{free_port()}"
    given = [word for key, value in env.items() for word in ("-e", f"{key}={value}")]
    engine("run", "-d", "--name", name, *given, f"{image}:{TAG}", *arguments)
    try:
        return int(engine("wait", name, timeout_s=60).split()[-1]), engine("logs", name).splitlines()
    finally:
        engine("rm", "-f", "-v", name)


def test_a_start_that_cannot_be_ends_with_one_line() -> None:
    url = {"REDIS_URL": "redis://worker@nobody:6379/0"}
    code, lines = run("tokenfarm-worker-cpu", MODEL_ID="/no/such/model", **url)
    assert (code, len(lines)) == (3, 1) and "MODEL_ID=/no/such/model: there is no such folder" in lines[0]
    for image, service in (("tokenfarm-gateway", "gateway"), ("tokenfarm-worker-cpu", "worker"), ("tokenfarm-worker-cpu", "jobs")):
        code, lines = run(image, service, FARM_REDIS_PASSWORD_FILE="/run/secrets/none", **url)
        assert (code, len(lines)) == (2, 1) and "FARM_REDIS_PASSWORD_FILE=/run/secrets/none, allowed is a readable" in lines[0]


def test_without_a_broker_all_wait_with_one_line_and_a_taken_port_ends_a_gateway() -> None:
    names = {service: f"alone-{service}-{free_port()}" for service in ("gateway", "worker", "jobs")}
    env = ("-e", "REDIS_URL=redis://127.0.0.1:6379/0", "-e", "FARM_BACKEND=oracle", "-e", "HOSTNAME=127.0.0.1")
    try:
        for service, name in names.items():
            image = "tokenfarm-gateway" if service == "gateway" else "tokenfarm-worker-cpu"
            engine("run", "-d", "--name", name, *env, f"{image}:{TAG}", service)
        wait_for(lambda: all("the broker" in engine("logs", name) for name in names.values()), 30)
        second = engine("run", "--rm", "--network", f"container:{names['gateway']}", *env, f"tokenfarm-gateway:{TAG}", check=False)
        assert second.splitlines() == ["Error: Port 3000 of 127.0.0.1 cannot be used (Address already in use): set PORT"]
        time.sleep(3)  # what would be said once a second is said by now
        for name in names.values():
            assert engine("logs", name).count("the broker") == 1, engine("logs", name)
            assert engine("inspect", "-f", "{{.State.Running}}", name).strip() == "true"
    finally:
        for name in names.values():
            engine("rm", "-f", "-v", "-t", "1", name, check=False)
