"""The gateway process: what it imports, how it listens, how it ends (design §8, §9)."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from common import metrics
from tests.farm import ROOT, Process, healthy, wait_for
from tests.gateway.conftest import Gateway, sse, start_gateway
from tests.gateway.scripted import ScriptedWorker

SLOW = {"inputs": "x", "parameters": {"max_new_tokens": 3}}


@pytest.fixture
def own(redis_url: str, worker: ScriptedWorker, tmp_path: Path) -> Iterator[Gateway]:
    """A gateway that may be ended."""
    gateway = start_gateway(redis_url, "farm", tmp_path / "log", GRACEFUL_TERMINATION_TIMEOUT="20")
    wait_for(lambda: healthy(gateway.port))
    yield gateway
    if gateway.process.popen.poll() is None:
        gateway.process.popen.kill()
        gateway.process.popen.wait(10)


def test_sigterm_lets_streams_end_and_tells_the_balancer(own: Gateway, worker: ScriptedWorker) -> None:
    worker.go.clear()
    with own.http as http, http.stream("POST", "/generate_stream", json=SLOW) as response:
        own.process.popen.send_signal(signal.SIGTERM)
        wait_for(lambda: own.get("/health/accept").status_code == 503)
        assert own.get("/health/live").status_code == 200
        assert own.get("/health/live").headers["connection"] == "close"
        worker.go.set()
        assert len(sse(response)) == 3
    assert own.process.popen.wait(10) == 0


def test_an_answer_in_one_piece_is_finished_too(own: Gateway, worker: ScriptedWorker) -> None:
    worker.go.clear()
    script = f"import httpx; print(httpx.post('http://127.0.0.1:{own.port}/generate', json={SLOW!r}, trust_env=False).status_code)"
    client = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    wait_for(lambda: worker.seen)
    own.process.popen.send_signal(signal.SIGTERM)
    wait_for(lambda: own.get("/health/accept").status_code == 503)
    worker.go.set()
    assert client.communicate(timeout=20)[0] == b"200\n"
    assert own.process.popen.wait(10) == 0


@pytest.mark.parametrize("signals", [[signal.SIGINT], [signal.SIGTERM, signal.SIGTERM]])
def test_ctrl_c_and_a_second_signal_end_streams_with_one_error(own: Gateway, worker: ScriptedWorker, signals: list[signal.Signals]) -> None:
    worker.go.clear()
    with own.http as http, http.stream("POST", "/generate_stream", json=SLOW) as response:
        wait_for(lambda: worker.seen)
        own.process.popen.send_signal(signals[0])
        if len(signals) > 1:
            wait_for(lambda: own.get("/health/accept").status_code == 503)
            own.process.popen.send_signal(signals[1])
        assert [event["error_type"] for event in sse(response)] == ["incomplete_generation_stream"]
    assert own.process.popen.wait(10) == 0
    assert "Traceback" not in own.process.text()
    wait_for(lambda: worker.cancelled)


def test_an_idle_gateway_ends_at_once(own: Gateway) -> None:
    assert own.process.end(signal.SIGTERM, 10) == 0
    assert "Traceback" not in own.process.text()


def test_the_parents_socket_is_used_and_its_end_ends_the_gateway(redis_url: str, worker: ScriptedWorker, tmp_path: Path) -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    child_end, parent_end = os.pipe()
    port = listener.getsockname()[1]
    env = {
        **os.environ,
        "REDIS_URL": redis_url,
        "FARM": "farm",
        "PORT": "1",
        "FARM_LISTEN_FD": str(listener.fileno()),
        "FARM_PARENT_FD": str(child_end),
    }
    with (tmp_path / "log").open("wb") as log:
        fds = (listener.fileno(), child_end)
        process = subprocess.Popen([sys.executable, "-m", "gateway"], cwd=ROOT, env=env, stdout=log, stderr=log, pass_fds=fds)
    listener.close()
    os.close(child_end)
    try:
        wait_for(lambda: healthy(port), 20)
        os.close(parent_end)
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait(10)


def test_a_taken_port_and_a_wrong_setting_are_one_line(tmp_path: Path, own: Gateway) -> None:
    for number, (env, code, text) in enumerate(
        [({"PORT": str(own.port)}, 1, f"Port {own.port} of 127.0.0.1 cannot be used"), ({"PORT": "many"}, 2, "PORT=many")]
    ):
        process = Process(tmp_path / f"log{number}", "gateway", {"HOSTNAME": "127.0.0.1", "REDIS_URL": "redis://127.0.0.1:1/0", **env})
        assert process.popen.wait(20) == code
        assert text in process.text()
        assert len(process.text().splitlines()) == 1


def test_the_prometheus_port_is_not_bound(redis_url: str, own: Gateway, tmp_path: Path) -> None:
    gateway = start_gateway(redis_url, "farm", tmp_path / "log2", PROMETHEUS_PORT=str(own.port))
    assert gateway.get("/metrics").status_code == 200
    assert gateway.process.end() == 0


def test_it_imports_neither_torch_nor_transformers_nor_a_hub() -> None:
    heavy = {"torch", "transformers", "numpy", "huggingface_hub", "workers"}
    script = "import gateway.__main__, sys; print(*{name.split('.')[0] for name in sys.modules})"
    loaded = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, check=True, text=True).stdout.split()
    assert not heavy & set(loaded)


def test_it_is_small(own: Gateway) -> None:
    with own.http as http:
        assert http.post("/generate", json=SLOW).status_code == 200
    status = Path(f"/proc/{own.process.popen.pid}/status").read_text()
    resident_kib = int(status.split("VmRSS:")[1].split()[0])
    assert resident_kib < 200 * 1024


def test_pages_of_local_workers_are_on_the_gateways_page(redis_url: str, tmp_path: Path) -> None:
    """Over a unix socket as in one-host mode; a worker that does not answer costs little."""
    numbers = metrics.worker()
    numbers.calls["decode"].inc(5)
    page = metrics.exposition(numbers.registry)
    path = tmp_path / "metrics.sock"
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(path))
    server.listen(8)
    served = threading.Event()

    def serve() -> None:
        while not served.is_set():
            try:
                client, _ = server.accept()
            except OSError:
                return
            with client:
                client.recv(4096)
                client.sendall(b"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\n\r\n" + page)

    threading.Thread(target=serve, daemon=True).start()
    here = socket.gethostname()
    workers = [
        ScriptedWorker(redis_url, "pages", id="w-here", host=here, metrics_url=f"unix://{path}").start(),
        ScriptedWorker(redis_url, "pages", id="w-gone", host=here, metrics_url=f"unix://{tmp_path}/gone.sock").start(),
        ScriptedWorker(redis_url, "pages", id="w-far", host="elsewhere", metrics_url="http://192.0.2.1:9/metrics").start(),
    ]
    gateway = start_gateway(redis_url, "pages", tmp_path / "log")
    try:
        series = 'tgi_batch_inference_count{method="decode"}'
        wait_for(lambda: series in gateway.get("/metrics").text)
        assert gateway.number(series) == 5
        assert gateway.get("/metrics").elapsed.total_seconds() < 0.5
    finally:
        served.set()
        server.close()
        for worker in workers:
            worker.stop()
        gateway.process.end()
