"""The farm as a gateway sees it now, for operators: read when somebody asks, never on a request's way."""

from __future__ import annotations

import asyncio

from redis.exceptions import RedisError

from common.broker import UNREACHABLE, LaneDepth
from common.keys import lane_name
from common.metrics import FarmView, LaneView
from gateway.relay import Relay

PATIENCE_S = 0.5


async def view(relay: Relay) -> FarmView:
    """Workers and memory as of the last second, lanes as of now; without lanes when the broker does not answer in time."""
    workers = relay.workers()
    serving = [worker for worker in workers if worker.serves]
    n_cold = sum(worker.state == "cold" for worker in workers)
    seen = FarmView(
        ready=len(serving) - n_cold,
        cold=n_cold,
        unready=len(workers) - len(serving),
        slots=sum(worker.batch_size for worker in serving),
        free_slots=sum(worker.free for worker in serving),
        broker_bytes=relay.broker_bytes[0],
        broker_max_bytes=relay.broker_bytes[1],
    )
    try:
        async with asyncio.timeout(PATIENCE_S):
            return seen._replace(lanes=await _lanes(relay), broker_up=await relay.broker_answers())
    except (*UNREACHABLE, RedisError, TimeoutError):
        return seen


async def _lanes(relay: Relay) -> list[LaneView]:
    """All lanes that workers serve, also empty ones, and all that hold requests."""
    lanes = []
    for model in relay.models():
        depths = {lane_name(length): LaneDepth(lane_name(length), 0, 0, 0.0) for length in model.lanes}
        depths |= {depth.lane: depth for depth in await model.cell.broker.depths()}
        lanes += [LaneView(model.name, *depth) for depth in depths.values()]
    return lanes
