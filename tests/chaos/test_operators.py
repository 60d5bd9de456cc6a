"""`tokenfarm request` and `tokenfarm dead` on a live farm."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import httpx
import pytest
from redis import Redis

from tests.chaos.checks import soon
from tests.chaos.streams import streams
from tests.farm import ROOT, Farm
from workers.engines.oracle import DEADLY

pytestmark = [pytest.mark.anyio, pytest.mark.chaos]


def ask(farm: Farm, *words: str) -> subprocess.CompletedProcess[str]:
    env = {"REDIS_URL": farm.server.url, "FARM": farm.env["FARM"], "PATH": "/usr/bin"}
    return subprocess.run([sys.executable, "-m", "common.cli", *words], cwd=ROOT, env=env, capture_output=True, text=True, timeout=20)


async def test_an_operator_sees_a_request_and_what_was_given_up(farm: Farm) -> None:
    url = farm.gateway()
    worker = farm.worker()
    farm.wait_ready()
    running = asyncio.create_task(streams(url, [3], 300))
    redis = Redis.from_url(farm.server.url)
    await soon(lambda: any(redis.hget(key, "journal") for key in redis.keys("*req:*")))
    rid = redis.keys("*req:*")[0].decode().rpartition("req:")[2]
    told = await asyncio.to_thread(ask, farm, "request", rid)
    assert told.returncode == 0, told.stderr
    assert f"owner {worker.ids()[0]}" in told.stdout
    assert "state running" in told.stdout
    assert "pos " in told.stdout
    assert (await asyncio.to_thread(ask, farm, "request", "00" * 16)).returncode == 1
    assert "no request id" in (await asyncio.to_thread(ask, farm, "request", "nonsense")).stderr
    await running
    async with httpx.AsyncClient(timeout=60) as http:
        guilty = await http.post(f"{url}/generate", json={"inputs": f"w11 w{DEADLY}"})
    assert guilty.status_code == 424
    assert "died alone" in (await asyncio.to_thread(ask, farm, "dead")).stdout
