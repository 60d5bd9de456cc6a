"""What is different for a worker that serves before its shapes are compiled: its lease is minutes long, and people shall know."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NoReturn

from common.broker import UNREACHABLE

log = logging.getLogger(__name__)

REMIND_EVERY_S = 60.0
PARTING_S = 1.0


class Reminder:
    """Says once a minute that a worker is cold, and how to have it otherwise."""

    def __init__(self) -> None:
        self._next_s = 0.0

    def remind(self, worker: str, now_s: float) -> None:
        if now_s < self._next_s:
            return
        self._next_s = now_s + REMIND_EVERY_S
        log.warning(
            "Cold worker=%s: a shape compiles when it is first met, up to minutes, while its requests wait; "
            "without VLLM_SKIP_WARMUP=true and WARMUP_ENABLED=false all shapes compile before it serves",
            worker,
        )


async def hand_back_and_exit(release: Callable[[], Awaitable[bool]]) -> NoReturn:
    """Ends the process of a dead supervisor, whatever its device does: nobody else would hand back what a long lease keeps."""
    with suppress(*UNREACHABLE, TimeoutError):
        async with asyncio.timeout(PARTING_S):
            await release()
    os._exit(1)
