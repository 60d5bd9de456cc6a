"""The records that cross process borders, as MessagePack of plain tuples (design §5).

Records grow at the end: a reader ignores fields it does not know and defaults those it misses.
`VERSION` is raised only when an older reader would misread.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from enum import IntFlag
from typing import Any, NamedTuple, TypeVar, cast

import msgpack

VERSION = 1
MAX_MESSAGE_BYTES = 64 * 1024 * 1024

R = TypeVar("R", bound=tuple[Any, ...])


class Malformed(ValueError):
    """The bytes are no message of this kind in any version."""


class NewerVersion(ValueError):
    """A later release wrote this message: hand it back, never drop it."""


class Flag(IntFlag):
    """What an event is besides one token."""

    FIRST = 1  # carries `first`: the request's first token under this owner
    SNAPSHOT = 2  # an earlier event again, under a new epoch
    SPECIAL = 4  # the token is a special token
    FINISH = 8  # carries `finish`
    ERROR = 16  # carries `error`; no token
    DEADLINE = 32  # ended early because its time was over


class Want(IntFlag):
    """What the client needs beyond tokens."""

    RESULT = 1  # keep a result: somebody can come back
    EXACT = 2  # resume by replay (§7)
    PREFILL_LOGPROBS = 4
    RESUMABLE = 8  # its viewers may come back
    DETACHED = 16  # runs without viewers


class Params(NamedTuple):
    """Logits processing of one request, neutral by default (TGI reference §3.2)."""

    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    top_n_tokens: int = 0
    min_p: float = 0.0  # least probability, as a share of the likeliest token's
    presence_penalty: float = 0.0  # taken from every token that was generated already
    logit_bias: tuple[tuple[int, float], ...] = ()
    ignore_eos: bool = False

    @property
    def samples(self) -> bool:
        """Whether tokens are drawn rather than taken greedily (TGI reference §3.1)."""
        warped = self.top_k > 0 or self.top_p < 1.0 or self.typical_p < 1.0 or self.min_p > 0
        return self.do_sample or self.temperature != 1.0 or warped


class First(NamedTuple):
    """A request's start: timing, the prefill bucket's length in tokens (0: none), and the artifact that computes from here on."""

    waited_ms: float
    prefill_ms: float
    bucket: int
    artifact: str = ""


class Finish(NamedTuple):
    """Why and how a request ended. `reason` is TGI's name; `seed` is the effective one."""

    reason: str
    n_tokens: int
    decode_ms: float


class Failure(NamedTuple):
    """The one error a request ends with; `kind` is a key of `common.errors.TABLE`."""

    kind: str
    message: str


class Event(NamedTuple):
    """One token of one request. `pos` counts generated tokens from 0; `top` is ((id, logprob, text), …)."""

    rid: bytes
    epoch: int
    pos: int
    token: int
    logprob: float
    text: str
    flags: int = 0
    top: tuple[tuple[int, float, str], ...] = ()
    first: First | None = None
    finish: Finish | None = None
    error: Failure | None = None
    prefill: tuple[tuple[int, float, str], ...] = ()  # prompt tokens with logprobs, on the first event, when wanted
    prefill_top: tuple[tuple[int, float, str], ...] = ()  # the likeliest token in place of each prompt token after the first

    @classmethod
    def read(cls, fields: Sequence[Any]) -> Event:
        """Builds an event from decoded fields; unknown trailing fields are ignored."""
        if len(fields) < 6:
            raise Malformed("event too short")
        event = cls(*fields[: len(cls._fields)])
        if event.first is None and event.finish is None and event.error is None:
            return event
        return event._replace(
            first=First(*event.first[:4]) if event.first else None,
            finish=Finish(*event.finish[:3]) if event.finish else None,
            error=Failure(*event.error[:2]) if event.error else None,
        )


class Submit(NamedTuple):
    """A request on its way to a worker. `prefix` is what the client was already shown (after lost memory)."""

    v: int
    rid: bytes
    input_ids: tuple[int, ...]
    n_max_new: int
    params: Params = Params()
    stop: tuple[str, ...] = ()
    seed: int = 0
    ttl_ms: int = 0
    priority: int = 1
    tenant: str = ""
    caller: str = ""
    gateway: str = ""
    prefix: tuple[Event, ...] = ()
    epoch_floor: int = 0
    want: int = 0


class Frame(NamedTuple):
    """All events of one flush that one gateway needs; `prev_step` is the last step sent to that gateway."""

    v: int
    worker: str
    step: int
    prev_step: int
    free: int
    events: tuple[Event, ...] = ()


class Worker(NamedTuple):
    """What a worker says about itself each second; `lanes` are the lengths it serves."""

    v: int
    id: str
    model: str
    card: str
    backend: str
    batch_size: int
    max_length: int
    lanes: tuple[int, ...]
    state: str
    active: int
    free: int
    step_ms: float = 0.0
    prefill_ms: float = 0.0
    finished_per_s: float = 0.0
    host: str = ""
    version: str = ""
    capabilities: tuple[str, ...] = ()
    artifact: str = ""
    metrics_url: str = ""

    @property
    def serves(self) -> bool:
        """Whether it takes requests; a cold one does, and compiles shapes when it first meets them."""
        return self.state in ("ready", "cold")


class Card(NamedTuple):
    """What gateways need of a model: `files` by name (tokenizer.json, tokenizer_config.json, …).

    `tokenizer` "none": texts are token ids, separated by commas.
    """

    v: int
    model: str
    fingerprint: str
    files: dict[str, bytes]
    limits: dict[str, int]
    capabilities: tuple[str, ...] = ()
    revision: str = ""
    pipeline_tag: str = ""
    tokenizer: str = ""

    @property
    def takes_ids(self) -> bool:
        return self.tokenizer == "none"


class Result(NamedTuple):
    """A finished request, kept only when somebody can come back for it."""

    v: int
    rid: bytes
    events: tuple[Event, ...]
    caller: str = ""


def new_rid(cell: int = 0) -> bytes:
    """A request id: the number of its cell in one byte, then 120 random bits."""
    return bytes([cell]) + secrets.token_bytes(15)


def encode(record: tuple[Any, ...]) -> bytes:
    """Packs a record; floats of events travel as float32, TGI's precision."""
    return msgpack.packb(record, use_single_float=not isinstance(record, Submit | Worker))  # type: ignore[no-any-return]


def encode_events(events: Sequence[Event]) -> bytes:
    """Packs one journal entry: the events of all slots at one step."""
    return msgpack.packb((VERSION, events), use_single_float=True)  # type: ignore[no-any-return]


def decode_events(data: bytes) -> list[Event]:
    """Unpacks a journal entry."""
    fields = _unpack(data)
    return [Event.read(fields_of_event) for fields_of_event in fields[1]]


def decode(cls: type[R], data: bytes) -> R:
    """Unpacks a record of `cls`; raises `Malformed` or `NewerVersion`."""
    fields = list(_unpack(data)[: len(cls._fields)])  # type: ignore[attr-defined]
    try:
        record = cls(*fields)
    except TypeError as error:
        raise Malformed(f"{cls.__name__}: {error}") from None
    try:
        return cast(R, _with_records(record))
    except TypeError as error:
        raise Malformed(f"{cls.__name__}: {error}") from None


def _with_records(record: Any) -> Any:
    """The same record with its nested tuples as records."""
    if isinstance(record, Submit):
        params: Sequence[Any] = record.params
        return record._replace(params=Params(*params[: len(Params._fields)]), prefix=tuple(map(Event.read, record.prefix)))
    if isinstance(record, Frame | Result):
        return record._replace(events=tuple(map(Event.read, record.events)))
    return record


def _unpack(data: bytes) -> Sequence[Any]:
    if len(data) > MAX_MESSAGE_BYTES:
        raise Malformed(f"message of {len(data)} bytes, at most {MAX_MESSAGE_BYTES} are read")
    try:
        fields = msgpack.unpackb(data, use_list=False, strict_map_key=False)
    except (ValueError, msgpack.UnpackException, UnicodeDecodeError) as error:
        raise Malformed(str(error)) from None
    if not isinstance(fields, tuple) or not fields or not isinstance(fields[0], int):
        raise Malformed("not a message")
    if fields[0] > VERSION:
        raise NewerVersion(f"version {fields[0]}, this release reads up to {VERSION}")
    return fields
