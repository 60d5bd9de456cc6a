"""The six scripts on real servers: what each guarantees, and which keys remain."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from redis.exceptions import OutOfMemoryError

from common.broker import Batch, Broker, Ended, Pulled, connect
from common.keys import Cell, lane_name
from common.messages import Event, Flag, Frame, Submit, decode, encode, encode_events, new_rid
from tests.servers import Server, binaries

pytestmark = pytest.mark.anyio
LANE = lane_name(64)


@pytest.fixture(scope="module", params=sorted(binaries()))
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("broker"), request.param).start()
    yield server
    server.stop()


@pytest.fixture
async def broker(server: Server) -> AsyncIterator[Broker]:
    redis = connect(server.url)
    await redis.flushall()
    yield Broker(redis, Cell("farm", "model", "fp"))
    await redis.aclose()


def request(**fields: object) -> Submit:
    base = Submit(v=1, rid=new_rid(), input_ids=(1, 2, 3), n_max_new=4, gateway="g1", caller="anybody")
    return base._replace(**fields)  # type: ignore[arg-type]


async def pull(broker: Broker, worker: str, *, held: int = 0, minimum: int = 0, maximum: int = 8, may_expire: bool = False) -> Pulled:
    return await broker.pull(worker, may_expire=may_expire, held=held, minimum=minimum, maximum=maximum, lanes=[LANE])


def batch(step: int, *, last: int | None = None, adopted: tuple[bytes, ...] = (), progressed: tuple[bytes, ...] = (),
          frames: tuple[tuple[str, bytes], ...] = (), events: tuple[Event, ...] = (), n_mail: int = 0) -> Batch:  # fmt: skip
    return Batch(step, step - 1 if last is None else last, 0, encode_events(events), n_mail, b"", adopted, progressed, frames)


async def remaining(broker: Broker) -> set[str]:
    return {key.decode().removeprefix(broker.cell.tag) for key in await broker.redis.keys("*")}


async def test_a_request_is_queued_pulled_journaled_published_and_finished(broker: Broker) -> None:
    await broker.join("w1", 10_000)
    async with broker.redis.pubsub() as channel:
        await channel.subscribe(broker.cell.events("g1"))
        assert await channel.get_message(timeout=1)
        submit = request()
        assert (await broker.submit(submit, 64)).status == "ok"
        pulled = await pull(broker, "w1")
        (delivery,) = pulled.deliveries
        assert (delivery.rid, delivery.kind, delivery.crashes, delivery.gateways) == (submit.rid, "new", 0, ("g1",))
        assert decode(Submit, delivery.message) == submit
        event = Event(submit.rid, delivery.epoch, 0, 7, -0.5, " a", Flag.FIRST)
        frame = encode(Frame(1, "w1", 1, 0, 3, (event,)))
        assert (await broker.flush("w1", 10_000, batch(1, adopted=(submit.rid,), events=(event,), frames=(("g1", frame),)))).status == "ok"
        message = await channel.get_message(ignore_subscribe_messages=True, timeout=1)
        assert message is not None
        assert message["data"] == frame
    assert (await broker.request(submit.rid)).journal == "w1"
    assert await broker.read_journal("w1", 1) == [(1, [event])]
    assert await broker.finish("w1", [Ended(submit.rid, delivery.epoch)])
    assert await remaining(broker) == {"boot", "bell", "workers", "journal:w1", f"req:{submit.rid.hex()}"}
    assert 0 < await broker.redis.ttl(broker.cell.req(submit.rid)) <= 60


async def test_submit_is_idempotent_and_bounded(broker: Broker) -> None:
    submit = request()
    assert (await broker.submit(submit, 64, max_waiting=2)).status == "ok"
    again = await broker.submit(submit, 64, max_waiting=2)
    assert (again.status, again.state) == ("known", "queued")
    assert (await broker.submit(request(), 64, max_waiting=2)).status == "ok"
    full = await broker.submit(request(), 64, max_waiting=2)
    assert (full.status, full.waiting) == ("full", 2)
    assert await broker.redis.xlen(broker.cell.lane(64)) == 2


async def test_running_entries_do_not_count_as_waiting(broker: Broker) -> None:
    await broker.join("w1", 10_000)
    await broker.submit(request(), 64, max_waiting=1)
    assert len((await pull(broker, "w1")).deliveries) == 1
    assert (await broker.submit(request(), 64, max_waiting=1)).status == "ok"


async def test_a_lost_pull_reply_costs_one_round_trip(broker: Broker) -> None:
    await broker.join("w1", 10_000)
    submits = [request() for _ in range(3)]
    for submit in submits:
        await broker.submit(submit, 64)
    lost = await pull(broker, "w1")
    again = await pull(broker, "w1", held=0)
    assert again.status == "owned"
    assert [(d.rid, d.epoch) for d in again.deliveries] == [(d.rid, d.epoch) for d in lost.deliveries]
    assert {d.kind for d in again.deliveries} == {"owned"}
    assert (await pull(broker, "w1", held=3)).status == "ok"


async def test_no_new_work_below_the_minimum(broker: Broker) -> None:
    await broker.join("w1", 10_000)
    await broker.submit(request(), 64)
    assert (await pull(broker, "w1", minimum=2)).deliveries == ()
    await broker.submit(request(), 64)
    assert len((await pull(broker, "w1", minimum=2)).deliveries) == 2


async def test_a_released_worker_is_taken_over_from_its_journal_and_can_write_nothing(broker: Broker) -> None:
    await broker.join("w1", 10_000)
    await broker.join("w2", 10_000)
    submit = request()
    await broker.submit(submit, 64)
    (first,) = (await pull(broker, "w1")).deliveries
    event = Event(submit.rid, first.epoch, 0, 7, -0.5, " a", Flag.FIRST)
    await broker.flush("w1", 10_000, batch(1, adopted=(submit.rid,), events=(event,)))
    assert await broker.release("w1", "crashed", [submit.rid])
    assert not await broker.release("w1", "crashed", [submit.rid])
    (second,) = (await pull(broker, "w2")).deliveries
    assert (second.kind, second.journal, second.journal_from, second.crashes) == ("taken", "w1", 1, 1)
    assert second.epoch > first.epoch
    assert (await broker.request(submit.rid)).journal == "w1", "the pointer moves with the first flush, not with the pull"
    assert (await broker.flush("w1", 10_000, batch(2))).status == "fenced"
    assert not await broker.finish("w1", [Ended(submit.rid, first.epoch)])
    assert (await pull(broker, "w1")).status == "fenced"
    await broker.flush("w2", 10_000, batch(1, adopted=(submit.rid,), progressed=(submit.rid,)))
    assert await broker.redis.hget(broker.cell.req(submit.rid), "crashes") == b"0"
    assert await broker.finish("w2", [Ended(submit.rid, second.epoch)])
    await pull(broker, "w2")
    assert await remaining(broker) == {"boot", "bell", "workers", "journal:w1", "journal:w2", f"req:{submit.rid.hex()}"}
    assert 0 < await broker.redis.ttl(broker.cell.journal("w1")) <= 3600


async def test_a_cold_worker_that_dies_under_its_supervisor_counts_a_crash(broker: Broker) -> None:
    await broker.join("w1", 600_000, cold=True)
    await broker.join("w2", 10_000)
    submit = request()
    await broker.submit(submit, 64)
    await pull(broker, "w1")
    await broker.release("w1", "crashed", [submit.rid])
    (taken,) = (await pull(broker, "w2")).deliveries
    assert (taken.kind, taken.crashes) == ("taken", 1)
    assert not await broker.redis.exists(broker.cell.cold)


async def test_a_clean_release_counts_no_crash(broker: Broker) -> None:
    for worker in ("w1", "w2"):
        await broker.join(worker, 10_000)
    await broker.submit(request(), 64)
    await pull(broker, "w1")
    await broker.release("w1", "clean")
    (taken,) = (await pull(broker, "w2")).deliveries
    assert (taken.kind, taken.crashes) == ("taken", 0)


@pytest.mark.parametrize(("cold", "crashes"), [(False, 1), (True, 0)])
async def test_an_expired_lease_is_taken_only_by_a_worker_that_may(broker: Broker, cold: bool, crashes: int) -> None:
    """It counts as a crash, unless the worker was compiling while it served."""
    await broker.join("w1", 1, cold)
    await broker.join("w2", 10_000)
    await broker.submit(request(), 64)
    (first,) = (await pull(broker, "w1")).deliveries
    expiry = await broker.redis.zscore(broker.cell.workers, "w1")
    async with asyncio.timeout(5):
        while (now := await broker.redis.time())[0] * 1000 + now[1] // 1000 <= expiry:
            await asyncio.sleep(0.001)
    assert (await pull(broker, "w2")).deliveries == ()
    (taken,) = (await pull(broker, "w2", may_expire=True)).deliveries
    assert (taken.rid, taken.kind, taken.crashes) == (first.rid, "taken", crashes)
    assert (await broker.flush("w1", 10_000, batch(1))).status == "fenced"
    assert not await broker.redis.exists(broker.cell.cold)


async def test_an_orphan_keeps_its_name_until_it_owns_nothing(broker: Broker) -> None:
    for worker in ("w1", "w2"):
        await broker.join(worker, 10_000)
    for _ in range(3):
        await broker.submit(request(), 64)
    await pull(broker, "w1")
    await broker.release("w1", "crashed")
    assert len((await pull(broker, "w2", maximum=2)).deliveries) == 2
    assert await broker.redis.hexists(broker.cell.orphans, "w1")
    assert len((await pull(broker, "w2", held=2)).deliveries) == 1
    assert not await broker.redis.exists(broker.cell.orphans)
    consumers = await broker.redis.xinfo_consumers(broker.cell.lane(64), "farm")
    assert [consumer["name"] for consumer in consumers] == [b"w2"]


async def test_a_repeated_flush_is_written_once_and_keeps_the_mail(broker: Broker) -> None:
    await broker.join("w1", 10_000)
    submit = request()
    await broker.submit(submit, 64)
    (delivery,) = (await pull(broker, "w1")).deliveries
    assert await broker.cancel([submit.rid]) == ["mailed"]
    letter = f"cancel {submit.rid.hex()} {delivery.epoch}"
    assert (await broker.flush("w1", 10_000, batch(1))).mail == (letter,)
    assert (await broker.flush("w1", 10_000, batch(1))).mail == (letter,)
    assert (await broker.flush("w1", 10_000, batch(2, n_mail=1))).mail == ()
    assert (await broker.flush("w1", 10_000, batch(2, n_mail=1))).status == "ok"
    assert [step for step, _ in await broker.read_journal("w1", 0)] == [1, 2]


async def test_a_shorter_journal_is_noticed(broker: Broker) -> None:
    await broker.join("w1", 10_000)
    for step in (1, 2):
        await broker.flush("w1", 10_000, batch(step))
    await broker.redis.xdel(broker.cell.journal("w1"), "2-0")
    assert (await broker.flush("w1", 10_000, batch(3))).status == "short"
    assert (await broker.flush("w1", 10_000, batch(3, last=1))).status == "ok"


async def test_cancel_removes_a_queued_request_at_once(broker: Broker) -> None:
    submit = request()
    await broker.submit(submit, 64)
    assert await broker.cancel([submit.rid]) == ["queued"]
    assert await broker.cancel([submit.rid]) == ["ended"]
    assert await broker.cancel([new_rid()]) == ["unknown"]
    assert await remaining(broker) == {"boot", "bell", f"req:{submit.rid.hex()}"}


async def test_a_taker_learns_that_a_request_was_cancelled(broker: Broker) -> None:
    for worker in ("w1", "w2"):
        await broker.join(worker, 10_000)
    submit = request()
    await broker.submit(submit, 64)
    await pull(broker, "w1")
    await broker.release("w1", "clean")
    assert await broker.cancel([submit.rid]) == ["mailed"]
    (taken,) = (await pull(broker, "w2")).deliveries
    assert taken.kind == "cancelled"
    assert not await broker.redis.exists(broker.cell.mail("w1"))


async def test_an_entry_without_a_record_is_dead_lettered_and_told(broker: Broker) -> None:
    await broker.join("w1", 10_000)
    submit = request()
    await broker.submit(submit, 64)
    await broker.redis.delete(broker.cell.req(submit.rid))
    (corrupt,) = (await pull(broker, "w1")).deliveries
    assert (corrupt.rid, corrupt.kind, corrupt.gateways) == (submit.rid, "corrupt", ("g1",))
    assert await broker.redis.xlen(broker.cell.dead) == 1
    assert (await pull(broker, "w1")).status == "ok"


async def test_deadlines_are_judged_by_the_server(broker: Broker) -> None:
    await broker.join("w1", 10_000)
    await broker.submit(request(ttl_ms=1), 64)
    await broker.submit(request(ttl_ms=60_000), 64)
    await broker.submit(request(), 64)
    seconds, micros = await broker.redis.time()
    submitted_ms = seconds * 1000 + micros // 1000
    while (now := await broker.redis.time())[0] * 1000 + now[1] // 1000 < submitted_ms + 2:
        continue
    late, early, unbounded = (await pull(broker, "w1")).deliveries
    assert late.remaining_ms == -1
    assert 50_000 < early.remaining_ms <= 60_000
    assert unbounded.remaining_ms == 0


async def test_a_replaced_request_starts_again_above_its_floor(broker: Broker) -> None:
    await broker.join("w1", 10_000)
    submit = request()
    await broker.submit(submit, 64)
    (first,) = (await pull(broker, "w1")).deliveries
    floor = first.epoch + 10_000_000
    assert (await broker.submit(submit._replace(epoch_floor=floor), 64, how="replace")).status == "ok"
    assert (await broker.flush("w1", 10_000, batch(1))).mail == (f"cancel {submit.rid.hex()} {first.epoch}",)
    assert await broker.finish("w1", [Ended(submit.rid, first.epoch)]), "the old epoch ends nothing"
    (second,) = (await pull(broker, "w1")).deliveries
    assert second.epoch == floor + 1


async def test_what_runs_finishes_when_memory_is_full(broker: Broker) -> None:
    await broker.join("w1", 10_000)
    submit = request()
    await broker.submit(submit, 64)
    (delivery,) = (await pull(broker, "w1")).deliveries
    await broker.redis.config_set("maxmemory", "1")
    try:
        with pytest.raises(OutOfMemoryError):
            await broker.submit(request(), 64)
        event = Event(submit.rid, delivery.epoch, 0, 7, -0.5, " a", Flag.FIRST)
        assert (await broker.flush("w1", 10_000, batch(1, adopted=(submit.rid,), events=(event,)))).status == "ok"
        assert (await pull(broker, "w1", held=1)).status == "ok"
        assert await broker.cancel([submit.rid]) == ["mailed"]
        assert await broker.finish("w1", [Ended(submit.rid, delivery.epoch)])
        assert await broker.release("w1", "clean")
    finally:
        await broker.redis.config_set("maxmemory", "0")


async def test_census_shows_whose_lease_holds(broker: Broker) -> None:
    assert (await broker.census()).boot == ""
    await broker.join("w1", 10_000)
    await broker.cancel([], "g1")
    census = await broker.census()
    assert census.boot
    assert census.workers == ()
    assert await broker.redis.zscore(broker.cell.gateways, "g1")
