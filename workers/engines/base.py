"""The engine contract (design §6) and the shape ledger that holds engines to it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from common.messages import Params
from common.shapes import Bucket, Shape

Progress = Callable[[str, float], None]
"""Called with what is being done and the fraction done, 0 … 1."""


class Capabilities(NamedTuple):
    """What an engine can honour; published in the worker record."""

    step: str = "logits"
    seed: bool = True
    logprobs: bool = True
    prompt_logprobs: bool = False
    penalties: bool = True
    reproducible: bool = False
    max_top_k: int = 0  # 0: any

    def names(self) -> tuple[str, ...]:
        """The true ones, as published."""
        return tuple(name for name, value in zip(self._fields, self, strict=True) if value is True)


class PrefillRow(NamedTuple):
    """Tokens `ids` for positions `start` … `start + len(ids) - 1` of `slot`; `last`: its output is used."""

    slot: int
    ids: Sequence[int]
    start: int = 0
    last: bool = True
    params: Params = Params()
    seed: int = 0
    pos: int = 0  # generated position of the token this row's output gives
    prompt_logprobs: bool = False
    rid: bytes = b""


class DecodeRow(NamedTuple):
    """`token` is written at cache position `at` of `slot`; the output gives generated position `pos`."""

    slot: int
    token: int
    at: int
    params: Params = Params()
    seed: int = 0
    pos: int = 0
    rid: bytes = b""


@dataclass
class Step:
    """One device call's output, in the order of its rows; exactly one of the three is set.

    `logits` float32 `[n, vocab]` tensor; `candidates` (ids `[n, k]`, logits `[n, k]`, logsumexp `[n]`); `tokens` `[n]` (−1: not a number).
    Host memory, valid until the next call. `prompt_logprobs[i]` has one value per prompt token after the first,
    `prompt_best[i]` the (id, logprob) of the likeliest token in its place.
    """

    logits: Any = None
    candidates: Any = None
    tokens: list[int] | None = None
    prompt_logprobs: list[list[float] | None] = field(default_factory=list)
    prompt_best: list[list[tuple[int, float]] | None] = field(default_factory=list)


class EngineFault(Exception):
    """These slots' requests end with one error; the others' cache is intact."""

    def __init__(self, slots: Sequence[int], message: str) -> None:
        super().__init__(message)
        self.slots = tuple(slots)


class UnwarmedShape(RuntimeError):
    """A shape was first seen while serving."""


class ShapeLedger:
    """Records warmed shapes; one first seen afterwards is counted, and raises when `strict`."""

    def __init__(self, strict: bool = False) -> None:
        self.strict = strict
        self.serving = False
        self.n_unwarmed = 0
        self._seen: set[tuple[Any, ...]] = set()

    def see(self, *key: Any) -> bool:
        """Whether the shape is met for the first time."""
        if key in self._seen:
            return False
        self._seen.add(key)
        if self.serving:
            self.n_unwarmed += 1
            if self.strict:
                raise UnwarmedShape(f"shape {key} was not warmed")
        return True

    def take_unwarmed(self) -> int:
        """How many unwarmed shapes were seen since the last call."""
        n, self.n_unwarmed = self.n_unwarmed, 0
        return n

    def __len__(self) -> int:
        return len(self._seen)


class Engine(Protocol):
    """Owns the device. All methods run in the device thread; arguments are plain numbers.

    `shape`, `capabilities` and `vocab_size` are valid after `load()`. `decode` takes every row in DECODE or REPLAY exactly once.
    `release` is host bookkeeping; `scrub` overwrites a slot's cache. `load` raises `StartError`.
    `cold`: `warm_up` left out what it was told to, so a call may compile for minutes and no shape counts as unwarmed.
    `build` names all that decides the bits of a result besides the weights and the shape: code, precision, kind of device.
    """

    worker: str
    shape: Shape
    capabilities: Capabilities
    ledger: ShapeLedger
    vocab_size: int
    eos_ids: frozenset[int]
    cold: bool

    @property
    def build(self) -> str: ...
    def load(self, progress: Progress) -> None: ...
    def warm_up(self, progress: Progress) -> None: ...
    def prefill(self, bucket: Bucket, rows: Sequence[PrefillRow]) -> Step: ...
    def decode(self, rows: Sequence[DecodeRow]) -> Step: ...
    def release(self, slot: int) -> None: ...
    def scrub(self, slot: int) -> None: ...


def artifact_of(engine: Engine) -> str:
    """12 hex digits that two loaded engines share when a replay on one gives the bits of the other: same build, same shape."""
    return hashlib.sha256(repr((engine.build, engine.shape)).encode()).hexdigest()[:12]
