"""The engine process: load, warm up, publish the card, then run worker ids until told to stop. Its supervisor owns it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from time import monotonic
from typing import TypeVar

import uvloop

from common import metrics, registry
from common.broker import UNREACHABLE, Broker, connect, connect_single
from common.config import Settings, version
from common.errors import DeviceLost, StartError
from common.keys import Cell, lane_name
from common.logs import start_logs
from common.messages import VERSION, Card, NewerVersion, Want, Worker
from workers.batch import Batch
from workers.card import build_card
from workers.cold import Reminder, hand_back_and_exit
from workers.device import BlameNote, Device
from workers.emitter import Emitter
from workers.engines import check_backend, create
from workers.engines.base import Engine, artifact_of
from workers.engines.oracle import write_model
from workers.heartbeat import heartbeat
from workers.intake import Intake
from workers.journal import Fenced, Journal
from workers.load import Load
from workers.loop import Loop
from workers.metrics_page import MetricsPage
from workers.sampling import Sampler
from workers.scheduler import Knobs
from workers.weights import local_path

log = logging.getLogger("workers.process")

T = TypeVar("T")

WATCH_EVERY_S = 1.0

SWITCH_S = 0.0002
"""The device thread waits at most this long for the interpreter while the I/O side computes."""
DEVICE_CALLS_PER_LEASE = 3

RESUMABLE_S = 30.0
"""How long after its last viewer a resumable request goes on."""


class Status:
    """The pipe to the supervisor: one JSON object a line."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd
        self._last_s = monotonic()
        self.worst_gap_s = 0.0
        self.doing = ("starting", 0.0)

    def say(self, **words: object) -> None:
        if self._fd is not None:
            with suppress(BrokenPipeError):
                os.write(self._fd, (json.dumps(words) + "\n").encode())

    def progress(self, what: str, done: float) -> None:
        """Also measures the longest time between two reports, which bounds one device call of the warm-up."""
        now_s = monotonic()
        self.worst_gap_s = max(self.worst_gap_s, now_s - self._last_s)
        self._last_s = now_s
        self.doing = (what, done)
        self.say(what=what, done=round(done, 4))


class EngineProcess:
    """One engine; a new worker id each time it joins."""

    def __init__(self, settings: Settings, status: Status) -> None:
        self._settings = settings
        self._status = status
        self._device = Device(BlameNote(settings.blame_fd) if settings.blame_fd is not None else None)
        self._load = Load()
        self._metrics = metrics.worker()
        self._page = MetricsPage(self._metrics.registry)
        self._loop: Loop | None = None
        self._stopping = asyncio.Event()
        self._outdated = False
        self._reminder = Reminder()
        self._release: Callable[[], Awaitable[bool]] | None = None

    async def run(self) -> None:
        """Serves until drained; raises `StartError` when it cannot start."""
        await self._page.open(self._settings)
        async with heartbeat(lambda: self._status.doing, self._metrics):
            engine, card = await self._start()
        self._metrics.max_total_tokens.set(engine.shape.batch_size * engine.shape.max_length)
        url = self._settings.broker_url
        cell = Cell(self._settings.farm, card.model, card.fingerprint)
        broker = Broker(connect_single(url), cell)
        bell = Broker(connect(url, blocking=True), cell)
        emitter = Emitter(card, artifact_of(engine))
        sampler = Sampler(engine.vocab_size)
        while not self._stopping.is_set():
            await self._serve(engine, broker, bell, emitter, sampler, card)

    def stop(self, now: bool = False) -> None:
        """First call: drain within the grace. Second, or `now` (a spot notice): hand everything back at once."""
        grace_s = 0.0 if now or self._stopping.is_set() else self._settings.drain_s
        self._stopping.set()
        if self._loop is not None:
            self._loop.drain(grace_s)

    def part(self) -> None:
        """The supervisor is gone."""
        if self._release is None:
            os._exit(1)
        self._parting = asyncio.create_task(hand_back_and_exit(self._release))

    async def _start(self) -> tuple[Engine, Card]:
        check_backend(self._settings.backend)
        if self._settings.backend != "oracle":
            return await self._load_from(await asyncio.to_thread(local_path, self._settings, self._status.progress))
        with TemporaryDirectory() as folder:
            write_model(Path(folder))
            return await self._load_from(Path(folder))

    async def _load_from(self, path: Path) -> tuple[Engine, Card]:
        progress = self._status.progress
        engine = create(self._settings, str(path), "")
        await self._device.start(lambda: engine.load(progress))
        self._status.worst_gap_s = 0.0
        await self._device.start(lambda: engine.warm_up(progress))
        if self._settings.skip_warmup and not engine.cold:
            log.info("the warm-up cannot be skipped with FARM_BACKEND=%s", self._settings.backend)
        card = build_card(
            self._settings, path, engine.shape, vocab_size=engine.vocab_size, precision=str(getattr(engine, "precision", "")),
            capabilities=engine.capabilities.names(), max_top_k=engine.capabilities.max_top_k,
        )  # fmt: skip
        return engine, card

    async def _serve(self, engine: Engine, broker: Broker, bell: Broker, emitter: Emitter, sampler: Sampler, card: Card) -> None:
        settings = self._settings
        engine.worker = worker = f"{settings.worker_name or socket.gethostname()}-{token_hex(4)}"
        longest_call_s = getattr(engine, "slowest_call_s", self._status.worst_gap_s)
        warm_lease_s = max(settings.lease_s, DEVICE_CALLS_PER_LEASE * longest_call_s)
        lease_ms = int(1000 * (settings.compile_lease_s if engine.cold else warm_lease_s))
        lanes = [length for length in settings.lanes or (engine.shape.max_length,) if length <= engine.shape.max_length]
        batch = Batch(engine, self._device, sampler, settings.exact_max_tokens, self._metrics)
        digest = await _until_reached(lambda: registry.publish(broker.redis, settings.farm, card))
        await _until_reached(lambda: broker.join(worker, lease_ms, engine.cold))
        self._release = (lambda: broker.release(worker, "clean")) if engine.cold else None

        def record() -> Worker:
            return Worker(
                VERSION, worker, card.model, digest, settings.backend, engine.shape.batch_size, engine.shape.max_length, tuple(lanes),
                self._state(engine), len(batch.slots) - batch.n_free, batch.n_free,
                round(self._load.step_ms, 3), round(self._load.prefill_ms, 3), round(self._load.finished_per_s, 3), socket.gethostname(),
                version(), engine.capabilities.names(), artifact_of(engine), self._page.url,
            )  # fmt: skip

        journal = Journal(broker, worker, lease_ms, batch.rows, lambda: self._device.busy, record)
        self._metrics.unjournaled_steps.set_function(lambda: journal.n_unflushed)
        intake = Intake(broker, bell, journal, [lane_name(length) for length in lanes], lease_ms / 1000)
        knobs = Knobs(settings.waiting_served_ratio, settings.max_waiting_tokens, settings.max_prefill_share, settings.waste_max)
        self._loop = loop = Loop(batch, engine.shape, emitter, journal, intake, knobs, self._load, self._metrics)

        self._status.say(worker=worker, model=card.model, fingerprint=card.fingerprint, lease_s=lease_ms / 1000)
        watching = asyncio.create_task(self._watch(broker, engine, batch, loop))
        said = "Joined" if settings.one_host else "Connected"  # on one host, `Connected` is said once, for all
        shape = engine.shape
        log.info(
            "%s worker=%s model=%s backend=%s batch=%d length=%d prefill=%dx%d",
            said, worker, card.model, settings.backend, shape.batch_size, shape.max_length, shape.max_rows, shape.max_bucket,
        )  # fmt: skip
        loop.taking = not self._outdated
        if self._stopping.is_set():
            loop.drain(0.0)
        try:
            await loop.run()
            await broker.release(worker, "clean")
            log.info("Drained worker=%s", worker)
        except* NewerVersion as error:
            self._outdated = True
            await self._device.start(batch.settle)
            await broker.release(worker, "clean")
            log.error("Outdated worker=%s: %s; it takes nothing more until it is updated", worker, error.exceptions[0])
        except* Fenced:
            await self._device.start(batch.settle)
            self._metrics.fenced.inc()
            log.warning("Fenced worker=%s: its lease passed, its requests run elsewhere", worker)
        finally:
            watching.cancel()
            await self._device.start(lambda: None)  # a call still running would write into slots of the next id

    def _state(self, engine: Engine) -> str:
        return "draining" if self._stopping.is_set() else "outdated" if self._outdated else "cold" if engine.cold else "ready"

    async def _watch(self, broker: Broker, engine: Engine, batch: Batch, loop: Loop) -> None:
        """Each second: averages, and requests whose gateways are all gone."""
        while True:
            if engine.cold:
                self._reminder.remind(engine.worker, monotonic())
            self._load.report()
            self._metrics.unwarmed_shapes.inc(engine.ledger.take_unwarmed())
            with suppress(*UNREACHABLE):
                if any(batch.rows()):
                    self._cancel_orphans(await broker.gateways_seen_ms(), batch, loop)
            await asyncio.sleep(WATCH_EVERY_S)

    def _cancel_orphans(self, seen_ms: dict[str, int], batch: Batch, loop: Loop) -> None:
        for row in list(batch.rows()):
            patience_s = self._settings.orphan_s + (RESUMABLE_S if row.submit.want & Want.RESUMABLE else 0.0)
            silent_ms = min((seen_ms.get(gateway, 10**9) for gateway in row.gateways), default=10**9)
            if silent_ms > 1000 * patience_s and not row.submit.want & Want.DETACHED and monotonic() - row.arrived_s > patience_s:
                log.warning("Orphaned rid=%s: none of its gateways was seen for %.0f s", row.rid.hex(), patience_s)
                loop.cancel(row)


async def _until_reached(command: Callable[[], Awaitable[T]]) -> T:
    """Repeats an idempotent command until the broker answers."""
    said = False
    while True:
        try:
            return await command()
        except UNREACHABLE as error:
            if not said:
                log.warning("waiting for the broker: %s", type(error).__name__)
                said = True
            await asyncio.sleep(0.2)


def _part_with_parent(fd: int, loop: asyncio.AbstractEventLoop, process: EngineProcess) -> None:
    """The supervisor never writes: its end of the pipe closing means that it is gone."""

    def closed() -> None:
        loop.remove_reader(fd)
        process.part()

    loop.add_reader(fd, closed)


async def _main(settings: Settings) -> int:
    status = Status(settings.status_fd)
    process = EngineProcess(settings, status)
    loop = asyncio.get_running_loop()
    if settings.parent_fd is not None:
        _part_with_parent(settings.parent_fd, loop, process)
    loop.add_signal_handler(signal.SIGTERM, process.stop)
    loop.add_signal_handler(signal.SIGUSR1, process.stop, True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        await process.run()
    except Exception as error:
        reason = _reason(error)
        if reason is None:
            raise
        status.say(error=str(reason), code=reason.code)
        return reason.code
    return 0


def _reason(error: BaseException) -> StartError | DeviceLost | None:
    """What ends this process with a status of its own, alone or in a group; None: something unexpected."""
    if isinstance(error, BaseExceptionGroup):
        return next((reason for each in error.exceptions if (reason := _reason(each))), None)
    return error if isinstance(error, StartError | DeviceLost) else None


def main() -> None:
    """Entry of `python -m workers.process`; started by `workers.supervisor` only."""
    os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")
    settings = Settings.from_env(os.environ, sys.argv[1:])
    start_logs(settings)
    sys.setswitchinterval(SWITCH_S)
    code = uvloop.run(_main(settings))
    sys.stdout.flush()
    os._exit(code)  # a device thread that hangs must not hold the process


if __name__ == "__main__":
    main()
