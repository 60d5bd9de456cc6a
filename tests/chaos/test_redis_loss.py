"""Redis restarted, wiped, unreachable, full, or replaced by a replica that missed something (design §9)."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import httpx
import pytest
from redis import Redis

from tests.chaos.checks import assert_whole, soon, tokens_served
from tests.chaos.conftest import salted
from tests.chaos.streams import streams
from tests.farm import Farm, wait_for
from tests.proxy import Proxy
from tests.servers import Server

pytestmark = [pytest.mark.anyio, pytest.mark.chaos]
N_TOKENS = 150


async def started(farm: Farm, n_streams: int = 6, n_tokens: int = N_TOKENS) -> asyncio.Task[list]:  # type: ignore[type-arg]
    url = farm.gateway()
    farm.worker()
    farm.worker()
    farm.wait_ready(2)
    before = tokens_served(farm)
    running = asyncio.create_task(streams(url, range(n_streams), n_tokens))
    await soon(lambda: tokens_served(farm) > before + 40)
    return running


async def test_redis_forgets_everything(farm: Farm) -> None:
    running = await started(farm)
    Redis.from_url(farm.server.url).flushall()
    assert_whole(farm, await running, mended=True)
    assert farm.metric("farm_resubmitted_total") >= 1
    wait_for(lambda: len(farm.worker_ids()) >= 4, 20, farm.logs)


async def test_redis_is_killed_without_persistence_and_comes_back(farm: Farm) -> None:
    running = await started(farm)
    farm.server.kill()
    await asyncio.sleep(1)
    farm.server.start()
    assert_whole(farm, await running, mended=True)


async def test_redis_restarts_with_its_append_only_file(tmp_path: Path) -> None:
    server = Server(tmp_path, options=("--appendonly", "yes", "--appendfsync", "always")).start()
    try:
        with Farm(tmp_path, server, salted(tmp_path)) as farm:
            running = await started(farm)
            server.stop()
            await asyncio.sleep(0.5)
            server.start()
            assert_whole(farm, await running)
    finally:
        server.stop()


async def test_an_outage_longer_than_the_lease_fails_nobody_over(farm: Farm) -> None:
    running = await started(farm)
    ids = set(farm.worker_ids())
    farm.server.pause()
    await asyncio.sleep(3.5)  # the lease is 1 s
    farm.server.resume()
    assert_whole(farm, await running)
    assert set(farm.worker_ids()) == ids
    assert farm.metric("farm_takeovers_total") == 0
    redis = Redis.from_url(farm.server.url)
    assert {redis.hget(key, "crashes") for key in redis.keys("*req:*")} <= {b"0"}


async def test_new_work_during_an_outage_is_told_to_come_back(farm: Farm) -> None:
    running = await started(farm, n_tokens=300)
    farm.server.pause()
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{farm.ports[0]}", timeout=15) as http:
            deadline_s = time.monotonic() + 12
            while (await http.get("/health")).status_code != 503:
                assert time.monotonic() < deadline_s
                await asyncio.sleep(0.1)
            started_s = time.monotonic()
            refused = await http.post("/generate", json={"inputs": "w1"})
            assert (refused.status_code, refused.json()["error_type"]) == (429, "overloaded")
            assert 1 <= int(refused.headers["retry-after"]) <= 60
            assert time.monotonic() - started_s < 1
            assert (await http.get("/health/live")).status_code == 200
            assert (await http.get("/health/accept")).status_code == 200
    finally:
        farm.server.resume()
    assert_whole(farm, await running)


async def test_a_full_redis_lets_finish_what_runs(farm: Farm) -> None:
    running = await started(farm, n_tokens=300)
    redis = Redis.from_url(farm.server.url)
    redis.config_set("maxmemory", redis.info("memory")["used_memory"])
    async with httpx.AsyncClient(timeout=15) as http:
        refused = await http.post(f"http://127.0.0.1:{farm.ports[0]}/generate", json={"inputs": "w1"})
        assert (refused.status_code, refused.json()["error_type"]) == (429, "overloaded")
        assert_whole(farm, await running)
        redis.config_set("maxmemory", 0)
        deadline_s = time.monotonic() + 10
        while (await http.post(f"http://127.0.0.1:{farm.ports[0]}/generate", json={"inputs": "w1"})).status_code != 200:
            assert time.monotonic() < deadline_s
            await asyncio.sleep(0.2)


async def test_a_replica_that_missed_the_last_second_takes_over(tmp_path: Path) -> None:
    """The journal is suddenly shorter than what was shown: workers write it again, gateways keep what clients saw."""
    primary = Server(tmp_path).start()
    replica = Server(tmp_path, options=("--replicaof", "127.0.0.1", str(primary.port))).start()
    proxy = Proxy(primary.port)
    try:
        with Farm(tmp_path, primary, {**salted(tmp_path), "REDIS_URL": f"redis://127.0.0.1:{proxy.port}"}) as farm:
            running = await started(farm, n_tokens=400)
            copy = Redis.from_url(replica.url)
            await soon(lambda: copy.info("replication")["master_link_status"] == "up" and copy.keys("*req:*"))
            copy.replicaof("NO", "ONE")
            await asyncio.sleep(1)
            primary.kill()
            proxy.cut(replica.port)
            await asyncio.sleep(0.3)
            farm.workers[0].signal_engine(9)
            assert_whole(farm, await running, mended=True)
    finally:
        proxy.close()
        replica.stop()
        primary.stop()


async def test_a_paused_network_costs_nothing_but_time(tmp_path: Path, server: Server) -> None:
    proxy = Proxy(server.port)
    try:
        with Farm(tmp_path, server, {**salted(tmp_path), "REDIS_URL": f"redis://127.0.0.1:{proxy.port}"}) as farm:
            running = await started(farm, n_tokens=300)
            for _ in range(2):
                proxy.pause()
                await asyncio.sleep(2)
                proxy.resume()
                await asyncio.sleep(0.5)
            assert_whole(farm, await running)
    finally:
        proxy.close()


async def test_a_gateway_cut_by_the_output_buffer_limit_catches_up(farm: Farm) -> None:
    redis = Redis.from_url(farm.server.url)
    redis.config_set("client-output-buffer-limit", "pubsub 20000 0 0")
    running = await started(farm, n_tokens=300)
    gateway = farm.gateways[0].popen
    gateway.send_signal(signal.SIGSTOP)
    await asyncio.sleep(2)
    gateway.send_signal(signal.SIGCONT)
    assert_whole(farm, await running)
