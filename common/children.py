"""Child processes of one host: started, their output passed on, restarted when they die, ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

log = logging.getLogger(__name__)

PROGRESS = "PROGRESS "
"""A line that begins so carries `{"what": …, "done": 0 … 1}` for the progress bar."""

MAX_LINE_BYTES = 1 << 20
BACKOFF_S = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
HEALTHY_S = 60.0
"""A child that ran this long starts its backoff anew."""

LAST_WORDS_S = 2.0
"""Between SIGINT and SIGKILL."""

FATAL = (2, 3, 4, 6, 7, 8)
"""Exit statuses of `StartError`: starting again cannot help."""


class Fatal(Exception):
    """A child ended for a reason that a restart cannot cure; `code` is its exit status."""

    def __init__(self, name: str, code: int) -> None:
        super().__init__(f"{name} ended with status {code}")
        self.code = code


@dataclass
class Child:
    """One process in a session of its own. `on_line` gets each line of its output."""

    name: str
    command: Sequence[str]
    env: Mapping[str, str]
    on_line: Callable[[Child, str], None]
    stdin: int = asyncio.subprocess.DEVNULL
    pass_fds: Sequence[int] = ()
    process: asyncio.subprocess.Process | None = None
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    async def keep(self) -> None:
        """Runs the process again and again until `end`; raises `Fatal`. Cancelling kills the process."""
        n_failures = 0
        while not self.stopping.is_set():
            started_s = time.monotonic()
            code = await self.run()
            if self.stopping.is_set():
                return
            if code in FATAL:
                raise Fatal(self.name, code)
            n_failures = 0 if time.monotonic() - started_s >= HEALTHY_S else n_failures + 1
            wait_s = BACKOFF_S[min(n_failures, len(BACKOFF_S)) - 1] if n_failures else 0.0
            log.warning("%s ended with status %d, starting it again in %g s", self.name, code, wait_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.stopping.wait(), wait_s)

    async def run(self) -> int:
        """One life of the process: its exit status, negative for a signal. Nothing of its session is left."""
        read_end, write_end = os.pipe()
        reading = asyncio.create_task(self._read(read_end))
        try:
            self.process = await asyncio.create_subprocess_exec(
                *self.command,
                stdin=self.stdin,
                stdout=write_end,
                stderr=write_end,
                env=self.env,
                pass_fds=self.pass_fds,
                start_new_session=True,
            )
        finally:
            os.close(write_end)
        try:
            return await self.process.wait()
        finally:
            self.kill()
            await reading

    async def end(self, grace_s: float, hurry: asyncio.Event) -> None:
        """SIGTERM, after the grace SIGINT, then SIGKILL; SIGKILL at once when `hurry` is set."""
        self.stopping.set()
        if self.process is None or self.process.returncode is not None:
            return
        exited, hurried = asyncio.ensure_future(self.process.wait()), asyncio.ensure_future(hurry.wait())
        for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGINT, LAST_WORDS_S)):
            if not hurried.done() and not exited.done():
                self.process.send_signal(number)
                await asyncio.wait({exited, hurried}, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
        hurried.cancel()
        self.kill()
        await exited

    def kill(self) -> None:
        """Ends the process and all it left in its session at once."""
        if self.process:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)

    async def _read(self, read_end: int) -> None:
        reader = asyncio.StreamReader(limit=MAX_LINE_BYTES)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(read_end, "rb"))
        with contextlib.closing(transport):
            while True:
                try:
                    line = await reader.readline()
                except ValueError:
                    continue
                if not line:
                    return
                self.on_line(self, line.decode(errors="replace").rstrip("\n"))


def progress_of(line: str) -> tuple[str, float] | None:
    """What a progress line says; None for other lines."""
    if not line.startswith(PROGRESS):
        return None
    try:
        told = json.loads(line.removeprefix(PROGRESS))
        return str(told["what"]), float(told["done"])
    except (ValueError, KeyError, TypeError):
        return None
