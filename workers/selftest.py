"""`tokenfarm worker --selftest`: checks a device against the CPU, prints a verdict, writes one JSON to attach to an issue."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from common.config import Settings, version
from common.errors import DeviceLost, StartError
from workers.engines import create
from workers.engines.base import Engine
from workers.hub import hub_environment
from workers.selftest_drive import Drive, graph_agreement, reference_agreement
from workers.weights import local_path

REPORT = "tokenfarm-selftest.json"
SOAK_S = 60.0
SOAK_REQUESTS = 200
LEAST_AGREEMENT = 0.99
"""Share of greedy tokens that the CPU finds best, or as good within rounding."""


@dataclass
class Report:
    """What was measured; `failures` decides the verdict."""

    version: str
    backend: str
    model: str
    host: str
    python: str
    batch_size: int = 0
    max_length: int = 0
    artifact: dict[str, Any] = field(default_factory=dict)
    load_s: float = 0.0
    warm_up_s: float = 0.0
    n_shapes: int = 0
    cpu_agreement: float | None = None
    graphs_agree: bool | None = None
    n_rounds: int = 0
    n_requests: int = 0
    n_unwarmed: int = 0
    tokens_per_s: float = 0.0
    prefill_ms: float = 0.0
    decode_ms: float = 0.0
    memory_bytes: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    verdict: str = "fail"


def selftest(settings: Settings, folder: Path, soak_s: float | None = None) -> Report:
    """Loads, warms up, compares with the CPU, tries every shape, soaks. Raises `StartError`; what fails later is in the report."""
    report = Report(version(), settings.backend, settings.name, platform.platform(), platform.python_version())
    engine = create(settings, str(folder), "selftest")
    report.load_s = _seconds(lambda: engine.load(_say))
    report.warm_up_s = _seconds(lambda: engine.warm_up(_say))
    report.batch_size, report.max_length, report.n_shapes = engine.shape.batch_size, engine.shape.max_length, len(engine.ledger)
    if (artifact := getattr(engine, "artifact", None)) is not None:
        report.artifact = artifact._asdict()
    try:
        _check(engine, folder, report, SOAK_S if soak_s is None else soak_s)
    except (RuntimeError, DeviceLost) as error:
        report.failures.append(f"{type(error).__name__}: {error}")
    report.verdict = "fail" if report.failures else "pass"
    return report


def _check(engine: Engine, folder: Path, report: Report, soak_s: float) -> None:
    drive = Drive(engine)
    drive.every_length()
    report.cpu_agreement = reference_agreement(drive, engine, folder)
    if report.cpu_agreement is not None and report.cpu_agreement < LEAST_AGREEMENT:
        report.failures.append(f"only {report.cpu_agreement:.1%} of the tokens are those of the CPU")
    report.graphs_agree = graph_agreement(drive, engine)
    if report.graphs_agree is False:
        report.failures.append("captured steps and uncaptured ones give different tokens")
    started_s = monotonic()
    while monotonic() - started_s < soak_s or not report.n_rounds or (soak_s and report.n_requests < SOAK_REQUESTS):
        report.failures += drive.round(report.n_rounds)
        report.n_rounds += 1
        report.n_requests += engine.shape.batch_size
        if report.failures:
            break
    report.prefill_ms, report.decode_ms = drive.prefill_ms, drive.decode_ms
    report.tokens_per_s = round(drive.n_tokens / drive.busy_s, 1)
    report.memory_bytes = getattr(engine, "device_memory", dict)()
    report.n_unwarmed = engine.ledger.take_unwarmed()
    if report.n_unwarmed:
        report.failures.append(f"{report.n_unwarmed} shapes were not warmed")


def main(settings: Settings) -> int:
    """Exit status 0 for a pass, 1 for a fail; `StartError`'s own when the engine does not start."""
    os.environ.update(hub_environment(settings))
    try:
        report = selftest(settings, local_path(settings, _say))
    except StartError as error:
        print(error, file=sys.stderr)
        return error.code
    Path(REPORT).write_text(json.dumps(asdict(report), indent=1) + "\n")
    for failure in report.failures:
        print(failure)
    agreement = "not compared with the CPU (no plain weights)" if report.cpu_agreement is None else f"{report.cpu_agreement:.1%} as the CPU"
    print(f"{report.verdict}: {report.tokens_per_s} tokens/s, {agreement}; {REPORT} has the details")
    return 0 if report.verdict == "pass" else 1


def _say(what: str, done: float) -> None:
    print(f"{what} {done:.0%}", flush=True)


def _seconds(work: Callable[[], None]) -> float:
    started_s = monotonic()
    work()
    return round(monotonic() - started_s, 3)
