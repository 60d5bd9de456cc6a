"""Ends on purpose: drains, spot notices, rolling restarts (design §8)."""

from __future__ import annotations

import asyncio
import signal
import statistics

import httpx
import pytest

from tests.chaos.checks import assert_whole, rows_per_prefill, soon, tokens_served
from tests.chaos.streams import client, stream, streams
from tests.farm import Farm, wait_for

pytestmark = [pytest.mark.anyio, pytest.mark.chaos]


async def test_a_worker_drains_within_the_grace(farm: Farm) -> None:
    url = farm.gateway()
    worker = farm.worker()
    farm.wait_ready()
    running = asyncio.create_task(streams(url, range(6), 100))
    await soon(lambda: tokens_served(farm) > 20)
    other = farm.worker()
    worker.popen.send_signal(signal.SIGTERM)
    assert_whole(farm, await running)
    assert worker.popen.wait(10) == 0
    assert farm.metric("farm_takeovers_total") == 0, "what fitted into the grace ended where it was"
    await asyncio.to_thread(wait_for, lambda: other.ids(), 20)
    await soon(lambda: _ready(url))
    assert_whole(farm, await streams(url, range(6), 10))


async def test_a_second_signal_hands_over_at_once(farm: Farm) -> None:
    url = farm.gateway()
    workers = [farm.worker(), farm.worker()]
    farm.wait_ready(2)
    running = asyncio.create_task(streams(url, range(6), 300))
    await soon(lambda: tokens_served(farm) > 40)
    for worker in workers[:1]:
        worker.popen.send_signal(signal.SIGTERM)
        await asyncio.sleep(0.3)
        worker.popen.send_signal(signal.SIGTERM)
        assert worker.popen.wait(5) == 0
    assert_whole(farm, await running)


async def test_a_spot_notice_hands_fifty_streams_over(farm: Farm) -> None:
    """Last token there → first token elsewhere, p50 < 1 s when a prefill takes four rows, longer when it takes fewer."""
    farm.env["MAX_BATCH_SIZE"] = "64"
    url = farm.gateway()
    worker = farm.worker()
    farm.wait_ready()
    running = asyncio.create_task(streams(url, range(50), 250))
    await soon(lambda: tokens_served(farm) > 40)
    other = farm.worker()
    await asyncio.to_thread(wait_for, lambda: other.ids(), 20)
    worker.popen.send_signal(signal.SIGUSR1)
    shown = await running
    assert_whole(farm, shown)
    assert worker.popen.wait(5) == 0
    pauses = [one.longest_pause_s for one in shown]
    print(f"spot notice: pause p50 {statistics.median(pauses):.2f} s, max {max(pauses):.2f} s")
    assert statistics.median(pauses) < max(1.0, 4 / rows_per_prefill(farm))


async def test_a_gateway_drains_within_the_grace(farm: Farm) -> None:
    url = farm.gateway()
    farm.worker()
    farm.wait_ready()
    running = asyncio.create_task(streams(url, range(6), 100))
    await soon(lambda: tokens_served(farm) > 20)
    gateway = farm.gateways[0].popen
    gateway.send_signal(signal.SIGTERM)
    async with httpx.AsyncClient() as http:
        assert (await http.get(f"{url}/health/accept")).status_code == 503
    shown = await running
    assert not [fault for one in shown for fault in one.faults(farm.worker_ids())]
    assert gateway.wait(10) == 0


async def test_a_rolling_restart_under_load_shows_no_error(farm: Farm) -> None:
    """Every worker and gateway once, clients without retries, 500 streams shorter than the grace where a prefill takes four rows."""
    n_streams = 125 * rows_per_prefill(farm)
    gateways = [farm.gateway(), farm.gateway()]
    for _ in range(2):
        farm.worker()
    farm.wait_ready(2)
    accepting = set(gateways)
    done, stop = [], asyncio.Event()
    async with client() as http:

        async def load(number: int) -> None:
            while not stop.is_set() or len(done) < n_streams:
                url = sorted(accepting)[(number + len(done)) % len(accepting)]
                done.append(await stream(http, url, 1000 * number + len(done), 15))

        loads = [asyncio.create_task(load(number)) for number in range(8)]
        for old in list(farm.workers):
            n_ids = len(farm.worker_ids())
            farm.worker()
            await soon(lambda n_ids=n_ids: len(farm.worker_ids()) > n_ids, 30)  # type: ignore[misc]
            old.popen.send_signal(signal.SIGTERM)
            await soon(lambda old=old: old.popen.poll() is not None, 30)  # type: ignore[misc]
        for number, old_url in enumerate(gateways):
            new_url = farm.gateway()
            await soon(lambda url=new_url: _ready(url), 20)  # type: ignore[misc]
            accepting.add(new_url)
            accepting.discard(old_url)
            await asyncio.sleep(0.2)
            farm.gateways[number].popen.send_signal(signal.SIGTERM)
            await soon(lambda number=number: farm.gateways[number].popen.poll() is not None, 30)  # type: ignore[misc]
        stop.set()
        await asyncio.gather(*loads)
    faults = [fault for one in done for fault in one.faults(farm.worker_ids())]
    assert not faults, faults[:5]
    assert len(done) >= n_streams


def _ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=1).status_code == 200
    except httpx.HTTPError:
        return False


async def test_requests_wait_for_a_worker_when_told_to(farm: Farm) -> None:
    url = farm.gateway(FARM_QUEUE_WHEN_COLD="true")
    worker = farm.worker()
    farm.wait_ready()
    worker.popen.send_signal(signal.SIGTERM)
    assert worker.popen.wait(10) == 0
    await soon(lambda: not _ready(url))
    waiting = asyncio.create_task(streams(url, range(3), 10))
    await asyncio.sleep(0.5)
    assert not waiting.done()
    farm.worker()
    assert_whole(farm, await waiting)
