"""What the chaos tests wait for and what they require."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from redis import Redis

from common.config import Settings
from tests.chaos.streams import Shown
from tests.farm import Farm
from workers.engines import create


async def soon(condition: Callable[[], Any], timeout_s: float = 15) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():
            await asyncio.sleep(0.005)


def assert_whole(farm: Farm, shown: Sequence[Shown], mended: bool = False) -> None:
    """Consistent, complete, and, unless `mended`, not by luck: no gateway had to mend what the workers should have kept right."""
    faults = [fault for one in shown for fault in one.faults(farm.worker_ids())]
    if not mended:
        faults += [f"{name} {farm.metric(name)}" for name in ("farm_divergences_total", "farm_resubmitted_total") if farm.metric(name)]
    assert not faults, "\n".join([*faults[:10], farm.logs()])


def rows_per_prefill(farm: Farm) -> int:
    """How many rows the farm's engine takes in one prefill: what a batch costs to fill, and a takeover, grows as this shrinks."""
    engine = create(Settings.from_env(farm.env), farm.env["MODEL_ID"], "")
    engine.load(lambda _what, _done: None)
    return engine.shape.max_rows


def keys_left(farm: Farm) -> set[str]:
    """Names without the cell's tag and without the ids in them."""
    keys = Redis.from_url(farm.server.url).keys("*")
    return {key.decode().rpartition("}")[2].split(":")[0] for key in keys}


def tokens_served(farm: Farm) -> int:
    """Steps in all journals so far: how the tests know that streams run."""
    redis = Redis.from_url(farm.server.url)
    return sum(int(redis.xlen(key)) for key in redis.keys("*journal:*"))
