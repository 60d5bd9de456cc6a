"""A slot is one row of the static batch; a row is the request that occupies it (design §2)."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from time import monotonic
from typing import TYPE_CHECKING

from common.messages import Event, Submit

if TYPE_CHECKING:
    from workers.detokenize import Detokenizer, IdText, StopStrings
    from workers.sampling import Context


class State(Enum):
    FREE = auto()
    PREFILL = auto()  # waits for its prefill
    REPLAY = auto()  # known tokens go through decode, outputs ignored
    DECODE = auto()
    ENDED = auto()  # its last event is on the way to the journal


_MOVES = {
    State.FREE: {State.PREFILL, State.REPLAY, State.ENDED},
    State.PREFILL: {State.REPLAY, State.DECODE, State.ENDED},
    State.REPLAY: {State.DECODE, State.ENDED},
    State.DECODE: {State.ENDED},
    State.ENDED: {State.FREE},
}


@dataclass(eq=False)
class Row:
    """One request while it runs here. `events` are all its events so far, `n_adopted` of them from before this owner."""

    rid: bytes
    epoch: int
    submit: Submit
    gateways: tuple[str, ...]
    events: list[Event]
    waited_ms: float
    detokenizer: Detokenizer | IdText | None = None
    stops: StopStrings | None = None
    context: Context | None = None
    n_prefill: int = 0
    at: int = 0  # cache position of the next token
    replay: deque[int] = field(default_factory=deque)
    token: int = 0  # the last token, not yet in the cache
    n_tokens: int = 0  # generated, commits included that are not events yet
    n_adopted: int = 0
    n_flushed: int = 0  # events that were handed to a flush
    journal_step: int = 0  # first journal entry here that holds all events; 0: none yet
    progressed: bool = False
    n_equal: int = 0  # how often the last token came in a row
    prefill_ms: float = 0.0
    bucket: int = 0
    prompt_logprobs: Sequence[float] = ()
    prompt_best: Sequence[tuple[int, float]] = ()
    started_s: float = 0.0
    arrived_s: float = field(default_factory=monotonic)
    deadline_s: float | None = None
    late: bool = False  # ended by its deadline
    suspect: bool = False  # died twice with its worker: its next prefill takes nobody else
    solo: bool = False  # runs alone: it may have killed its workers
    over: bool = False  # arrived with nothing left to compute


class Slot:
    """States move only along `_MOVES`."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.state = State.FREE
        self.row: Row | None = None

    def move(self, state: State, row: Row | None = None) -> None:
        if state not in _MOVES[self.state]:
            raise AssertionError(f"slot {self.index}: {self.state.name} → {state.name}")
        self.state = state
        if row is not None:
            self.row = row
        if state is State.FREE:
            self.row = None

    @property
    def running(self) -> bool:
        """Whether a decode step advances this slot."""
        return self.state in (State.REPLAY, State.DECODE)
