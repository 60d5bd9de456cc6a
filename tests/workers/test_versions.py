"""Entries of other releases: newer ones are handed back, garbage is a dead letter with one error (design §5)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgpack
import pytest
from redis import Redis

from common import scripts
from common.messages import VERSION, new_rid
from tests.farm import Farm, wait_for
from tests.servers import Server


@pytest.fixture
def farm(tmp_path: Path) -> Iterator[Farm]:
    server = Server(tmp_path).start()
    with Farm(tmp_path, server) as farm:
        farm.gateway()
        farm.worker()
        farm.wait_ready()
        yield farm
    server.stop()


def tag(redis: Redis) -> str:
    (key,) = redis.keys("*}workers")
    return key.decode().removesuffix("workers")


def queue(redis: Redis, message: bytes) -> str:
    rid = new_rid().hex()
    redis.eval(scripts.source("submit"), 1, tag(redis), rid, "L512:p1", message, "g", "", 0, 0, 0, "new", "boot", "")
    return rid


def test_an_entry_of_a_newer_release_is_handed_back(farm: Farm) -> None:
    redis = Redis.from_url(farm.server.url)
    rid = queue(redis, msgpack.packb((VERSION + 1, "whatever it means then")))
    wait_for(lambda: "Outdated worker=" in farm.workers[0].text(), 20, farm.logs)
    wait_for(lambda: len(farm.workers[0].ids()) == 2, 20, farm.logs)
    assert redis.hget(f"{tag(redis)}req:{rid}", "state") != b"ended"
    assert redis.xlen(f"{tag(redis)}lane:L512:p1") == 1
    assert not redis.exists(f"{tag(redis)}dead")


def test_an_entry_that_no_release_can_read_ends_with_one_error(farm: Farm) -> None:
    redis = Redis.from_url(farm.server.url)
    rid = queue(redis, b"\xc1 not a message")
    wait_for(lambda: redis.hget(f"{tag(redis)}req:{rid}", "state") == b"ended", 20, farm.logs)
    ((_, letter),) = redis.xrange(f"{tag(redis)}dead")
    assert (letter[b"rid"].decode(), letter[b"why"]) == (rid, b"cannot be read")
    assert len(farm.workers[0].ids()) == 1
