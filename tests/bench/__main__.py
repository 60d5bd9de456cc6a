"""`make bench`: every figure with its bar, as ratios to a baseline of the same run where a speed is meant."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.bench import engine, sampling, serving, templating, validation, waste
from tests.bench.figures import Figure

BENCHES: tuple[Callable[[Path], list[Figure]], ...] = (
    serving.first_token, serving.commands, serving.idle, validation.validation, templating.templating, sampling.sampling,
    waste.waste, engine.farm_ratio,
)  # fmt: skip


def main() -> int:
    figures = []
    for bench in BENCHES:
        if len(sys.argv) > 1 and bench.__name__ not in sys.argv[1:]:
            continue
        with tempfile.TemporaryDirectory() as folder:
            for figure in bench(Path(folder)):
                print(figure.row(), flush=True)
                figures.append(figure)
    missed = [figure for figure in figures if not figure.holds]
    print(f"{len(figures) - len(missed)} of {len(figures)} bars hold")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
