"""What the farm adds to an engine that costs nothing: first token, commands to Redis, idle CPU, memory."""

from __future__ import annotations

import asyncio
import http.client
import json
import statistics
import time
from pathlib import Path

from redis import Redis

from tests.bench.figures import Figure
from tests.chaos.streams import PROMPT, streams
from tests.farm import Farm, wait_for
from tests.servers import Server

BODY = json.dumps({"inputs": PROMPT, "parameters": {"max_new_tokens": 1}})
N_STREAMS = 500
N_FULL_STEPS = 1000
IDLE_S = 60.0


def first_token(folder: Path) -> list[Figure]:
    """p50 of the time to the first token of sequential streams ÷ p50 of `GET /health`, on one kept-alive connection."""
    with _server(folder) as server, Farm(folder, server) as farm:
        farm.gateway()
        farm.worker()
        farm.wait_ready()
        health_ms, first_ms = [], []
        connection = http.client.HTTPConnection("127.0.0.1", farm.ports[0])
        for number in range(N_STREAMS + 20):
            health_s, first_s = _time(connection, "GET", "/health", None), _time(connection, "POST", "/generate_stream", BODY)
            if number >= 20:
                health_ms.append(health_s * 1000)
                first_ms.append(first_s * 1000)
    health, first = statistics.median(health_ms), statistics.median(first_ms)
    return [Figure("first token p50 ÷ GET /health p50 (oracle, 0 ms)", first / health, 5.0, note=f"{first:.2f} ms ÷ {health:.2f} ms")]


def _time(connection: http.client.HTTPConnection, method: str, path: str, body: str | None) -> float:
    """Seconds until the status line, or until the first event of a stream."""
    started_s = time.perf_counter()
    connection.request(method, path, body, {"content-type": "application/json"})
    response = connection.getresponse()
    if body is not None:
        assert response.readline().startswith(b"data:")
    ended_s = time.perf_counter()
    response.read()
    return ended_s - started_s


def commands(folder: Path) -> list[Figure]:
    """Client commands to Redis per step and worker while all slots are full."""
    env = {"MAX_BATCH_SIZE": "8", "MAX_TOTAL_TOKENS": "2048", "FARM_ORACLE_STEP_MS": "5"}
    with _server(folder) as server, Farm(folder, server, env) as farm:
        url = farm.gateway()
        farm.worker()
        farm.wait_ready()
        redis = Redis.from_url(server.url)
        wait_for(lambda: redis.keys("*journal:*"))
        (journal,) = redis.keys("*journal:*")
        shown, steps, sent = asyncio.run(_full_steps(url, redis, journal))
        assert not any(one.error for one in shown)
    return [Figure(f"client commands to Redis per step and worker, {steps} full steps", sent / steps, 1.1)]


async def _full_steps(url: str, redis: Redis, journal: bytes) -> tuple[list[object], int, int]:
    running = asyncio.create_task(streams(url, range(8), N_FULL_STEPS + 400))
    start = _step(redis, journal)
    while _step(redis, journal) < start + 100:
        await asyncio.sleep(0.05)
    first, first_commands = _step(redis, journal), _worker_commands(redis)
    while (last := _step(redis, journal)) < first + N_FULL_STEPS:
        await asyncio.sleep(0.1)
    sent = _worker_commands(redis) - first_commands
    return list(await running), last - first, sent


def _step(redis: Redis, journal: bytes) -> int:
    (entry,) = redis.xrevrange(journal, count=1)
    return int(entry[0].split(b"-")[0])


def _worker_commands(redis: Redis) -> int:
    """Scripts, bell and record: all that a worker sends. The gateway sends scripts only when a request starts."""
    stats = redis.info("commandstats")
    return sum(int(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"]) for name in ("evalsha", "xread", "set"))


def idle(folder: Path) -> list[Figure]:
    """CPU seconds of gateway, supervisor, engine process and broker over a minute without requests; memory of the gateway."""
    with _server(folder) as server, Farm(folder, server) as farm:
        farm.gateway()
        worker = farm.worker()
        farm.wait_ready()
        time.sleep(3)
        assert server.process is not None
        processes = {"gateway": farm.gateways[0].popen, "supervisor": worker.popen, "broker": server.process}
        pids = {name: process.pid for name, process in processes.items()} | {"engine": worker.engine_pid()}
        before = {name: _cpu_s(pid) for name, pid in pids.items()}
        time.sleep(IDLE_S)
        spent = {name: _cpu_s(pid) - before[name] for name, pid in pids.items()}
        memory = int(Path(f"/proc/{pids['gateway']}/statm").read_text().split()[1]) * 4096 / 2**20
    note = ", ".join(f"{name} {seconds:.2f}" for name, seconds in spent.items())
    return [
        Figure("idle CPU of all processes over 60 s, seconds", sum(spent.values()), 1.2, note=note),
        Figure("resident memory of the idle gateway, MiB", memory, 200),
    ]


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


class _server:
    def __init__(self, folder: Path) -> None:
        socket = folder / "broker.sock"
        self._server = Server(folder, options=("--unixsocket", str(socket)))
        self._server.url = f"unix://{socket}"  # as `make run` reaches its broker

    def __enter__(self) -> Server:
        return self._server.start()

    def __exit__(self, *_: object) -> None:
        self._server.stop()
