"""The device thread: one call at a time, announced before it starts so that its death can be explained."""

from __future__ import annotations

import asyncio
import mmap
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import NamedTuple, TypeVar

import msgpack

T = TypeVar("T")

NOTE_BYTES = 16_384


class Note(NamedTuple):
    """What the device was doing: since when (monotonic seconds, 0: idle) and for which requests."""

    since_s: float = 0.0
    rids: tuple[bytes, ...] = ()


class BlameNote:
    """A small shared memory: the engine process writes, its supervisor reads, also after the writer died."""

    def __init__(self, fd: int) -> None:
        self._memory = mmap.mmap(fd, NOTE_BYTES)

    def write(self, note: Note) -> None:
        data = msgpack.packb(note)
        self._memory[: len(data)] = data

    def clear(self) -> None:
        self.write(Note())

    def read(self) -> Note:
        """The last complete note; an empty one when a death cut it short."""
        unpacker = msgpack.Unpacker(use_list=False)
        unpacker.feed(self._memory[:])
        try:
            since_s, rids = unpacker.unpack()
            return Note(since_s, rids)
        except (ValueError, TypeError):
            return Note()


class Device:
    """Runs the engine's methods in the one thread that owns it."""

    def __init__(self, note: BlameNote | None = None) -> None:
        self._note = note
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="device")
        self.busy = False

    def start(self, work: Callable[[], T], rids: Sequence[bytes] = ()) -> asyncio.Future[T]:
        """Begins `work` in the device thread; `rids` are blamed if the process dies in it."""
        self.busy = True
        future = asyncio.get_running_loop().run_in_executor(self._thread, self._run, work, tuple(rids))
        future.add_done_callback(self._done)
        return future

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _run(self, work: Callable[[], T], rids: tuple[bytes, ...]) -> T:
        if self._note is None:
            return work()
        self._note.write(Note(monotonic(), rids))
        result = work()
        self._note.write(Note())
        return result

    def _done(self, future: asyncio.Future[T]) -> None:
        self.busy = False
