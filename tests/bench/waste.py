"""What padding costs: prompts of `mixed.jsonl` through the real plan and the real scheduler, on a simulated card.

`python -m tests.bench.waste > tests/bench/mixed.jsonl` makes the file: log-normal lengths, seed 8, medians 300 and 150 tokens.
"""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from common.config import Settings
from common.shapes import Shape
from tests.bench.figures import Figure
from workers.gaudi.buckets import Plan, plan
from workers.scheduler import Fresh, Idle, Knobs, Prefill, PrefillShare, demand, next_call

MIXED = Path(__file__).parent / "mixed.jsonl"
SEED, N_LINES = 8, 400
LEAST, MOST, MOST_TOTAL = 20, 3000, 4096

BAR = 0.30
ROWS = "32"
N_REQUESTS = 2000
LOADS_PER_S = {"light": 2.0, "medium": 5.0, "overload": 12.0}

PREFILL_S, TOKEN_S, STEP_S = 0.010, 45e-6, 0.020
"""Roughly an 8 B model on one card: a prefill takes the first and the second for each computed token. Waste hardly depends on them."""

SHAPE_S = 0.4
"""vLLM's documented warm-up of an 8 B model on Gaudi 2: 72 shapes in 30 s."""


class Request(NamedTuple):
    """Lengths in tokens."""

    prompt: int
    output: int


class Outcome(NamedTuple):
    waste: float
    occupancy: float
    """Rows in use ÷ rows, over all steps."""


def generate() -> Iterator[Request]:
    """The lines of `mixed.jsonl`."""
    source = random.Random(SEED)
    n_lines = 0
    while n_lines < N_LINES:
        prompt, output = round(source.lognormvariate(5.7, 1.0)), round(source.lognormvariate(5.0, 0.9))
        if min(prompt, output) >= LEAST and max(prompt, output) <= MOST and prompt + output <= MOST_TOTAL:
            n_lines += 1
            yield Request(prompt, output)


def read() -> list[Request]:
    """The committed lines."""
    return [Request(**json.loads(line)) for line in MIXED.read_text().splitlines()]


class Card:
    """A worker's loop without I/O: pulls, prefills and steps by the scheduler's word, on a clock of its own."""

    def __init__(self, shape: Shape, knobs: Knobs) -> None:
        self.now_s = 0.0
        self.n_real = self.n_computed = self.n_steps = self.n_row_steps = 0
        self._shape, self._knobs = shape, knobs
        self._share = PrefillShare()
        self._since_prefill = 0
        self._waiting: deque[Request] = deque()
        self._fresh: dict[int, Request] = {}
        self._left: dict[int, int] = {}  # slot → output tokens that are still to come

    def run(self, arrivals: Sequence[tuple[float, Request]]) -> Outcome:
        """Until all have ended. A pull is decided when a call starts, as in `workers.loop`, and placed before the next."""
        coming, pulled = deque(arrivals), list[Request]()
        while coming or self._waiting or pulled or self._fresh or self._left:
            while coming and coming[0][0] <= self.now_s:
                self._waiting.append(coming.popleft()[1])
            free = (slot for slot in range(self._shape.batch_size) if slot not in self._fresh and slot not in self._left)
            self._fresh |= dict(zip(free, pulled, strict=False))
            rows = [Fresh(slot, request.prompt) for slot, request in self._fresh.items()]
            call = next_call(rows, len(self._left), self._share.value, self._shape, self._knobs)
            pulled = self._pull()
            if isinstance(call, Idle):
                self.now_s = self.now_s if pulled else coming[0][0]
            elif isinstance(call, Prefill):
                self._prefill(call)
            else:
                self._step()
        return Outcome(1 - self.n_real / self.n_computed, self.n_row_steps / (self.n_steps * self._shape.batch_size))

    def _pull(self) -> list[Request]:
        n_free = self._shape.batch_size - len(self._fresh) - len(self._left)
        wanted = demand(n_free, len(self._left), len(self._fresh), self._since_prefill, self._share.value, self._shape, self._knobs)
        n = min(wanted.maximum, len(self._waiting)) if len(self._waiting) >= wanted.minimum else 0
        return [self._waiting.popleft() for _ in range(n)]

    def _prefill(self, call: Prefill) -> None:
        n_tokens = call.bucket.rows * call.bucket.length
        self.n_computed += n_tokens
        for slot in call.slots:
            request = self._fresh.pop(slot)
            self.n_real += request.prompt
            self._left[slot] = request.output - 1
        self._since_prefill = 0
        self._spend(PREFILL_S + n_tokens * TOKEN_S, prefill=True)

    def _step(self) -> None:
        self.n_steps += 1
        self.n_row_steps += len(self._left)
        self._left = {slot: n - 1 for slot, n in self._left.items() if n > 1}
        self._since_prefill += 1
        self._spend(STEP_S, prefill=False)

    def _spend(self, seconds: float, prefill: bool) -> None:
        self.now_s += seconds
        self._share.spend(seconds, prefill)


def simulate(made: Plan, rate_per_s: float) -> Outcome:
    """The lines over and over, at random times."""
    source, at_s, requests = random.Random(SEED), 0.0, read()
    arrivals = []
    for number in range(N_REQUESTS):
        at_s += source.expovariate(rate_per_s)
        arrivals.append((at_s, requests[number % len(requests)]))
    return Card(Shape(made.batch_size, made.max_length, made.prefills), Knobs()).run(arrivals)


def waste(_: Path) -> list[Figure]:
    """For our default and for TGI's factor, at each load; the default must hold the bar."""
    figures = []
    for name, env in (("default", {}), ("SEQ_LEN_EXPONENT_BASE=2", {"SEQ_LEN_EXPONENT_BASE": "2"})):
        made = plan(Settings.from_env({"FARM_BACKEND": "gaudi", "MAX_BATCH_SIZE": ROWS, **env}), MOST_TOTAL)
        n_shapes = len(made.prefills) + len(made.columns) + 2  # compaction and scrubbing
        for load, rate_per_s in LOADS_PER_S.items():
            outcome = simulate(made, rate_per_s)
            note = f"{outcome.occupancy:.0%} of the rows in use"
            figures.append(Figure(f"prefill padding, {name}, {load}", outcome.waste, BAR if not env else None, note=note))
        figures.append(Figure(f"warmed shapes, {name}", n_shapes, note=f"about {SHAPE_S * n_shapes:.0f} s for an 8 B model"))
    return figures


if __name__ == "__main__":
    for request in generate():
        print(json.dumps(request._asdict()))
