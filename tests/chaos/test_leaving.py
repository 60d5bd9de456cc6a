"""Clients that leave at the worst moments: no worker dies of it, nothing is left behind."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.chaos.conftest import backend
from tests.farm import Farm, wait_for
from tests.servers import Server

pytestmark = pytest.mark.chaos

BODY = {"inputs": "w5", "parameters": {"max_new_tokens": 300}}


def leave_after(url: str, n_events: int) -> None:
    """Reads so many events of a stream and goes."""
    with httpx.Client(trust_env=False, timeout=30) as http, http.stream("POST", f"{url}/generate_stream", json=BODY) as response:
        for n, _ in enumerate(line for line in response.iter_lines() if line.startswith("data:")):
            if n >= n_events:
                return


def serves(url: str) -> bool:
    return httpx.post(f"{url}/generate", json={**BODY, "parameters": {"max_new_tokens": 2}}, trust_env=False, timeout=30).status_code == 200


def test_leaving_in_any_step(tmp_path: Path) -> None:
    """Often the last rows of a batch leave between the plan of a step and its call."""
    server = Server(tmp_path).start()
    with Farm(tmp_path, server, {"MAX_BATCH_SIZE": "4", **backend(tmp_path)}) as farm:
        url = farm.gateway()
        farm.worker()
        farm.wait_ready()
        with ThreadPoolExecutor(3) as pool:
            for left in [pool.submit(leave_after, url, n % 7) for n in range(150)]:
                left.result()
        assert serves(url)
        assert len(farm.worker_ids()) == 1, farm.logs()
    server.stop()


def test_leaving_while_the_worker_is_dead(tmp_path: Path) -> None:
    """The next owner finds a request that is cancelled and has nothing new to say."""
    server = Server(tmp_path).start()
    with Farm(tmp_path, server, {"FARM_ORACLE_STEP_MS": "20", **backend(tmp_path)}) as farm:
        url = farm.gateway()
        worker = farm.worker()
        farm.wait_ready()
        with httpx.Client(trust_env=False, timeout=30) as http, http.stream("POST", f"{url}/generate_stream", json=BODY) as response:
            next(response.iter_lines())
            worker.signal_engine(signal.SIGKILL)
        wait_for(lambda: len(worker.ids()) == 2, 30, farm.logs)
        wait_for(lambda: serves(url), 30, farm.logs)
        assert serves(url)
        assert len(worker.ids()) == 2, farm.logs()
    server.stop()
