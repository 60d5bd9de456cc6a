"""What a worker says about its speed: moving averages for its record and for Retry-After."""

from __future__ import annotations

from time import monotonic

SMOOTH = 0.1


class Load:
    """Averages of step and prefill time, and finished requests per second over the time since the last report."""

    def __init__(self) -> None:
        self.step_ms = 0.0
        self.prefill_ms = 0.0
        self.finished_per_s = 0.0
        self.n_finished = 0
        self._reported = (monotonic(), 0)

    def spend(self, seconds: float, prefill: bool) -> None:
        name = "prefill_ms" if prefill else "step_ms"
        before = getattr(self, name)
        setattr(self, name, seconds * 1000 if before == 0 else before + SMOOTH * (seconds * 1000 - before))

    def report(self) -> None:
        """Once a second: updates the rate of finished requests."""
        now_s, n_finished = monotonic(), self.n_finished
        then_s, n_before = self._reported
        rate = (n_finished - n_before) / max(1e-3, now_s - then_s)
        self.finished_per_s += 0.3 * (rate - self.finished_per_s)
        self._reported = (now_s, n_finished)
