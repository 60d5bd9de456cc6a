"""Signs of life of a start that takes minutes. They come from the event loop: a device call that compiles does not stop them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic, time

from common.metrics import WorkerMetrics

log = logging.getLogger(__name__)

BEAT_S = 1.0
SAY_EVERY_S = 30.0


@asynccontextmanager
async def heartbeat(doing: Callable[[], tuple[str, float]], metrics: WorkerMetrics) -> AsyncIterator[None]:
    """Sets the gauges once a second and writes a line twice a minute; `doing` says what and the fraction done."""
    beating = asyncio.create_task(_beat(doing, metrics))
    try:
        yield
    finally:
        beating.cancel()
    metrics.start_progress.set(1.0)


async def _beat(doing: Callable[[], tuple[str, float]], metrics: WorkerMetrics) -> None:
    started_s = said_s = monotonic()
    while True:
        what, done = doing()
        metrics.start_progress.set(done)
        metrics.start_heartbeat.set(time())
        if monotonic() - said_s >= SAY_EVERY_S:
            said_s = monotonic()
            log.info("Still starting after %.0f s: %s %.0f %%", said_s - started_s, what, 100 * done)
        await asyncio.sleep(BEAT_S)
