"""What Redis clients get wrong by default, and ours must not (cases M1, M2, M4, B45, B46)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from redis.asyncio import Redis

from common.broker import UNREACHABLE, Broker, connect
from common.keys import Cell, lane_name
from common.messages import Submit, new_rid
from gateway.subscription import Subscription
from tests.servers import Server

pytestmark = pytest.mark.anyio
CELL = Cell("farm", "model", "fp")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("connections")).start()
    yield server
    server.stop()


@pytest.fixture
async def redis(server: Server) -> AsyncIterator[Redis]:
    redis = connect(server.url)
    await redis.flushall()
    yield redis
    await redis.aclose()


async def calls(redis: Redis, command: str) -> int:
    stats = await redis.info("commandstats")
    return int(stats.get(f"cmdstat_{command}", {"calls": 0})["calls"])


async def test_a_blocking_read_outlives_the_command_timeout_and_is_sent_once(server: Server, redis: Redis) -> None:
    blocking = connect(server.url, blocking=True, timeout_s=0.1)
    before = await calls(redis, "xread")
    assert not await Broker(blocking, CELL).wait_bell("0-0", 600)
    assert await calls(redis, "xread") == before + 1
    waiting = asyncio.create_task(Broker(blocking, CELL).wait_bell("0-0", 5000))
    await asyncio.sleep(0)
    await Broker(redis, CELL).submit(Submit(1, new_rid(), (1,), 1), 64)
    async with asyncio.timeout(1):
        assert await waiting
    await blocking.aclose()


async def test_a_submit_that_timed_out_is_queued_once_when_repeated(server: Server, redis: Redis) -> None:
    hasty = connect(server.url, timeout_s=0.2)
    await hasty.ping()
    submit = Submit(1, new_rid(), (1,), 1)
    await redis.execute_command("CLIENT", "PAUSE", 500, "ALL")
    with pytest.raises(UNREACHABLE):
        await Broker(hasty, CELL).submit(submit, 64)
    assert (await Broker(redis, CELL).submit(submit, 64)).status in ("ok", "known")
    assert (await Broker(redis, CELL).submit(submit, 64)).status == "known"
    assert await redis.xlen(CELL.lane(64)) == 1
    await hasty.aclose()


async def test_work_that_nobody_read_is_never_trimmed(redis: Redis) -> None:
    broker = Broker(redis, CELL)
    rids = [new_rid() for _ in range(500)]
    for rid in rids:
        await broker.submit(Submit(1, rid, (1,), 1), 64)
    await broker.join("w", 10_000)
    pulled = await broker.pull("w", may_expire=False, held=0, minimum=0, maximum=1000, lanes=[lane_name(64)])
    assert [delivery.rid for delivery in pulled.deliveries] == rids


async def test_what_is_published_after_subscribe_returned_arrives(server: Server, redis: Redis) -> None:
    arrived: asyncio.Queue[tuple[bytes, bytes]] = asyncio.Queue()
    restored = []
    subscription = Subscription(redis, lambda *message: arrived.put_nowait(message), lambda: restored.append(1))
    running = asyncio.create_task(subscription.run())
    for n in range(20):
        await subscription.subscribe(f"channel{n}")
        await redis.publish(f"channel{n}", b"at once")
        async with asyncio.timeout(1):
            assert await arrived.get() == (f"channel{n}".encode(), b"at once")
    await redis.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
    n_restored = len(restored)
    async with asyncio.timeout(5):
        while len(restored) == n_restored:
            await asyncio.sleep(0.005)
        for n in range(20):
            await redis.publish(f"channel{n}", b"again")
            assert (await arrived.get())[1] == b"again"
    running.cancel()
