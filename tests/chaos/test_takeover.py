"""Deaths, pauses and losses in mid-stream: every stream stays consistent and complete (design §9).

On the oracle they are part of `make test`, on a device double of `make chaos`.
"""

from __future__ import annotations

import asyncio
import signal

import pytest
from redis import Redis

from common.messages import decode_events
from tests.chaos.checks import assert_whole, keys_left, soon, tokens_served
from tests.chaos.streams import BACKEND, streams
from tests.farm import Farm, wait_for

pytestmark = [pytest.mark.anyio, *([] if BACKEND == "oracle" else [pytest.mark.chaos])]
N_TOKENS = 100


async def test_an_engine_process_is_killed_in_mid_stream(farm: Farm) -> None:
    url = farm.gateway()
    workers = [farm.worker(), farm.worker()]
    farm.wait_ready(2)
    running = asyncio.create_task(streams(url, range(8), N_TOKENS))
    before = tokens_served(farm)
    await soon(lambda: tokens_served(farm) > before + 30)
    workers[0].signal_engine(signal.SIGKILL)
    shown = await running
    assert_whole(farm, shown)
    assert "Died worker=" in workers[0].text()
    assert max(one.longest_pause_s for one in shown) < 5


async def test_owner_after_owner_is_killed(farm: Farm) -> None:
    """Each one got further than the last: the journal of each must hold all that came before."""
    url = farm.gateway()
    for _ in range(3):
        farm.worker()
    farm.wait_ready(3)
    running = asyncio.create_task(streams(url, range(2), 300))
    redis = Redis.from_url(farm.server.url)
    await soon(lambda: len(redis.keys("*req:*")) == 2)
    requests = redis.keys("*req:*")
    journal = b""
    for _ in range(3):
        await soon(lambda: redis.hget(requests[0], "journal") not in (b"", journal))  # noqa: B023
        journal = redis.hget(requests[0], "journal") or b""
        (worker,) = (worker for worker in farm.workers if worker.ids()[-1].encode() == journal)
        worker.signal_engine(signal.SIGKILL)
    assert_whole(farm, await running)
    assert farm.metric("farm_takeovers_total") >= 3


async def test_a_long_stream_is_taken_over_whole(farm: Farm) -> None:
    """Its first tokens are hundreds of steps back in the journal, and the owner after next needs them as well."""
    url = farm.gateway()
    workers = [farm.worker(), farm.worker()]
    farm.wait_ready(2)
    running = asyncio.create_task(streams(url, [1], 450))
    redis = Redis.from_url(farm.server.url)
    for n_steps in (250, 350):
        await soon(lambda n=n_steps: _n_shown(redis) > n)  # type: ignore[misc]
        owner = next(redis.hget(key, "journal") for key in redis.keys("*req:*"))
        next(worker for worker in workers if worker.ids()[-1].encode() == owner).signal_engine(signal.SIGKILL)
    assert_whole(farm, await running)


def _n_shown(redis: Redis) -> int:
    """How far the one running request is, by the journal that holds it."""
    for key in redis.keys("*req:*"):
        journal, first = redis.hmget(key, "journal", "journal_from")
        if journal:
            cell = key.decode().partition("req:")[0]
            positions = [event.pos for _, fields in redis.xrange(f"{cell}journal:{journal.decode()}", f"{int(first)}-0")
                         for event in decode_events(fields[b"events"])]  # fmt: skip
            return max(positions, default=0)
    return 0


async def test_two_deaths_in_a_row_before_the_first_flush(farm: Farm) -> None:
    """The second owner dies in its prefill: the third must follow the first one's journal, not the second one's name."""
    url = farm.gateway()
    farm.worker(FARM_ORACLE_STEP_MS="20")
    farm.wait_ready(1)
    running = asyncio.create_task(streams(url, range(4), 450))
    before = tokens_served(farm)
    await soon(lambda: tokens_served(farm) > before + 20)
    second = farm.worker(FARM_ORACLE_PREFILL_MS="30000")
    wait_for(lambda: len(farm.worker_ids()) == 2, 30, farm.logs)
    farm.workers[0].popen.send_signal(signal.SIGSTOP)  # no restart: the only taker is the slow one
    farm.workers[0].signal_engine(signal.SIGKILL)
    farm.workers[0].popen.send_signal(signal.SIGCONT)
    redis = Redis.from_url(farm.server.url)
    owner = second.ids()[0].encode()
    requests = list(redis.keys("*req:*"))
    await soon(lambda: any(redis.hget(key, "owner") == owner for key in requests))
    second.popen.kill()
    second.popen.wait()
    farm.worker()
    assert_whole(farm, await running)


async def test_a_worker_is_paused_beyond_its_lease_and_comes_back(farm: Farm) -> None:
    """Both are full, so it has nothing to pull: what it says first when it is back is the step that it was paused in."""
    url = farm.gateway()
    zombie = farm.worker(MAX_BATCH_SIZE="2")
    farm.worker()
    farm.wait_ready(2)
    running = asyncio.create_task(streams(url, range(2 + int(farm.env["MAX_BATCH_SIZE"])), N_TOKENS))
    redis = Redis.from_url(farm.server.url)
    await soon(lambda: [redis.hget(key, "journal") for key in redis.keys("*req:*")].count(zombie.ids()[0].encode()) == 2)
    engine = zombie.engine_pid()
    zombie.popen.send_signal(signal.SIGSTOP)
    zombie.signal_engine(signal.SIGSTOP)
    (workers_key,) = redis.keys("*}workers")
    await soon(lambda: redis.zscore(workers_key, zombie.ids()[0]) is None)
    zombie.signal_engine(signal.SIGCONT)
    zombie.popen.send_signal(signal.SIGCONT)
    assert_whole(farm, await running)
    wait_for(lambda: "Fenced worker=" in zombie.text(), 15, farm.logs)
    await soon(lambda: len(zombie.ids()) == 2)
    assert zombie.engine_pid() == engine, "a fenced worker goes on under a new id without a restart"


async def test_the_gateways_subscription_is_cut_again_and_again(farm: Farm) -> None:
    url = farm.gateway()
    farm.worker()
    farm.wait_ready(1)
    running = asyncio.create_task(streams(url, range(8), N_TOKENS))
    redis = Redis.from_url(farm.server.url)
    n_cut = 0
    while not running.done():
        n_cut += int(redis.execute_command("CLIENT", "KILL", "TYPE", "pubsub"))
        await asyncio.sleep(0.15)
    assert n_cut >= 3
    assert_whole(farm, await running)


async def test_nothing_remains_of_finished_requests(farm: Farm) -> None:
    url = farm.gateway()
    farm.worker()
    farm.wait_ready(1)
    assert_whole(farm, await streams(url, range(20), 10))
    redis = Redis.from_url(farm.server.url)
    await soon(lambda: not redis.keys("*}lane*"))
    assert keys_left(farm) <= {"boot", "bell", "workers", "worker", "journal", "gateways", "req", "card", "models"} | {
        key.decode() for key in redis.keys("farm-*") if b"}" not in key
    } | {farm.env["FARM"]}
    ttls = [redis.ttl(key) for key in redis.keys("*req:*")]
    assert ttls
    assert all(0 < ttl <= 60 for ttl in ttls)
