"""`tokenfarm up`: broker, gateway and workers of one host as child processes of one small parent."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from common import embedded
from common.children import Child, Fatal, progress_of
from common.config import Settings
from common.listening import listen
from common.logs import start_logs
from common.progress import Progress

log = logging.getLogger(__name__)

INTERRUPT_S = 1.0
"""How long running requests may still take after Ctrl-C."""

BROKER_END_S = 1.0
HEALTH_INTERVAL_S = 1.0
HEALTH_TIMEOUT_S = 10.0


class Farm:
    """One host's processes. `run` returns the exit status once all of them are gone."""

    def __init__(self, settings: Settings, argv: Sequence[str], listener: socket.socket, progress: Progress) -> None:
        self.settings = settings
        self.listener = listener
        self.progress = progress
        self.code = 0
        self.grace_s = INTERRUPT_S
        self.stopping = asyncio.Event()
        self.hurry = asyncio.Event()
        self.broker_ready = asyncio.Event()
        self.news = asyncio.Event()
        self.child_end, self.parent_end = os.pipe()
        self.broker_end, self.parent_broker_end = os.pipe()
        self.folder = None if settings.redis_url else embedded.private_folder()
        self.broker = self._broker(self.folder) if self.folder else None
        fds = (self.child_end, listener.fileno())
        self.gateway = Child("gateway", module("gateway", argv), self._env(), self.on_line, pass_fds=fds)
        self.workers = [
            Child(f"worker {number}", module("workers", argv), self._env(number), self.on_line, pass_fds=(self.child_end,))
            for number in range(1, settings.workers + 1)
        ]

    def _broker(self, folder: Path) -> Child:
        """It has a pipe of its own: event loops of other children make the shared one non-blocking for all."""
        return Child("broker", embedded.command(folder), dict(os.environ), self.on_broker_line, stdin=self.broker_end)

    def _env(self, worker_number: int = 1) -> dict[str, str]:
        """What children see: the user's environment and what this process decided."""
        env = {"MAX_CONCURRENT_REQUESTS": str(self.settings.max_concurrent_requests), **os.environ, "PYTHONUNBUFFERED": "1"}
        env |= {"FARM_LISTEN_FD": str(self.listener.fileno()), "FARM_PARENT_FD": str(self.child_end), "FARM_ONE_HOST": "true"}
        env["FARM_WORKER_NUMBER"] = str(worker_number)
        return env | ({"REDIS_URL": embedded.url(self.folder)} if self.folder else {})

    async def run(self) -> int:
        """Runs until a signal, or until a child ends for good."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, self.on_signal, number)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.end_when_told(group.create_task(self.announce())))
                if self.broker:
                    group.create_task(self.broker.keep())
                    await self.broker_ready.wait()
                for child in (self.gateway, *self.workers):
                    group.create_task(child.keep())
        except* Fatal as fatal:
            self.code = max(error.code for error in fatal.exceptions if isinstance(error, Fatal))
        finally:
            if self.folder:
                shutil.rmtree(self.folder, ignore_errors=True)
        return self.code

    async def end_when_told(self, announcing: asyncio.Task[None]) -> None:
        """After a signal: ends the gateway, then the workers its streams needed, then the broker."""
        await self.stopping.wait()
        announcing.cancel()
        deadline_s = time.monotonic() + self.grace_s
        if self.grace_s > INTERRUPT_S:
            await self.gateway.end(self.grace_s, self.hurry)
        left_s = max(INTERRUPT_S, deadline_s - time.monotonic())
        await asyncio.gather(*(child.end(left_s, self.hurry) for child in (self.gateway, *self.workers)))
        if self.broker:
            await self.broker.end(BROKER_END_S, self.hurry)
        self.broker_ready.set()

    async def announce(self) -> None:
        """Says once that the farm can serve."""
        host, port = self.listener.getsockname()[:2]
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        while not await healthy(host, port):
            self.news.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.news.wait(), HEALTH_INTERVAL_S)
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        body = '{"inputs":"What is Deep Learning?","parameters":{"max_new_tokens":20}}'
        log.info("Connected: http://%s serves %s", where, self.settings.name)
        if not self.settings.json_output:
            self.progress.line(f"curl -N {where}/generate_stream -H 'Content-Type: application/json' -d '{body}'")

    def on_line(self, child: Child, line: str) -> None:
        """Draws a child's progress, passes its log on."""
        told = progress_of(line)
        if told is None:
            self.progress.line(line)
            return
        what, done = told
        self.progress.tell(f"{child.name}: {what}" if len(self.workers) > 1 else what, done)
        if done >= 1:
            self.news.set()

    def on_broker_line(self, child: Child, line: str) -> None:
        """Passes on what the broker says beyond its usual notices."""
        if embedded.READY in line:
            self.broker_ready.set()
        elif not embedded.is_notice(line) and not self.stopping.is_set():
            self.progress.line(line)

    def on_signal(self, number: signal.Signals) -> None:
        """SIGTERM drains, SIGINT and SIGHUP end soon; a second signal ends everything at once."""
        if self.stopping.is_set():
            self.hurry.set()
        if number == signal.SIGTERM:
            self.grace_s = self.settings.drain_s
        self.stopping.set()


def module(name: str, argv: Sequence[str]) -> list[str]:
    """Runs a package of ours with this Python; `-P` keeps the current folder from hiding it."""
    return [sys.executable, "-P", "-m", name, *argv]


async def healthy(host: str, port: int) -> bool:
    """Whether `GET /health` answers 200."""
    try:
        async with asyncio.timeout(HEALTH_TIMEOUT_S):
            reader, writer = await asyncio.open_connection(host, port)
            with contextlib.closing(writer):
                writer.write(b"GET /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
                status = await reader.readline()
    except (OSError, TimeoutError):
        return False
    return status.split()[1:2] == [b"200"]


def up(settings: Settings, argv: Sequence[str]) -> int:
    """Runs one host until a signal: its exit status. Raises `StartError`, and `Refused` when the port is taken."""
    progress = Progress(sys.stdout)
    start_logs(settings, progress)
    inherited = settings.listen_fd
    listener = listen(settings.hostname, settings.port) if inherited is None else socket.socket(fileno=inherited)
    return asyncio.run(Farm(settings, argv, listener, progress).run())
