"""The arq worker and those who wait for it: real processes, a real server, a model made here."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest
import redis

from common.jobs import LEASE_MS
from tests.farm import Process, wait_for
from tests.servers import Server
from workers.jobs.models import job_for


@pytest.fixture
def env(server: Server, tmp_path: Path) -> dict[str, str]:
    return {"FARM_JOBS_URL": f"redis://127.0.0.1:{server.port}/1", "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "data")}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"")
    return folder


def start(tmp_path: Path, name: str, env: dict[str, str]) -> Process:
    return Process(tmp_path / f"{name}.log", "workers.jobs", env)


def ask(env: dict[str, str], model_id: str, job: str = "prefetch") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "workers.jobs", job], env={**os.environ, **env, "MODEL_ID": model_id}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def said(process: subprocess.Popen[str]) -> str:
    return process.communicate(timeout=30)[0]


@pytest.fixture
def worker(tmp_path: Path, env: dict[str, str]) -> Iterator[Process]:
    process = start(tmp_path, "jobs", env)
    yield process
    process.end(signal.SIGKILL)
    os.close(process.parent_end)


def test_many_who_ask_at_once_get_one_job(worker: Process, env: dict[str, str], model: Path) -> None:
    waiting = [ask(env, str(model)) for _ in range(3)]
    for process in waiting:
        assert f"is ready in {model}" in said(process)
        assert process.returncode == 0
    assert worker.text().count("Started job=prefetch") == 1


def test_a_wrong_path_is_one_line_and_the_status_of_a_worker_that_cannot_start(worker: Process, env: dict[str, str]) -> None:
    process = ask(env, "/no/such/model")
    waiting, error = said(process).splitlines()
    assert "Waiting for the arq worker to make /no/such/model ready" in waiting
    assert error == "MODEL_ID=/no/such/model: there is no such folder or file"
    assert process.returncode == 3


def test_only_gguf_files_are_converted(worker: Process, env: dict[str, str], model: Path) -> None:
    process = ask(env, str(model), "convert")
    assert said(process).splitlines()[1:] == [f"MODEL_ID={model} is no .gguf file"]
    assert (job_for("a/b.gguf"), job_for("SmolLM2-135M-Instruct"), job_for("org/name")) == ("convert", "convert", "prefetch")


def test_who_asks_waits_for_a_worker_and_a_broker(server: Server, tmp_path: Path, env: dict[str, str], model: Path) -> None:
    server.stop()
    worker = start(tmp_path, "jobs", env)
    process = ask(env, str(model))
    wait_for(lambda: "waiting for the broker: ConnectionError" in worker.text(), 20)
    server.start()
    output = said(process)
    assert output.count("waiting for the broker") <= 1
    assert "is ready in" in output
    worker.end()
    os.close(worker.parent_end)
    assert worker.text().count("waiting for the broker") == 1
    assert worker.text().splitlines()[-1].endswith("Stopped")


def test_the_job_of_a_killed_worker_runs_elsewhere(worker: Process, tmp_path: Path, env: dict[str, str], server: Server) -> None:
    client = redis.Redis(port=server.port, db=1)
    with socket.create_server(("127.0.0.1", 0)) as silent_hub:
        slow = {**env, "HF_HUB_OFFLINE": "0", "HF_ENDPOINT": f"http://127.0.0.1:{silent_hub.getsockname()[1]}"}
        worker.end(signal.SIGKILL)
        first = start(tmp_path, "first", slow)
        process = ask(slow, "org/name")
        wait_for(lambda: "Started job=prefetch:org/name:" in first.text(), 20, first.text)
        lease = "arq:in-progress:prefetch:org/name:"
        wait_for(lambda: 0 < client.pttl(lease) <= LEASE_MS, 5)
        first.end(signal.SIGKILL)
        os.close(first.parent_end)
        client.delete(lease)  # what its lease would do
        second = start(tmp_path, "second", slow)
        assert "the hub at" in said(process)
        assert process.returncode == 3
        assert "Started job=prefetch:org/name:" in second.text()
        second.end()
        os.close(second.parent_end)


def test_results_are_no_pickles(worker: Process, env: dict[str, str], server: Server, model: Path) -> None:
    assert "is ready" in said(ask(env, str(model)))
    client = redis.Redis(port=server.port, db=1)
    (result,) = client.keys("arq:result:*")
    assert msgpack.unpackb(client.get(result))["r"] == [str(model), "", 0]
    assert redis.Redis(port=server.port, db=0).dbsize() == 0
