"""The supervisor: starts the engine process, sees it die, hands its requests back at once, starts it again (design §8).

It never imports torch, so a device that hangs or a process that is killed for memory cannot take it along.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from time import monotonic
from typing import Any

from common.broker import UNREACHABLE, Broker, connect_single
from common.config import Settings
from common.keys import Cell
from workers.device import NOTE_BYTES, BlameNote
from workers.hub import hub_environment

log = logging.getLogger(__name__)

GIVES_UP = (2, 3, 4, 6, 7, 8, 9)
"""Exit statuses of an engine process that a restart cannot help."""

WATCH_EVERY_S = 1.0
KILL_AFTER_GRACE_S = 5.0
MOST_BACKOFF_S = 60.0


@dataclass
class Said:
    """The last words of an engine process about itself."""

    worker: str = ""
    model: str = ""
    fingerprint: str = ""
    lease_s: float = 10.0
    error: str = ""


class Supervisor:
    """Owns one engine process at a time."""

    def __init__(self, settings: Settings, argv: Sequence[str]) -> None:
        self._settings = settings
        self._argv = argv
        self._memory = os.memfd_create("blame") if hasattr(os, "memfd_create") else _unlinked_file()
        os.ftruncate(self._memory, NOTE_BYTES)
        self._note = BlameNote(self._memory)
        self._child: asyncio.subprocess.Process | None = None
        self._said = Said()
        self._stopping = False
        self._doing = ""
        self._n_early_deaths = 0

    async def run(self) -> int:
        """Serves until stopped; returns the exit status."""
        while True:
            code = await self._one_life()
            if self._said.worker:
                await self._hand_back("clean" if code == 0 else "crashed")
            if self._stopping or code == 0:
                return 0
            if code in GIVES_UP:
                return code
            log.error("Died worker=%s status=%d", self._said.worker or "(starting)", code)
            self._n_early_deaths = 0 if self._said.worker else self._n_early_deaths + 1
            if self._n_early_deaths:
                await asyncio.sleep(min(MOST_BACKOFF_S, 2.0 ** (self._n_early_deaths - 1)))

    def stop(self, force: bool = False) -> None:
        """Drains the engine process; a second time, or forced (Ctrl-C, spot notice), it hands back at once."""
        if self._child is None or self._child.returncode is not None:
            self._stopping = True
            return
        with suppress(ProcessLookupError):
            self._child.send_signal(signal.SIGUSR1 if force else signal.SIGTERM)
        grace_s = 0.0 if force or self._stopping else self._settings.drain_s
        self._stopping = True
        asyncio.get_running_loop().call_later(grace_s + KILL_AFTER_GRACE_S, self._kill)

    def _kill(self) -> None:
        if self._child is not None and self._child.returncode is None:
            self._child.kill()

    async def _one_life(self) -> int:
        self._said = Said()
        self._note.clear()
        status, status_of_child = os.pipe()
        parent_of_child, parent = os.pipe()
        fds = (status_of_child, parent_of_child, self._memory)
        names = ("FARM_STATUS_FD", "FARM_PARENT_FD", "FARM_BLAME_FD")
        env = {**os.environ, **hub_environment(self._settings), **{name: str(fd) for name, fd in zip(names, fds, strict=True)}}
        self._child = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "workers.process", *self._argv, env=env, pass_fds=fds, start_new_session=True
        )
        os.close(status_of_child)
        os.close(parent_of_child)
        listening = asyncio.create_task(self._listen(status))
        watching = asyncio.create_task(self._watch())
        try:
            code = await self._child.wait()
            await listening
            return code
        finally:
            watching.cancel()
            os.close(parent)

    async def _listen(self, fd: int) -> None:
        """Reads what the child says; progress is passed on to whoever started this process."""
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(fd, "rb"))
        async for line in reader:
            words = json.loads(line)
            if "what" in words:
                self._pass_on(words)
            if "error" in words:
                log.error("%s", words["error"])
            for name, value in words.items():
                if hasattr(self._said, name):
                    setattr(self._said, name, value)
        transport.close()

    def _pass_on(self, words: dict[str, Any]) -> None:
        """To the parent's progress bar; without a parent the log names each thing once."""
        if self._settings.parent_fd is not None:
            print(f"PROGRESS {json.dumps(words)}", flush=True)
        elif words["what"] != self._doing:
            log.info("%s", words["what"])
        self._doing = words["what"]

    async def _watch(self) -> None:
        """A device call longer than the lease is a hang: its requests already run elsewhere.

        It must be so at two looks: after a pause of the host the first finds a call that is about to end.
        """
        late_s = 0.0
        while True:
            await asyncio.sleep(WATCH_EVERY_S)
            since_s = self._note.read().since_s
            late = bool(self._said.worker and since_s and monotonic() - since_s > self._said.lease_s)
            if late and since_s == late_s:
                log.error("Hung worker=%s for %.0f s; it is killed", self._said.worker, monotonic() - since_s)
                self._kill()
            late_s = since_s if late else 0.0

    async def _hand_back(self, how: str) -> None:
        """Gives the dead process' requests to others, blaming those its device was computing."""
        redis = connect_single(self._settings.broker_url)
        broker = Broker(redis, Cell(self._settings.farm, self._said.model, self._said.fingerprint))
        blamed = self._note.read().rids if how == "crashed" else ()
        died_s = monotonic()
        while monotonic() - died_s < (KILL_AFTER_GRACE_S if self._stopping else 2 * self._said.lease_s):
            try:
                await broker.release(self._said.worker, how, blamed)
                break
            except UNREACHABLE:
                await asyncio.sleep(0.2)
        await redis.aclose()


def _unlinked_file() -> int:
    import tempfile

    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


async def supervise(settings: Settings, argv: Sequence[str]) -> int:
    """Runs one worker until a signal, or until the parent named by `settings.parent_fd` is gone."""
    supervisor = Supervisor(settings, argv)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, supervisor.stop)
    for number in (signal.SIGINT, signal.SIGUSR1):
        loop.add_signal_handler(number, lambda: supervisor.stop(force=True))
    if settings.parent_fd is not None:
        loop.add_reader(settings.parent_fd, lambda: os._exit(1))
    return await supervisor.run()
