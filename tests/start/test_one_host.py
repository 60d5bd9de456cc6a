"""One host from start to end, with real processes on the oracle engine."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from tests.start.farm import Run, page, status_of, tokenfarm, until

PROMPT = b'{"inputs":"canary prompt","parameters":{"max_new_tokens":20}}'
BROKER = r"^\S*(valkey|redis)-server"
SECRETS = {"API_KEY": "canary-key", "HF_TOKEN": "canary-token"}


def port_of(run: Run) -> int:
    return int(run.says("listening on 127.0.0.1:").rpartition(":")[2])


def url_of(run: Run) -> str:
    return run.says("Connected: ").partition("Connected: ")[2].split()[0]


def stop(run: Run, number: signal.Signals = signal.SIGINT) -> float:
    """Sends a signal to the parent; seconds until it has ended with status 0."""
    started_s = time.monotonic()
    run.process.send_signal(number)
    assert run.process.wait(20) == 0, run.text
    return time.monotonic() - started_s


@pytest.fixture(scope="module")
def farm() -> Iterator[Run]:
    run = tokenfarm("up", FARM_BACKEND="oracle", PORT="0", CUDA_GRAPHS="0", **SECRETS)
    try:
        run.says("Connected: http://")
        yield run
    finally:
        run.close()


def test_connected_comes_with_a_request_to_try_that_works(farm: Run) -> None:
    url = url_of(farm)
    assert farm.says("curl -N ").startswith(f"curl -N {url.removeprefix('http://')}/generate_stream ")
    assert status_of(f"{url}/health") == 200
    assert status_of(f"{url}/generate", PROMPT, SECRETS["API_KEY"]) == 200
    assert farm.text.count("Connected: ") == 1


def test_what_has_no_effect_is_said_once(farm: Run) -> None:
    assert farm.text.count("CUDA_GRAPHS has no effect here") == 1


def test_no_log_carries_a_secret_or_a_prompt(farm: Run) -> None:
    url = url_of(farm)
    assert status_of(f"{url}/generate", PROMPT, SECRETS["API_KEY"]) == 200
    assert status_of(f"{url}/generate", PROMPT, "wrong-canary") == 401
    assert "canary" not in farm.text


def test_the_broker_is_private_and_keeps_no_file(farm: Run) -> None:
    (folder,) = farm.broker_folders()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert {path.suffix for path in folder.iterdir()} == {".sock"}
    with redis.Redis.from_url(f"unix://{folder}/broker.sock", decode_responses=True) as client:
        names = ("port", "save", "appendonly", "maxmemory-policy")
        assert [client.config_get(name)[name] for name in names] == ["0", "", "no", "noeviction"]


def test_a_dead_gateway_comes_back_on_the_same_port(farm: Run) -> None:
    url = url_of(farm)
    old = farm.crash(" -m gateway ")
    assert status_of(f"{url}/health/live") == 200, "a connection made meanwhile waits"
    assert farm.pid_of(" -m gateway ") != old
    assert "gateway ended with status -9" in farm.text


def test_a_dead_broker_comes_back_and_the_farm_with_it(farm: Run) -> None:
    url = url_of(farm)
    farm.crash(BROKER)
    farm.says("broker ended with status -9")
    until(lambda: status_of(f"{url}/generate", PROMPT, SECRETS["API_KEY"]) == 200, "serving again")


@pytest.fixture
def fresh_farm() -> Iterator[Run]:
    run = tokenfarm("up", FARM_BACKEND="oracle", PORT="0", WORKERS="2", FARM_ORACLE_STEP_MS="50")
    try:
        run.says("Connected: ")
        yield run
    finally:
        run.close()


def stream(run: Run) -> socket.socket:
    """A stream of 40 tokens, asked for."""
    body = b'{"inputs":"hello","parameters":{"max_new_tokens":40}}'
    connection = socket.create_connection(("127.0.0.1", port_of(run)), timeout=20)
    head = "POST /generate_stream HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n"
    connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    return connection


def first_event(connection: socket.socket) -> bytes:
    """Waits for it; all that was read."""
    text = b""
    while b"data:" not in text:
        text += connection.recv(4096)
    return text


def events(text: bytes) -> list[dict[str, Any]]:
    return [json.loads(line[5:]) for line in text.decode().splitlines() if line.startswith("data:")]


def test_ctrl_c_under_load_leaves_no_process_and_no_file_within_5_s(fresh_farm: Run) -> None:
    with stream(fresh_farm) as connection:
        first_event(connection)
        assert stop(fresh_farm) < 5
        until(lambda: not fresh_farm.processes(), "no process is left", 1)
    assert fresh_farm.broker_folders() == []


def test_sigterm_lets_running_and_waiting_streams_end() -> None:
    run = tokenfarm("up", FARM_BACKEND="oracle", PORT="0", MAX_BATCH_SIZE="1", FARM_ORACLE_STEP_MS="50")
    try:
        url = url_of(run)
        with stream(run) as running:
            head = first_event(running)
            with stream(run) as waiting:
                until(lambda: "\ntgi_queue_size 1" in page(f"{url}/metrics"), "the second request waits")
                run.process.send_signal(signal.SIGTERM)
                texts = [start + b"".join(iter(lambda c=one: c.recv(4096), b"")) for start, one in ((head, running), (b"", waiting))]
        assert [len(events(text)) for text in texts] == [40, 40]
        assert all(events(text)[-1]["generated_text"] for text in texts)
        assert run.process.wait(20) == 0
        assert run.broker_folders() == []
    finally:
        run.close()


def test_a_second_signal_ends_everything_at_once(fresh_farm: Run) -> None:
    with stream(fresh_farm) as connection:
        first_event(connection)
        fresh_farm.process.send_signal(signal.SIGTERM)
        fresh_farm.says("draining")
        assert stop(fresh_farm) < 1
    until(lambda: not fresh_farm.processes(), "no process is left", 2)


def test_a_killed_parent_leaves_no_process_and_no_file(fresh_farm: Run) -> None:
    fresh_farm.process.kill()
    until(lambda: not fresh_farm.processes(), "no process is left", 10)
    assert fresh_farm.broker_folders() == []


def test_ctrl_c_before_it_is_ready() -> None:
    run = tokenfarm("up", FARM_BACKEND="oracle", PORT="0")
    try:
        until(lambda: run.pid_of(" -m workers "), "the worker is started")
        assert stop(run) < 5
        assert "Traceback" not in run.text
        until(lambda: not run.processes(), "no process is left", 1)
        assert run.broker_folders() == []
    finally:
        run.close()


def test_a_taken_port_is_one_line_and_status_2() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        run = tokenfarm("up", PORT=str(port))
        try:
            assert run.process.wait(10) == 2
            assert run.text.startswith(f"Port {port} of 127.0.0.1 cannot be used (")
            assert len(run.text.splitlines()) == 1
            assert run.broker_folders() == []
        finally:
            run.close()


def test_what_a_restart_cannot_cure_ends_the_farm_with_its_status() -> None:
    run = tokenfarm("up", FARM_BACKEND="abacus", PORT="0")
    try:
        assert run.process.wait(30) == 2, run.text
        assert "FARM_BACKEND=abacus is not supported" in run.text
        until(lambda: not run.processes(), "no process is left", 1)
        assert run.broker_folders() == []
    finally:
        run.close()


def test_a_hostname_that_is_no_address_is_ignored() -> None:
    run = tokenfarm("up", FARM_BACKEND="oracle", PORT="0", WORKERS="0", HOSTNAME="3f2a9c0d")
    try:
        assert port_of(run)
        assert "HOSTNAME=3f2a9c0d is not an IP address and is ignored" in run.text
    finally:
        run.close()
