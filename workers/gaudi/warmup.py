"""Runs every shape before the worker serves, and finds out which prefills the card's memory holds (gaudi.md §5.5)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from time import monotonic
from typing import Protocol

from common.errors import StartError
from common.shapes import Bucket
from workers.engines.base import PrefillRow, Progress, Step
from workers.gaudi.buckets import Plan
from workers.gaudi.library import Library
from workers.gaudi.memory import fits, prefill_bytes
from workers.gaudi.refusals import OUT_OF_MEMORY, is_out_of_memory
from workers.model_files import read_json

log = logging.getLogger(__name__)

PAD = 0


def area(pair: Bucket) -> tuple[int, int]:
    """What orders pairs from small to large."""
    return pair.rows * pair.length, pair.length


class Warmed(Protocol):
    """The engine's functions that serve."""

    precision_bytes: int
    trims: bool
    fused: bool

    @property
    def columns(self) -> tuple[int | None, ...]: ...

    def prefill(self, bucket: Bucket, rows: Sequence[PrefillRow]) -> Step: ...
    def step_over(self, n_columns: int | None) -> None: ...
    def compact(self) -> None: ...
    def release(self, slot: int) -> None: ...
    def scrub(self, slot: int) -> None: ...


class Warmup:
    """One warm-up: the largest prefill that memory allows, the other prefills from small to large, the steps, compaction, scrubbing."""

    def __init__(self, engine: Warmed, plan: Plan, library: Library, folder: Path) -> None:
        self._engine = engine
        self._plan = plan
        self._library = library
        self._config = read_json(folder, "config.json")
        self._n_shapes = 0
        self.slowest_s = 0.0
        """The longest call of a shape that was compiled before."""

    def run(self, progress: Progress) -> tuple[Bucket, ...]:
        """The prefill pairs that may be used from now on. Raises `StartError` when none is left."""
        engine, started_s = self._engine, monotonic()
        warmed: list[Bucket] = []
        n_planned = len(self._plan.prefills) + len(engine.columns) + 2

        def ran(what: str, run: Callable[[], object]) -> None:
            before_s, n_before = monotonic(), self._library.n_compilations()
            self._timed(run)  # compiles and captures
            self.slowest_s = max(self.slowest_s, self._timed(run))
            self._n_shapes += 1
            n_left = n_planned - self._n_shapes
            log.info(
                "Warmed %s: %.1f s, %d compiled, %.1f GiB free, %d shapes and about %.0f s left", what, monotonic() - before_s,
                self._library.n_compilations() - n_before, self._library.memory().free / 2**30, n_left,
                n_left * (monotonic() - started_s) / self._n_shapes,
            )  # fmt: skip
            progress("warm-up", self._n_shapes / n_planned)

        for pair in self._order():
            if not self._fits(pair):
                self._leave_out(pair, "its estimate does not fit")
                n_planned -= 1
                continue
            try:
                ran(f"prefill of {pair.rows} × {pair.length}", lambda pair=pair: self._prefill(pair))  # type: ignore[misc]
                warmed.append(pair)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                self._leave_out(pair, "the card refused it")
                n_planned -= 1
        if not warmed:
            raise no_room(self._plan)
        try:
            for n_columns in sorted(engine.columns, key=lambda n: n or 0):
                ran(f"step over {n_columns or self._plan.max_length} columns", lambda n=n_columns: engine.step_over(n))  # type: ignore[misc]
            ran("compaction", engine.compact)
            for slot in range(self._plan.batch_size):
                engine.scrub(slot)
            ran("scrubbing", lambda: engine.scrub(0))
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise StartError(
                f"out of device memory: the steps do not fit beside {len(warmed)} prefills; lower --max-batch-prefill-tokens, "
                "--max-batch-size or --max-total-tokens, or set LIMIT_HPU_GRAPH=true",
                OUT_OF_MEMORY,
            ) from error
        return self._still_running(warmed)

    def _still_running(self, warmed: list[Bucket]) -> tuple[Bucket, ...]:
        """Those that run beside all graphs: the largest once more, and the next one when that fails."""
        ascending = sorted(warmed, key=area)
        while ascending:
            try:
                self._prefill(ascending[-1])
                return tuple(pair for pair in self._plan.prefills if pair in ascending)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                self._leave_out(ascending.pop(), "the card refused it beside its graphs")
        raise no_room(self._plan)

    def _timed(self, run: Callable[[], object]) -> float:
        started_s = monotonic()
        run()
        self._library.synchronize()
        return monotonic() - started_s

    def _order(self) -> Iterator[Bucket]:
        """The largest that fits comes first: it shows what the card's memory allows."""
        ascending = sorted(self._plan.prefills, key=area)
        largest = next((pair for pair in reversed(ascending) if self._fits(pair)), None)
        if largest is not None:
            yield largest
        yield from (pair for pair in ascending if pair != largest)

    def _fits(self, pair: Bucket) -> bool:
        engine = self._engine
        needed = prefill_bytes(self._config, pair, engine.precision_bytes, engine.fused, engine.trims)
        return fits(needed, self._library.memory())

    def _leave_out(self, pair: Bucket, why: str) -> None:
        log.warning(
            "No prefill of %d × %d tokens: %s in the %.1f GiB that are free; lower --max-batch-size or --max-total-tokens to have it",
            pair.rows, pair.length, why, self._library.memory().free / 2**30,
        )  # fmt: skip

    def _prefill(self, pair: Bucket) -> None:
        rows = [PrefillRow(slot % self._plan.batch_size, [PAD]) for slot in range(pair.rows)]
        self._engine.prefill(pair, rows)
        for row in rows:
            self._engine.release(row.slot)


def no_room(plan: Plan) -> StartError:
    """For a card on which no prompt could be computed."""
    smallest = min(plan.prefills, key=area)
    return StartError(
        f"out of device memory: not even a prefill of {smallest.rows} × {smallest.length} tokens fits beside the weights and the "
        f"cache of {plan.batch_size} × {plan.max_length}; lower --max-batch-size or --max-total-tokens",
        OUT_OF_MEMORY,
    )
