"""Clients that leave: before the first byte, in mid-stream, while they wait (design §8; cases B24, B38)."""

from __future__ import annotations

import json
import socket
import struct
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import httpx
import pytest

from tests.farm import wait_for
from tests.gateway.conftest import Gateway
from tests.gateway.scripted import ScriptedWorker

ENDLESS = {"inputs": "x", "parameters": {"max_new_tokens": 100}}


def connect(gateway: Gateway, path: str, key: str = "") -> socket.socket:
    """A client that has sent its request and reads nothing yet."""
    body = json.dumps(ENDLESS).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\nAuthorization: {key}\r\n\r\n"
    )
    client = socket.create_connection(("127.0.0.1", gateway.port), timeout=10)
    client.sendall(head.encode() + body)
    return client


def reset(client: socket.socket) -> None:
    """Leaves with RST, as a killed client does."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


@pytest.mark.parametrize("path", ["/generate", "/generate_stream", "/"])
@pytest.mark.parametrize("how", [reset, socket.socket.close])
def test_a_running_request_is_cancelled(gateway: Gateway, worker: ScriptedWorker, path: str, how: object) -> None:
    dropped, cancelled = gateway.number('tgi_request_failure{err="dropped"}'), gateway.number("farm_cancelled_total")
    worker.go.clear()
    client = connect(gateway, path)
    wait_for(lambda: worker.seen)
    how(client)  # type: ignore[operator]
    wait_for(lambda: worker.seen[0].rid in worker.cancelled)
    wait_for(lambda: gateway.number('tgi_request_failure{err="dropped"}') == dropped + 1)
    assert gateway.number("farm_cancelled_total") == cancelled + 1
    assert worker.running() == 0


def test_a_stream_left_in_the_middle_is_cancelled(gateway: Gateway, worker: ScriptedWorker) -> None:
    worker.n_free = 3
    worker.go.clear()
    with closing(connect(gateway, "/generate_stream")) as client:
        shown = b""
        while shown.count(b"data: ") < 3:
            shown += client.recv(4096)
        reset(client)
    wait_for(lambda: worker.seen[0].rid in worker.cancelled)


def test_a_queued_request_is_never_started(gateway: Gateway, http: httpx.Client, worker: ScriptedWorker) -> None:
    worker.go.clear()
    running = [connect(gateway, "/generate_stream") for _ in range(worker.batch_size)]
    wait_for(lambda: len(worker.seen) == worker.batch_size)
    cancelled = gateway.number("farm_cancelled_total")
    with closing(connect(gateway, "/generate")) as queued:
        wait_for(lambda: gateway.number("tgi_queue_size") == worker.batch_size + 1)
        reset(queued)
    wait_for(lambda: gateway.number("farm_cancelled_total") == cancelled + 1)
    for client in running:
        reset(client)
    wait_for(lambda: worker.running() == 0)
    worker.go.set()
    assert http.post("/generate", json={"inputs": "y", "parameters": {"max_new_tokens": 1}}).status_code == 200
    assert len(worker.seen) == worker.batch_size + 1


def test_the_permit_comes_back_when_the_client_leaves(strict: Gateway, keyed: httpx.Client, worker: ScriptedWorker) -> None:
    short = {"inputs": "x", "parameters": {"max_new_tokens": 1}}
    for path in ("/generate", "/generate_stream"):
        worker.go.clear()
        n_seen = len(worker.seen)
        client = connect(strict, path, "Bearer Secret-Key")
        wait_for(lambda n_seen=n_seen: len(worker.seen) > n_seen)  # type: ignore[misc]
        assert keyed.post("/generate", json=short).status_code == 429
        reset(client)
        worker.go.set()
        wait_for(lambda: keyed.post("/generate", json=short).status_code == 200)


def test_only_the_surplus_is_refused_and_at_once(strict: Gateway, keyed: httpx.Client, worker: ScriptedWorker) -> None:
    overloaded = strict.number('tgi_request_failure{err="overloaded"}')
    worker.go.clear()

    def ask(_: int) -> int:
        with strict.http as http:
            return http.post("/generate", json=ENDLESS, headers={"authorization": "Bearer Secret-Key"}).status_code

    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(ask, n) for n in range(8)]
        wait_for(lambda: sum(answer.done() for answer in answers) == 7)
        worker.go.set()
    assert sorted(answer.result() for answer in answers) == [200] + [429] * 7
    assert strict.number('tgi_request_failure{err="overloaded"}') == overloaded + 7


def test_many_at_once_all_end(http: httpx.Client, gateway: Gateway) -> None:
    def ask(n: int) -> str:
        with gateway.http as own:
            text = own.post("/generate", json={"inputs": "x", "parameters": {"max_new_tokens": 1 + n % 7}}).json()["generated_text"]
            assert isinstance(text, str)
            return text

    with ThreadPoolExecutor(16) as pool:
        texts = list(pool.map(ask, range(48)))
    assert texts == ["".join(f" {i}" for i in range(1 + n % 7)) for n in range(48)]


def test_a_client_that_leaves_while_it_sends_does_no_harm(gateway: Gateway, http: httpx.Client) -> None:
    client = socket.create_connection(("127.0.0.1", gateway.port), timeout=10)
    client.sendall(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
    reset(client)
    assert http.get("/health").status_code == 200
    assert "Traceback" not in gateway.process.text()
