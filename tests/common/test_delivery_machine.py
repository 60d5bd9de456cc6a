"""The delivery rules as a state machine against a real server: any order of deaths, lost replies and zombies (design §8)."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from common.broker import Batch, Broker, Ended, connect
from common.keys import Cell, lane_name
from common.messages import Event, Submit, encode_events, new_rid
from tests.servers import Server

LANES = (64, 128)
NAMES = [lane_name(length) for length in LANES]


class WorkerModel:
    """What one worker id knows: epochs of what it holds, what it has journaled, its steps."""

    def __init__(self) -> None:
        self.held: dict[bytes, int] = {}
        self.journaled: set[bytes] = set()
        self.step = 0
        self.fenced = False


class Delivery(RuleBasedStateMachine):
    server: Server
    workers = Bundle("workers")
    requests = Bundle("requests")

    @initialize()
    def start(self) -> None:
        self.runner = asyncio.Runner()
        self.redis = connect(self.server.url)
        self.broker = Broker(self.redis, Cell("farm", "model", "fp"))
        self.do(self.redis.flushall())
        self.models: dict[str, WorkerModel] = {}
        self.pointer: dict[bytes, str] = {}
        self.open: set[bytes] = set()
        self.cancelled: set[bytes] = set()

    def do(self, work: Any) -> Any:
        return self.runner.run(work)

    def take(self, name: str, pulled: Any) -> None:
        model = self.models[name]
        for delivery in pulled.deliveries:
            if delivery.kind == "owned":
                assert model.held.get(delivery.rid, delivery.epoch) == delivery.epoch, "an owner keeps its epoch"
            else:
                others = [other.held[delivery.rid] for other in self.models.values() if delivery.rid in other.held]
                assert all(delivery.epoch > epoch for epoch in others), "epochs rise with each delivery"
            assert delivery.journal == self.pointer.get(delivery.rid, ""), "the pointer moved without a flush"
            assert (delivery.kind == "cancelled") == (delivery.rid in self.cancelled)
            model.held[delivery.rid] = delivery.epoch

    @rule(target=workers, cold=st.booleans())
    def join(self, cold: bool) -> str:
        name = f"w{len(self.models)}"
        self.models[name] = WorkerModel()
        self.do(self.broker.join(name, 1_000_000, cold))
        return name

    @rule(target=requests, lane=st.sampled_from(LANES))
    def submit(self, lane: int) -> bytes:
        rid = new_rid()
        assert self.do(self.broker.submit(Submit(1, rid, (1, 2), 4, gateway="g"), lane)).status == "ok"
        assert self.do(self.broker.submit(Submit(1, rid, (1, 2), 4, gateway="g"), lane)).status == "known"
        self.open.add(rid)
        return rid

    @rule(name=workers, maximum=st.integers(1, 3), lost=st.booleans(), may_expire=st.booleans())
    def pull(self, name: str, maximum: int, lost: bool, may_expire: bool) -> None:
        model = self.models[name]
        pulled = self.do(self.broker.pull(
            name, may_expire=may_expire, held=len(model.held), minimum=0, maximum=maximum, lanes=NAMES
        ))  # fmt: skip
        if pulled.status == "fenced":
            assert model.fenced or not self.alive(name)
            return
        if may_expire:
            self.note_expired()
        if lost:
            again = self.do(self.broker.pull(
                name, may_expire=False, held=len(model.held), minimum=0, maximum=maximum, lanes=NAMES
            ))  # fmt: skip
            expected = {delivery.rid for delivery in pulled.deliveries}
            if expected:
                assert again.status == "owned"
                assert {d.rid for d in again.deliveries} == expected | set(model.held)
        self.take(name, pulled)

    @rule(name=workers, data=st.data())
    def flush(self, name: str, data: st.DataObject) -> None:
        model = self.models[name]
        adopted = tuple(data.draw(st.lists(st.sampled_from(sorted(model.held)), unique=True))) if model.held else ()
        model.step += 1
        events = [Event(rid, model.held[rid], 0, 7, -0.5, "a") for rid in adopted]
        batch = Batch(model.step, model.step - 1, 0, encode_events(events), 0, b"", adopted, (), ())
        length = self.do(self.redis.xlen(self.broker.cell.journal(name)))
        flushed = self.do(self.broker.flush(name, 1_000_000, batch))
        if not self.alive(name):
            assert flushed.status == "fenced"
            assert self.do(self.redis.xlen(self.broker.cell.journal(name))) == length, "a fenced worker wrote"
            return
        assert flushed.status == "ok"
        for rid in adopted:
            self.pointer[rid] = name
            model.journaled.add(rid)

    @rule(name=workers, data=st.data())
    def finish(self, name: str, data: st.DataObject) -> None:
        model = self.models[name]
        if not model.held:
            return
        rid = data.draw(st.sampled_from(sorted(model.held)))
        done = self.do(self.broker.finish(name, [Ended(rid, model.held[rid])]))
        assert done == self.alive(name)
        if done:
            del model.held[rid]
            self.open.discard(rid)

    @rule(rid=consumes(requests))
    def cancel(self, rid: bytes) -> None:
        (state,) = self.do(self.broker.cancel([rid]))
        if state == "queued":
            self.open.discard(rid)
        elif state == "mailed":
            self.cancelled.add(rid)
        else:
            assert rid not in self.open

    @rule(name=workers, how=st.sampled_from(["crashed", "clean"]))
    def die(self, name: str, how: str) -> None:
        assert self.do(self.broker.release(name, how)) == self.alive_before(name)
        self.models[name].fenced = True

    @rule(name=workers)
    @precondition(lambda self: self.models)
    def lose_lease(self, name: str) -> None:
        self.do(self.redis.zadd(self.broker.cell.workers, {name: 1}, xx=True))

    def alive_before(self, name: str) -> bool:
        return not self.models[name].fenced

    def alive(self, name: str) -> bool:
        return self.do(self.redis.zscore(self.broker.cell.workers, name)) is not None

    def note_expired(self) -> None:
        for name, model in self.models.items():
            model.fenced = model.fenced or not self.alive(name)

    @invariant()
    def who_is_forgotten_owns_nothing(self) -> None:
        known = {name.decode() for name in self.do(self.redis.zrange(self.broker.cell.workers, 0, -1))}
        known |= {name.decode() for name in self.do(self.redis.hkeys(self.broker.cell.orphans))}
        for length in LANES:
            lane = self.broker.cell.lane(length)
            if self.do(self.redis.exists(lane)):
                pending = self.do(self.redis.xpending(lane, "farm"))["consumers"]
                assert {consumer["name"].decode() for consumer in pending} <= known

    def teardown(self) -> None:
        """One last worker takes and ends everything: nothing is lost and no key of a request stays for ever."""
        self.models["last"] = WorkerModel()
        self.do(self.broker.join("last", 1_000_000))
        for name in list(self.models):
            if name != "last" and self.alive(name):
                self.do(self.broker.release(name, "clean"))
        while got := self.do(self.broker.pull("last", may_expire=True, held=0, minimum=0, maximum=10_000, lanes=NAMES)).deliveries:
            self.do(self.broker.finish("last", [Ended(delivery.rid, delivery.epoch) for delivery in got]))
            self.open -= {delivery.rid for delivery in got}
        assert not self.open
        tag = self.broker.cell.tag
        left = {key.decode().removeprefix(tag) for key in self.do(self.redis.keys("*"))}
        stay = {"boot", "bell", "workers"}
        for key in left - stay:
            assert key.startswith(("req:", "journal:")), key
            assert key == "journal:last" or 0 < self.do(self.redis.ttl(tag + key)) <= 3600, key
        self.do(self.redis.aclose())
        self.runner.close()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder)).start()
        yield server
        server.stop()


def test_any_history_keeps_the_rules(server: Server) -> None:
    Delivery.server = server
    rules = settings(
        max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck), phases=[Phase.generate]
    )  # fmt: skip
    run_state_machine_as_test(Delivery, settings=rules)  # type: ignore[no-untyped-call]
