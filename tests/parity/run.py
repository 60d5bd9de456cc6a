"""`python -m tests.parity.run`: greedy fp32 parity of the CPU engine with `transformers.generate`, for every type.

Writes the results to the table that `workers/supported.py` reads; exit status 1 when a type differs.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import transformers

from tests.parity.drive import drive, expected, plan, tiny_engine
from tests.parity.tiny import CONFIGS, tiny_model
from workers.supported import TABLE


def parity(model_type: str) -> dict[str, str]:
    """One row of the table."""
    model = tiny_model(model_type)
    jobs = plan()
    with tempfile.TemporaryDirectory() as folder:
        drive(tiny_engine(model, Path(folder)), jobs)
    n_different = sum(job.tokens != expected(model, job) for job in jobs)
    result = f"{n_different} of {len(jobs)} rows differ" if n_different else "equal"
    return {"class": type(model).__name__, "dtype": "float32", "result": result}


def main() -> int:
    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.utils.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    types = {}
    for model_type in sorted(CONFIGS):
        types[model_type] = parity(model_type)
        print(f"{model_type:12} {types[model_type]['class']:24} {types[model_type]['result']}", flush=True)
    TABLE.write_text(json.dumps({"transformers": transformers.__version__, "types": types}, indent=1) + "\n")
    return int(any(row["result"] != "equal" for row in types.values()))


if __name__ == "__main__":
    sys.exit(main())
