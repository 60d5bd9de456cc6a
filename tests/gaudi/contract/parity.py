"""Greedy tokens of our engine, through either way, against plain `transformers` in a process that optimum-habana did not change.

`python -m tests.gaudi.contract.parity FOLDER oracle NAME…` makes the models and what they should say, `… FOLDER RUN NAME…` runs them;
each leaves its results in `FOLDER`. The run `served` starts as a worker does; others do not ask the table: `stock`, and optimum-habana's
class with `fused` and `unfused` attention. A process has the classes of one way only.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace

import torch

from tests.farm import ROOT
from tests.gaudi.contract import tiny
from tests.gaudi.contract.tiny import LENGTH
from tests.parity.tiny import VOCAB_SIZE
from tests.schedule import Job, greedy, jobs, run
from workers.gaudi.models import HABANA, STOCK

EQUAL = "equal"
FULL = (16, 32)
"""Prompts that leave no pad in their bucket."""


def results(folder: Path, what: str, names: Iterable[str]) -> dict[str, str]:
    """Runs one of the programs above."""
    subprocess.run([sys.executable, "-m", __name__, str(folder), what, *names], cwd=ROOT, check=True)
    found: dict[str, str] = json.loads((folder / f"{what}.json").read_text())
    return found


def wanted(name: str) -> list[Job]:
    """The same requests each time; those that fill a bucket come first."""
    rng = random.Random(name)
    full = [Job([rng.randrange(2, VOCAB_SIZE) for _ in range(length)], 6) for length in FULL]
    return full + jobs(rng, 12, LENGTH, VOCAB_SIZE)


def expect(folder: Path, name: str) -> str:
    if name.startswith("deepseek_v2"):
        _round_routing()
    model = tiny.model(name)
    model.save_pretrained(folder / name)
    (folder / name / "tokens.json").write_text(json.dumps([greedy(model, job) for job in wanted(name)]))
    return EQUAL


def compare(folder: Path, name: str, what: str) -> str:
    """`equal`, how many rows differ, or how it fails."""
    from tests.gaudi.contract.real import Either, engine_over, started

    try:
        if what == "served":
            engine = started(folder / name)
        else:
            engine = engine_over(folder / name, STOCK if what == "stock" else HABANA, Either(fused=what == "fused"))
        n_compiled = engine._library.n_compilations()
        mine, rng = wanted(name), random.Random(name)
        for job in mine[: len(FULL)]:
            run(engine, [job], rng)
        run(engine, mine[len(FULL) :], rng)
    except (RuntimeError, TypeError, ValueError, KeyError, IndexError, AttributeError, AssertionError) as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
    if engine._library.n_compilations() != n_compiled or engine.ledger.n_unwarmed:
        return "it compiles while it serves"
    right = json.loads((folder / name / "tokens.json").read_text())
    n_different = sum(job.tokens != tokens for job, tokens in zip(mine, right, strict=True))
    return f"{n_different} of {len(mine)} rows differ" if n_different else EQUAL


def _round_routing() -> None:
    """optimum-habana computes this type's expert scores in bfloat16 whatever the model's precision is; so does the oracle, then."""
    from transformers.models.deepseek_v2 import modeling_deepseek_v2 as module

    def linear(hidden: torch.Tensor, weight: torch.Tensor, _bias: None) -> torch.Tensor:
        return torch.nn.functional.linear(hidden.bfloat16(), weight.bfloat16()).float()

    module.F = SimpleNamespace(linear=linear)


def main(folder: Path, what: str, names: list[str]) -> None:
    found = {}
    for name in names:
        found[name] = expect(folder, name) if what == "oracle" else compare(folder, name, what)
        print(f"{what:8} {name:24} {found[name]}", file=sys.stderr, flush=True)
    (folder / f"{what}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
