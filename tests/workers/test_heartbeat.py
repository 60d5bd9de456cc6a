"""A start shows life while its device thread does not come back."""

from __future__ import annotations

import logging

import anyio
import pytest

from common import metrics
from workers import heartbeat

pytestmark = pytest.mark.anyio


async def test_gauges_and_log_lines_go_on(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(heartbeat, "BEAT_S", 0.01)
    monkeypatch.setattr(heartbeat, "SAY_EVERY_S", 0.02)
    caplog.set_level(logging.INFO)
    numbers = metrics.worker()

    def read(name: str) -> float:
        value = numbers.registry.get_sample_value(name)
        assert value is not None
        return value

    with anyio.fail_after(5):
        async with heartbeat.heartbeat(lambda: ("warm-up", 0.25), numbers):
            while read("farm_start_progress") != 0.25:
                await anyio.sleep(0.01)
            first_s = read("farm_start_heartbeat_seconds")
            while read("farm_start_heartbeat_seconds") <= first_s or "warm-up 25 %" not in caplog.text:
                await anyio.sleep(0.01)
    assert read("farm_start_progress") == 1.0
