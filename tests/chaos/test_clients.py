"""Clients that leave, come back, or try again; gateways that die (design §8)."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import struct
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis import Redis

from tests.chaos.checks import soon
from tests.chaos.streams import PROMPT, Shown, client, streams
from tests.farm import Farm

pytestmark = [pytest.mark.anyio, pytest.mark.chaos]


def body(seed: int, n_tokens: int) -> dict[str, Any]:
    return {"inputs": PROMPT, "parameters": {"max_new_tokens": n_tokens, "seed": seed, "do_sample": True, "details": True}}


async def read_some(
    http: httpx.AsyncClient, url: str, request: dict[str, Any], headers: dict[str, str], most: int
) -> list[tuple[str, int]]:
    """(event id, token) of at most that many events; then the connection is dropped."""
    got, name = [], ""
    async with http.stream("POST", f"{url}/generate_stream", json=request, headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if line.startswith("id:"):
                name = line[3:].strip()
            if line.startswith("data:"):
                got.append((name, json.loads(line[5:])["token"]["id"]))
                if len(got) == most:
                    return got
    return got


def active(farm: Farm) -> set[bytes]:
    redis = Redis.from_url(farm.server.url)
    return {key for key in redis.keys("*req:*") if redis.hget(key, "state") != b"ended"}


def faults(farm: Farm, seed: int, tokens: list[int]) -> list[str]:
    return Shown(seed, len(tokens), tokens, list(range(1, len(tokens) + 1)), finish_reason="length").faults(farm.worker_ids())


async def test_a_stream_is_resumed_on_another_gateway(farm: Farm) -> None:
    first, second = farm.gateway(), farm.gateway()
    farm.worker()
    farm.wait_ready()
    async with client() as http:
        got = await read_some(http, first, body(5, 80), {"x-farm-resume": "1"}, 20)
        assert got[0][0].endswith("/0")
        rest = await read_some(http, second, body(5, 80), {"Last-Event-ID": got[-1][0]}, 1000)
        assert [name.split("/")[1] for name, _ in rest] == [str(pos) for pos in range(20, 80)]
        assert not faults(farm, 5, [token for _, token in (*got, *rest)])
        again = await read_some(http, second, body(5, 80), {"Last-Event-ID": got[9][0]}, 1000)
        assert [token for _, token in (*got[:10], *again)] == [token for _, token in (*got, *rest)], "also after the end"
        wrong = await http.post(f"{second}/generate_stream", json=body(5, 80), headers={"Last-Event-ID": "00" * 16 + "/3"})
        assert (wrong.status_code, wrong.json()["error_type"]) == (404, "not_found")


async def test_resuming_clients_survive_their_gateway_and_plain_ones_leave_nothing(farm: Farm) -> None:
    farm.env["FARM_ORPHAN_S"] = "2"
    first, second = farm.gateway(), farm.gateway()
    farm.worker()
    farm.wait_ready()
    async with client() as http:
        plain = asyncio.create_task(streams(first, [1], 400))
        resuming = asyncio.create_task(read_some(http, first, body(6, 200), {"x-farm-resume": "1"}, 30))
        got = await resuming
        await soon(lambda: len(active(farm)) == 2)
        farm.gateways[0].popen.send_signal(signal.SIGKILL)
        rest = await read_some(http, second, body(6, 200), {"Last-Event-ID": got[-1][0]}, 1000)
        assert len(got) + len(rest) == 200
        assert not faults(farm, 6, [token for _, token in (*got, *rest)])
        assert (await plain)[0].error
    await soon(lambda: not active(farm))
    assert "Orphaned rid=" in farm.workers[0].text()


async def test_a_retry_with_the_same_key_joins_the_same_run(farm: Farm) -> None:
    first, second = farm.gateway(), farm.gateway()
    farm.worker()
    farm.wait_ready()
    async with client() as http:
        key = {"Idempotency-Key": "order 7"}
        once, twice = await asyncio.gather(
            http.post(f"{first}/generate", json=body(9, 60), headers=key), http.post(f"{second}/generate", json=body(9, 60), headers=key)
        )
        later = await http.post(f"{second}/generate", json=body(9, 60), headers=key)
        assert once.json() == twice.json() == later.json()
        assert len(Redis.from_url(farm.server.url).keys("*req:*")) == 1
        other = await http.post(f"{first}/generate", json=body(10, 60), headers=key)
        assert (other.status_code, other.json()["error_type"]) == (422, "validation")


async def test_nobody_sees_what_another_key_asked_for(farm: Farm, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("ann secret-a\nbob secret-b\n")
    farm.env["FARM_API_KEYS_FILE"] = str(tmp_path / "keys")
    url = farm.gateway()
    farm.worker()
    await asyncio.to_thread(farm.wait_ready)
    ann, bob = ({"Authorization": f"Bearer secret-{name}"} for name in "ab")
    async with client() as http:
        got = await read_some(http, url, body(5, 60), {"x-farm-resume": "1", **ann}, 10)
        stolen = await http.post(f"{url}/generate_stream", json=body(5, 60), headers={"Last-Event-ID": got[-1][0], **bob})
        assert (stolen.status_code, stolen.json()["error_type"]) == (404, "not_found")
        rest = await read_some(http, url, body(5, 60), {"Last-Event-ID": got[-1][0], **ann}, 1000)
        assert len(rest) == 50
        hers = await http.post(f"{url}/generate", json=body(1, 5), headers={"Idempotency-Key": "7", **ann})
        his = await http.post(f"{url}/generate", json=body(2, 5), headers={"Idempotency-Key": "7", **bob})
        assert (hers.status_code, his.status_code) == (200, 200), "the same key of another caller is another run"
        assert hers.json() != his.json()


async def test_who_left_is_computed_no_further(farm: Farm) -> None:
    """Gone while queued, in mid-stream, and without streaming; resets at once, more than there are permits."""
    url = farm.gateway(MAX_CONCURRENT_REQUESTS="128")
    farm.worker(MAX_BATCH_SIZE="4")
    farm.wait_ready()
    async with client() as http:
        long = [asyncio.create_task(read_some(http, url, body(seed, 450), {}, 5)) for seed in range(4)]
        waiting = [asyncio.create_task(http.post(f"{url}/generate", json=body(seed, 450))) for seed in range(20, 30)]
        await soon(lambda: len(active(farm)) == 14)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*long)
    await soon(lambda: not active(farm))
    for _ in range(300):
        _reset(farm.ports[0], body(1, 450))
    await soon(lambda: not active(farm), 30)
    async with asyncio.timeout(60):  # the last resets may still be on their way through the gateway
        while any(one.error for one in await streams(url, range(128), 5)):
            await asyncio.sleep(0.2)
    redis = Redis.from_url(farm.server.url)
    await soon(lambda: not redis.keys("*}lane*") and not redis.keys("*}mail*"))


def _reset(port: int, request: dict[str, Any]) -> None:
    """Sends a request and resets the connection at once."""
    data = json.dumps(request).encode()
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.sendall(
        b"POST /generate_stream HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data) + data
    )
    sock.close()


async def test_a_deadline_ends_waiting_and_running_requests(farm: Farm) -> None:
    url = farm.gateway()
    farm.worker(MAX_BATCH_SIZE="1")
    farm.wait_ready()
    async with client() as http:
        running = asyncio.create_task(http.post(f"{url}/generate", json=body(1, 400), headers={"x-request-deadline-ms": "1500"}))
        await soon(lambda: len(active(farm)) == 1)
        late = await http.post(f"{url}/generate", json=body(2, 5), headers={"x-request-deadline-ms": "300"})
        assert (late.status_code, late.json()["error_type"], late.headers["x-should-retry"]) == (504, "deadline", "false")
        ended = (await running).json()["details"]
        assert ended["finish_reason"] == "length"
        assert 10 < ended["generated_tokens"] < 400
