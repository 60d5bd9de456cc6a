"""Jobs that outlive a request, on arq: the only file that knows it (design §10).

Jobs have a database of their own, for arq's keys carry no hash tag. Arguments and results are MessagePack, never pickle.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, cast

import msgpack
from arq.connections import ArqRedis
from arq.constants import in_progress_key_prefix
from arq.jobs import Job, JobStatus
from arq.typing import WorkerCoroutine
from arq.worker import Function, Worker, func

from common import keys
from common.broker import UNREACHABLE, connect

log = logging.getLogger(__name__)

LEASE_MS = 15_000
"""A job whose process died starts again after this; arq itself would wait for the job's longest time."""

RENEW_S = 5.0
LONGEST_S = 24 * 3600.0
KEEP_RESULT_S = 10.0
KEEP_PROGRESS_S = 3600
POLL_S = 0.5

Report = Callable[[str, float], Awaitable[None]]
"""Takes what a job does now and how much of it is done, 0 … 1."""

Work = Callable[[Sequence[Any], Report], Awaitable["Outcome"]]
"""A job: its arguments, and where to report to. It answers with an outcome and raises nothing."""


class Outcome(NamedTuple):
    """How a job ended: `code` 0, or the exit status that goes with the one line in `error`."""

    value: str = ""
    error: str = ""
    code: int = 0


def _redis(url: str) -> ArqRedis:
    return ArqRedis(connect(url).connection_pool, job_serializer=msgpack.packb, job_deserializer=msgpack.unpackb)


async def serve(url: str, works: Mapping[str, Work]) -> None:
    """Runs jobs until cancelled, one at a time; waits for a broker that does not answer."""
    silent = False
    while True:
        functions: list[Function] = [_function(name, work) for name, work in works.items()]
        redis = _redis(url)
        worker = Worker(
            functions, redis_pool=redis, handle_signals=False, max_jobs=1, job_timeout=LONGEST_S, keep_result=KEEP_RESULT_S,
            log_results=False, job_serializer=msgpack.packb, job_deserializer=msgpack.unpackb,
        )  # fmt: skip
        try:
            await redis.ping()
            log.info("Waiting for jobs: %s", ", ".join(works))
            silent = False
            await worker.async_run()
        except UNREACHABLE as error:
            if not silent:
                log.warning("waiting for the broker: %s: %s", type(error).__name__, error)
            silent = True
            await asyncio.sleep(POLL_S)
        finally:
            for task in worker.tasks.values():
                task.cancel()


def _function(name: str, work: Work) -> Function:
    async def run(context: dict[Any, Any], *args: Any) -> Outcome:
        redis, job_id = context["redis"], context["job_id"]

        async def report(what: str, done: float) -> None:
            with suppress(*UNREACHABLE):
                await redis.set(keys.job_progress(job_id), msgpack.packb((what, done)), ex=KEEP_PROGRESS_S)

        renewing = asyncio.create_task(_renew(redis, job_id))
        log.info("Started job=%s", job_id)
        try:
            outcome = await work(args, report)
        finally:
            renewing.cancel()
        log.info("Ended job=%s code=%d %s", job_id, outcome.code, outcome.error)
        return outcome

    return func(cast(WorkerCoroutine, run), name=name)


async def _renew(redis: ArqRedis, job_id: str) -> None:
    while True:
        with suppress(*UNREACHABLE):
            await redis.pexpire(in_progress_key_prefix + job_id, LEASE_MS)
        await asyncio.sleep(RENEW_S)


async def run(url: str, name: str, args: Sequence[str], progress: Callable[[str, float], None]) -> Outcome:
    """Has a job done, once however many ask for the same at the same time, and waits for its end.

    Says each progress. Waits for a broker that does not answer; asks again when the broker lost its memory.
    """
    redis = _redis(url)
    job_id = ":".join((name, *args))
    said: Any = None
    while True:
        try:
            outcome = await _outcome(redis, name, args, job_id)
            told = await redis.get(keys.job_progress(job_id))
        except UNREACHABLE as error:
            if said != "silent":
                log.warning("waiting for the broker: %s: %s", type(error).__name__, error)
            said = "silent"
        else:
            if outcome is not None:
                await redis.aclose()
                return outcome
            if told is not None and told != said:
                progress(*msgpack.unpackb(told))
            said = told
        await asyncio.sleep(POLL_S)


async def _outcome(redis: ArqRedis, name: str, args: Sequence[str], job_id: str) -> Outcome | None:
    """The result, or None while there is none; makes sure that the job is queued."""
    job = Job(job_id, redis, _deserializer=msgpack.unpackb)
    info = await job.result_info()
    if info is not None:
        return Outcome(*info.result) if info.success else Outcome(error=f"job {job_id} failed: {info.result}", code=1)
    if await job.status() is JobStatus.not_found:
        await redis.enqueue_job(name, *args, _job_id=job_id)
    return None
