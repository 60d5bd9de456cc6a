"""The farm's side of Redis: connections with explicit time-outs and the six scripts as methods (design §5, §10)."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from typing import Any, NamedTuple

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError, ReadOnlyError
from redis.exceptions import TimeoutError as RedisTimeoutError

from common import scripts
from common.keys import Cell, lane_name
from common.messages import Event, Result, Submit, Worker, decode, decode_events, encode

UNREACHABLE = (RedisConnectionError, RedisTimeoutError, OSError, ReadOnlyError, OutOfMemoryError)
"""What a command raises when its outcome is unknown, or refused for now: repeat it later."""

COMMAND_TIMEOUT_S = 5.0


class Submitted(NamedTuple):
    """`status` ok, known, full or unknown; `waiting`: entries ahead in the lane; `caller` and `digest`: who sent what."""

    status: str
    boot: str
    waiting: int
    state: str
    caller: str = ""
    digest: str = ""


class Delivery(NamedTuple):
    """One request handed to a worker. `remaining_ms` 0: no deadline, −1: passed."""

    rid: bytes
    kind: str
    epoch: int
    waited_ms: int
    remaining_ms: int
    crashes: int
    journal: str
    journal_from: int
    gateways: tuple[str, ...]
    message: bytes


class Pulled(NamedTuple):
    """`status` ok, owned or fenced; `bell` is the doorbell's last id at that moment; `waiting` entries stay behind."""

    status: str
    bell: str = "0-0"
    waiting: int = 0
    deliveries: tuple[Delivery, ...] = ()


class Batch(NamedTuple):
    """One flush, byte for byte repeatable."""

    step: int
    last_step: int
    min_step: int
    events: bytes
    n_mail: int
    record: bytes
    adopted: tuple[bytes, ...]
    progressed: tuple[bytes, ...]
    frames: tuple[tuple[str, bytes], ...]


class Flushed(NamedTuple):
    """`status` ok, short or fenced."""

    status: str
    mail: tuple[str, ...] = ()


class Ended(NamedTuple):
    """A request to finish; `result` empty: none is kept."""

    rid: bytes
    epoch: int
    result: bytes = b""
    ttl_ms: int = 120_000


class Request(NamedTuple):
    """What the farm knows of a request. Empty `state`: nothing."""

    state: str = ""
    lane: str = ""
    entry: str = ""
    owner: str = ""
    caller: str = ""
    journal: str = ""
    journal_from: int = 0


class LaneDepth(NamedTuple):
    """How many requests of a lane wait and run, and how long the first of those that wait has waited."""

    lane: str
    waiting: int
    running: int
    oldest_s: float


class Census(NamedTuple):
    """The cell once a second: its boot word ("" when Redis forgot it) and the workers whose lease holds."""

    boot: str
    workers: tuple[Worker, ...]


def connect(url: str, *, blocking: bool = False, timeout_s: float = COMMAND_TIMEOUT_S) -> Redis:
    """A client that repeats nothing by itself; a `blocking` one may wait for an answer as long as the server takes."""
    pool = BlockingConnectionPool.from_url(url, max_connections=64, timeout=timeout_s, **_options(url, blocking, timeout_s))
    return Redis.from_pool(pool)


class Single(Redis):
    """One connection; the next command waits for it. Bounded here because the library's own time-out doubles the cost of a command."""

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        async with asyncio.timeout(COMMAND_TIMEOUT_S):
            return await super().execute_command(*args, **options)  # type: ignore[no-untyped-call]


def connect_single(url: str) -> Redis:
    """For commands one after another, at half the price; pipelines are not bounded in time."""
    client: Redis = Single.from_url(url, single_connection_client=True, **_options(url, True, COMMAND_TIMEOUT_S))
    return client


def _options(url: str, blocking: bool, timeout_s: float) -> dict[str, Any]:
    options: dict[str, Any] = {"socket_timeout": None if blocking else timeout_s, "socket_connect_timeout": timeout_s, "protocol": 2}
    return {**options, "retry": Retry(NoBackoff(), 0), **({} if url.startswith("unix") else {"socket_keepalive": True})}


class Broker:
    """One cell. Methods raise one of `UNREACHABLE` when the outcome is unknown; all are safe to repeat."""

    def __init__(self, redis: Redis, cell: Cell, quick: Redis | None = None) -> None:
        """Scripts run on `quick`, one after another, so that a cancel never overtakes its submit; all else on `redis`."""
        self.redis = redis
        self.cell = cell
        self._scripts = {name: (quick or redis).register_script(scripts.source(name)) for name in scripts.NAMES}

    async def _run(self, name: str, *args: Any) -> Any:
        return await self._scripts[name](keys=[self.cell.tag], args=args)

    async def submit(self, request: Submit, lane: int, *, max_waiting: int = 0, how: str = "new", digest: str = "") -> Submitted:
        """Queues a request once; `how` new, replace or attach. Raises `redis.exceptions.OutOfMemoryError` when Redis is full."""
        status, boot, waiting, state, caller, known_digest = await self._run(
            "submit", request.rid.hex(), lane_name(lane, request.priority), encode(request), request.gateway, request.caller,
            request.ttl_ms, max_waiting, request.epoch_floor, how, secrets.token_hex(8), digest,
        )  # fmt: skip
        return Submitted(status.decode(), boot.decode(), waiting, state.decode(), caller.decode(), known_digest.decode())

    async def pull(self, worker: str, *, may_expire: bool, held: int, minimum: int, maximum: int, lanes: Sequence[str]) -> Pulled:
        """Takes at most `maximum` requests; none new when fewer than `minimum` could be had."""
        reply = await self._run("pull", worker, int(may_expire), held, minimum, maximum, *lanes)
        if reply[0] == b"fenced":
            return Pulled("fenced")
        return Pulled(reply[0].decode(), reply[1].decode(), reply[2], tuple(map(_delivery, reply[3:])))

    async def flush(self, worker: str, lease_ms: int, batch: Batch) -> Flushed:
        """Journals and publishes one step; see `lua/flush.lua`."""
        frames = [part for frame in batch.frames for part in frame]
        reply = await self._run(
            "flush", worker, lease_ms, batch.step, batch.last_step, batch.min_step, batch.events, batch.n_mail,
            batch.record, len(batch.adopted), *(rid.hex() for rid in batch.adopted),
            len(batch.progressed), *(rid.hex() for rid in batch.progressed), *frames,
        )  # fmt: skip
        return Flushed(reply[0].decode(), tuple(item.decode() for item in reply[1:]))

    async def finish(self, worker: str, ended: Sequence[Ended]) -> bool:
        """Ends requests; False when this worker is fenced."""
        args = [part for e in ended for part in (e.rid.hex(), e.epoch, e.result, e.ttl_ms)]
        return bool((await self._run("finish", worker, *args))[0] == b"ok")

    async def cancel(self, rids: Sequence[bytes], gateway: str = "") -> list[str]:
        """Ends requests whose clients are gone; says what each was: unknown, ended, queued or mailed. Signs `gateway` in."""
        return [state.decode() for state in await self._run("cancel", gateway, *(rid.hex() for rid in rids))]

    async def give_up(self, delivery: Delivery, why: str) -> None:
        """Keeps a request that nobody can run as a dead letter."""
        letter = ("rid", delivery.rid.hex(), "why", why, "message", delivery.message)
        await self.redis.execute_command("XADD", self.cell.dead, "MAXLEN", "~", 10_000, "*", *letter)

    async def release(self, worker: str, how: str, blamed: Sequence[bytes] = ()) -> bool:
        """Hands back all that a worker runs; False when it was not registered."""
        return bool(await self._run("release", worker, how, *(rid.hex() for rid in blamed)))

    async def join(self, worker: str, lease_ms: int, cold: bool = False) -> None:
        """Registers a fresh worker id, so that its first flush is not fenced. A `cold` one's lease may pass without a crash."""
        seconds, micros = await self.redis.time()
        await self.redis.set(self.cell.boot, secrets.token_hex(8), nx=True)
        if cold:
            await self.redis.execute_command("HSET", self.cell.cold, worker, 1)
        await self.redis.zadd(self.cell.workers, {worker: seconds * 1000 + micros // 1000 + lease_ms})

    async def wait_bell(self, since: str, timeout_ms: int) -> bool:
        """Whether the doorbell rang after `since`, within the time-out. Needs a blocking connection of its own."""
        return bool(await self.redis.xread({self.cell.bell: since}, count=1, block=timeout_ms))

    async def read_journal(self, worker: str, from_step: int) -> list[tuple[int, list[Event]]]:
        """A worker's journal entries from a step on, oldest first."""
        entries = await self.redis.xrange(self.cell.journal(worker), min=f"{from_step}-0")
        return [(int(entry_id.split(b"-")[0]), decode_events(fields[b"events"])) for entry_id, fields in entries]

    async def request(self, rid: bytes) -> Request:
        """What Redis knows of a request."""
        fields = await self.redis.execute_command("HMGET", self.cell.req(rid), *Request._fields)
        if fields[0] is None:
            return Request()
        state, lane, entry, owner, caller, journal, journal_from = (field.decode() for field in fields)
        return Request(state, lane, entry, owner, caller, journal, int(journal_from))

    async def result(self, rid: bytes) -> Result | None:
        """What is kept of a request that ended."""
        data = await self.redis.get(self.cell.res(rid))
        return None if data is None else decode(Result, data)

    async def queued(self, request: Request) -> Submit | None:
        """The message of a request that has not ended."""
        key = self.cell.lane_named(request.lane)
        entries = await self.redis.xrange(key, request.entry, request.entry)
        return decode(Submit, entries[0][1][b"message"]) if entries else None

    async def gateways_seen_ms(self) -> dict[str, int]:
        """How long ago each gateway was seen."""
        seconds, micros = await self.redis.time()
        seen = await self.redis.zrange(self.cell.gateways, 0, -1, withscores=True)
        now_ms = seconds * 1000 + micros // 1000
        return {gateway.decode(): int(now_ms - at_ms) for gateway, at_ms in seen}

    async def census(self) -> Census:
        """Boot word and live workers."""
        async with self.redis.pipeline(transaction=False) as pipe:
            pipe.get(self.cell.boot)
            pipe.time()
            pipe.zrange(self.cell.workers, 0, -1, withscores=True)
            boot, (seconds, micros), leases = await pipe.execute()
        now_ms = seconds * 1000 + micros // 1000
        alive = [worker.decode() for worker, expiry in leases if expiry >= now_ms]
        records = await self.redis.mget([self.cell.record(worker) for worker in alive]) if alive else []
        return Census(boot.decode() if boot else "", tuple(decode(Worker, record) for record in records if record))

    async def depths(self) -> list[LaneDepth]:
        """Every lane that holds requests."""
        return [await self._depth(name.decode()) for name in sorted(await self.redis.execute_command("SMEMBERS", self.cell.lanes))]

    async def _depth(self, name: str) -> LaneDepth:
        lane = self.cell.lane_named(name)
        async with self.redis.pipeline(transaction=False) as pipe:
            pipe.time()
            pipe.xlen(lane)
            pipe.xinfo_groups(lane)
            (seconds, micros), length, groups = await pipe.execute(raise_on_error=False)
        if not isinstance(groups, list) or not groups:
            return LaneDepth(name, int(length), 0, 0.0)
        running, last = groups[0]["pending"], groups[0]["last-delivered-id"].decode()
        first = await self.redis.xrange(lane, f"({last}", count=1)
        oldest_s = seconds + micros / 1e6 - int(first[0][0].split(b"-")[0]) / 1000 if first else 0.0
        return LaneDepth(name, length - running, running, max(0.0, oldest_s))

    async def forget_gateway(self, gateway: str) -> None:
        await self.redis.zrem(self.cell.gateways, gateway)


def _delivery(reply: Sequence[Any]) -> Delivery:
    rid, kind, epoch, waited_ms, remaining_ms, crashes, journal, journal_from, gateways, message = reply
    names = tuple(name for name in gateways.decode().split(",") if name)
    return Delivery(
        bytes.fromhex(rid.decode()), kind.decode(), epoch, waited_ms, remaining_ms, crashes, journal.decode(),
        int(journal_from), names, message,
    )  # fmt: skip
