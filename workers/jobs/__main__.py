"""`tokenfarm jobs` runs the arq worker; `tokenfarm jobs prefetch` has MODEL_ID made ready and waits."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys

from common import jobs
from common.config import Settings
from common.errors import StartError
from common.logs import start_logs
from workers.jobs.models import convert, job_for, prefetch

log = logging.getLogger("workers.jobs")

WORKS = {"prefetch": prefetch, "convert": convert}
TENTH = 0.1


async def _serve(url: str) -> int:
    serving = asyncio.create_task(jobs.serve(url, WORKS))
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, serving.cancel)
    try:
        await serving
    except asyncio.CancelledError:
        log.info("Stopped")
    return 0


async def _ask(settings: Settings, name: str) -> int:
    """Waits until the model is there; the exit status of the job."""
    if settings.backend == "oracle":
        return 0
    said = ("", -1.0)

    def progress(what: str, done: float) -> None:
        nonlocal said
        if what != said[0] or done >= said[1] + TENTH or done >= 1:
            said = (what, done)
            log.info("%s %.0f %%", what, 100 * done)

    log.info("Waiting for the arq worker to make %s ready", settings.model_id)
    outcome = await jobs.run(settings.jobs_broker_url, name, (settings.model_id, settings.revision or ""), progress)
    if outcome.error:
        print(outcome.error, file=sys.stderr)
    else:
        log.info("%s is ready in %s", settings.model_id, outcome.value)
    return outcome.code


def main() -> int:
    argv = sys.argv[1:]
    name = argv.pop(0) if argv and not argv[0].startswith("-") else "serve"
    try:
        if name not in ("serve", *WORKS):
            raise StartError(f"tokenfarm jobs {name} is no job, there are: {', '.join(WORKS)}")
        settings = Settings.from_env(os.environ, argv, program="tokenfarm jobs")
        if not (settings.jobs_url or settings.redis_url):
            raise StartError("FARM_JOBS_URL is not set; jobs need the address of their database, for example redis://127.0.0.1:6379/1")
    except StartError as error:
        print(error, file=sys.stderr)
        return error.code
    start_logs(settings)
    if name == "serve":
        return asyncio.run(_serve(settings.jobs_broker_url))
    return asyncio.run(_ask(settings, job_for(settings.model_id) if name == "prefetch" else name))


if __name__ == "__main__":
    sys.exit(main())
