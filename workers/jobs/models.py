"""The two jobs, `prefetch` and `convert`. Each runs in a process of its own: it ends with all its memory, and can be killed."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from common.config import DEMO_MODEL, Settings
from common.errors import StartError
from common.jobs import Outcome, Report
from workers.weights import local_path

END = "END "
"""A line that begins so carries the outcome."""


def job_for(model_id: str) -> str:
    """Which job makes a model ready: a GGUF file (the demo model is one) is converted, all else is fetched."""
    return "convert" if model_id in ("", DEMO_MODEL) or model_id.endswith(".gguf") else "prefetch"


async def prefetch(args: Sequence[Any], report: Report) -> Outcome:
    """Downloads a hub model into the shared folder. `args`: model id, revision."""
    return await _in_process(args, report)


async def convert(args: Sequence[Any], report: Report) -> Outcome:
    """Converts a GGUF file. `args`: its path, revision."""
    if job_for(str(args[0])) != "convert":
        return Outcome(error=f"MODEL_ID={args[0]} is no .gguf file", code=2)
    return await _in_process(args, report)


async def _in_process(args: Sequence[Any], report: Report) -> Outcome:
    model_id, revision = args
    env = {**os.environ, "MODEL_ID": str(model_id), "REVISION": str(revision)}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", "-m", "workers.jobs.models", env=env, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    outcome = Outcome(error=f"MODEL_ID={model_id}: the job's process died", code=1)
    try:
        async for line in process.stdout:
            text = line.decode(errors="replace")
            if text.startswith(END):
                outcome = Outcome(*json.loads(text.removeprefix(END)))
            elif text.startswith("PROGRESS "):
                told = json.loads(text.removeprefix("PROGRESS "))
                await report(told["what"], told["done"])
        await process.wait()
        return outcome
    finally:
        with suppress(ProcessLookupError):
            process.kill()


def _progress(what: str, done: float) -> None:
    print(f"PROGRESS {json.dumps({'what': what, 'done': done})}", flush=True)


def _main() -> None:
    settings = Settings.from_env(os.environ)
    try:
        outcome = Outcome(str(local_path(settings, _progress)))
    except StartError as error:
        outcome = Outcome("", str(error), error.code)
    print(END + json.dumps(outcome), flush=True)


if __name__ == "__main__":
    _main()
