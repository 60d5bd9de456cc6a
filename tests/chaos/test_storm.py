"""The storm: hundreds of streams under every kind of fault, in a seeded order, and how long each kind makes a stream pause."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import statistics
import time
from collections import defaultdict
from dataclasses import dataclass, field

import httpx
import pytest
from redis import Redis

from tests.chaos.checks import assert_whole
from tests.chaos.streams import Shown, client, stream
from tests.farm import Farm, WorkerProcess
from workers.engines.oracle import DEADLY

pytestmark = [pytest.mark.anyio, pytest.mark.chaos]

SEED = int(os.environ.get("CHAOS_SEED", "7"))
FAULTS = {"engine killed": 12, "worker killed": 4, "worker paused": 8, "pub/sub cut": 20, "redis killed": 2, "poison": 1}
N_WORKERS = 3
N_CLIENTS = 12
N_TOKENS = 120
LONGEST_EFFECT_S = 6.0


@dataclass
class Storm:
    """One run: the farm, what was done to it and when, what clients saw."""

    farm: Farm
    url: str
    done: list[Shown] = field(default_factory=list)
    faults: list[tuple[float, str]] = field(default_factory=list)
    over: bool = False
    seeds: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    async def load(self, http: httpx.AsyncClient) -> None:
        """One client: stream after stream; a refusal is waited out."""
        while not self.over:
            shown = await stream(http, self.url, next(self.seeds), N_TOKENS)
            if shown.error.startswith("429") and not shown.tokens:
                await asyncio.sleep(0.5)
            else:
                self.done.append(shown)

    def ready(self) -> list[WorkerProcess]:
        return [worker for worker in self.farm.workers if worker.popen.poll() is None and worker.ids()]

    async def fault(self, kind: str, pick: random.Random) -> None:
        """Does one thing to the farm and waits until it stands again."""
        worker = pick.choice(self.ready())
        n_ids = len(self.farm.worker_ids())
        self.faults.append((time.monotonic(), kind))
        if kind == "engine killed":
            worker.signal_engine(signal.SIGKILL)
            await self._more_ids(n_ids)
        elif kind == "worker killed":
            worker.popen.kill()
            self.farm.worker()
            await self._more_ids(n_ids)
        elif kind == "worker paused":
            worker.popen.send_signal(signal.SIGSTOP)
            worker.signal_engine(signal.SIGSTOP)
            await asyncio.sleep(2.5)
            worker.signal_engine(signal.SIGCONT)
            worker.popen.send_signal(signal.SIGCONT)
            await self._more_ids(n_ids)
        elif kind == "pub/sub cut":
            Redis.from_url(self.farm.server.url).execute_command("CLIENT", "KILL", "TYPE", "pubsub")
        elif kind == "redis killed":
            self.farm.server.kill()
            await asyncio.sleep(0.5)
            self.farm.server.start()
            await self._more_ids(n_ids + N_WORKERS - 1)
        else:
            await self._poison()

    async def _poison(self) -> None:
        async with client() as http:
            answer = await http.post(f"{self.url}/generate", json={"inputs": f"w11 w{DEADLY}", "parameters": {"max_new_tokens": 3}})
        assert (answer.status_code, answer.json()["error_type"]) == (424, "generation"), answer.text

    async def _more_ids(self, than: int) -> None:
        deadline_s = time.monotonic() + 30
        while len(self.farm.worker_ids()) <= than and time.monotonic() < deadline_s:
            await asyncio.sleep(0.05)

    def pauses_s(self) -> dict[str, list[float]]:
        """For each fault kind, the longest gap of each stream that ran through such a fault."""
        found: dict[str, list[float]] = defaultdict(list)
        for at_s, kind in self.faults:
            for shown in self.done:
                gaps = [b - a for a, b in itertools.pairwise(shown.times_s) if b > at_s and a < at_s + LONGEST_EFFECT_S]
                if gaps and shown.times_s[0] < at_s:
                    found[kind].append(max(gaps))
        return found


def table(pauses_s: dict[str, list[float]]) -> str:
    """p50, p95 and longest pause for each kind, with a bar for the p95."""
    rows = [f"{'fault':<16}{'streams':>8}{'p50 s':>8}{'p95 s':>8}{'max s':>8}"]
    for kind, values in pauses_s.items():
        ordered = sorted(values)
        p95 = ordered[int(0.95 * (len(ordered) - 1))]
        bar = "█" * max(1, round(p95 * 10))
        rows.append(f"{kind:<16}{len(values):>8}{statistics.median(values):>8.2f}{p95:>8.2f}{ordered[-1]:>8.2f}  {bar}")
    return "\n".join(rows)


async def test_every_stream_survives_the_storm(farm: Farm, capsys: pytest.CaptureFixture[str]) -> None:
    farm.env["FARM_ORACLE_STEP_MS"] = "15"
    storm = Storm(farm, farm.gateway())
    for _ in range(N_WORKERS):
        farm.worker()
    await asyncio.to_thread(farm.wait_ready, N_WORKERS)
    pick = random.Random(SEED)
    schedule = [kind for kind, n in FAULTS.items() for _ in range(n)]
    pick.shuffle(schedule)
    async with client() as http:
        loads = [asyncio.create_task(storm.load(http)) for _ in range(N_CLIENTS)]
        await asyncio.sleep(1)
        for kind in schedule:
            await storm.fault(kind, pick)
            await asyncio.sleep(pick.uniform(0.5, 1.5))
        while len(storm.done) < 200:
            await asyncio.sleep(0.2)
        storm.over = True
        await asyncio.gather(*loads)
    with capsys.disabled():
        print(f"\nseed {SEED}: {len(storm.done)} streams, {len(schedule)} faults")
        print(table(storm.pauses_s()))
    assert len(storm.done) >= 200
    assert_whole(farm, storm.done, mended=True)


async def test_nothing_is_left_of_a_storm(farm: Farm) -> None:
    """After kills in mid-stream no slot, lane, mail or orphan remains."""
    url = farm.gateway()
    farm.worker()
    farm.worker()
    farm.wait_ready(2)
    async with client() as http:
        running = [asyncio.create_task(stream(http, url, seed, 60)) for seed in range(12)]
        for _ in range(3):
            await asyncio.sleep(0.6)
            farm.workers[0].signal_engine(signal.SIGKILL)
            await asyncio.sleep(2.5)
        assert_whole(farm, await asyncio.gather(*running))
    redis = Redis.from_url(farm.server.url)
    deadline_s = time.monotonic() + 20
    while redis.keys("*}lane*") or redis.keys("*}mail*") or redis.keys("*}orphans"):
        assert time.monotonic() < deadline_s, redis.keys("*")
        await asyncio.sleep(0.1)
