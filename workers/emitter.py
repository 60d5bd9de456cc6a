"""From picked tokens to events: text, stop strings, why a row ended (design §7, TGI reference §3.5, §3.8)."""

from __future__ import annotations

import json
from time import monotonic
from typing import NamedTuple

from tokenizers import Tokenizer

from common.messages import Card, Event, Failure, Finish, First, Flag, Want
from workers.detokenize import Detokenizer, IdText, StopStrings, special_ids
from workers.sampling import Context, Picked, penalises
from workers.slots import Row


class Output(NamedTuple):
    """What a device call gave one row. `reason` is set when the row ended with this token."""

    row: Row
    picked: Picked
    reason: str = ""
    detail: str = "the model's output is not a number"


class Emitter:
    """Owns the host-side state of rows: detokenizer, stop strings, penalty context."""

    def __init__(self, card: Card, artifact: str) -> None:
        self._artifact = artifact
        self._tokenizer: Tokenizer | None = None
        if not card.takes_ids:
            self._tokenizer = Tokenizer.from_buffer(card.files["tokenizer.json"])
            self._special_ids = special_ids(self._tokenizer, json.loads(card.files.get("tokenizer_config.json", b"null")))

    def prepare(self, row: Row) -> None:
        """Builds a row's state from its prompt and from what was already shown."""
        shown = [event.token for event in row.events]
        row.detokenizer = Detokenizer(self._tokenizer, self._special_ids, row.submit.input_ids) if self._tokenizer else IdText()
        row.detokenizer.replay(shown)
        row.stops = StopStrings(row.submit.stop)
        for event in row.events:
            row.stops.push(event.text)
        if penalises(row.submit.params):
            row.context = Context(row.submit.input_ids, shown)

    def event(self, output: Output) -> Event:
        """The event of one token; raises nothing for any token the engine may give."""
        row, picked = output.row, output.picked
        if picked.bad:
            return failure(row, output.detail)
        if row.detokenizer is None:
            self.prepare(row)
        assert row.detokenizer is not None and row.stops is not None
        text = row.detokenizer.push(picked.token)
        stopped = row.stops.push(text)
        reason = output.reason or ("stop_sequence" if stopped else "")
        flags = Flag.SPECIAL if row.detokenizer.is_special(picked.token) else Flag(0)
        first = None
        if len(row.events) == row.n_adopted:
            flags |= Flag.FIRST
            first = First(row.waited_ms, row.prefill_ms, row.bucket, self._artifact)
        finish = None
        if reason:
            flags |= Flag.FINISH | (Flag.DEADLINE if row.late else Flag(0))
            finish = Finish(reason, len(row.events) + 1, (monotonic() - row.started_s) * 1000)
        return Event(
            row.rid, row.epoch, len(row.events), picked.token, picked.logprob, text, int(flags),
            tuple((token, logprob, self._text(token)) for token, logprob in picked.top), first, finish,
            prefill=self._prefill(row) if not row.events else (),
            prefill_top=tuple((token, value, self._text(token)) for token, value in row.prompt_best) if not row.events else (),
        )  # fmt: skip

    def _prefill(self, row: Row) -> tuple[tuple[int, float, str], ...]:
        if not row.submit.want & Want.PREFILL_LOGPROBS:
            return ()
        values = (float("nan"), *row.prompt_logprobs)
        return tuple((token, value, self._text(token)) for token, value in zip(row.submit.input_ids, values, strict=False))

    def _text(self, token: int) -> str:
        return str(self._tokenizer.decode([token], skip_special_tokens=False) if self._tokenizer else token)


def failure(row: Row, detail: str) -> Event:
    """The one error a running row ends with."""
    message = f"Request failed during generation: {detail}"
    return Event(row.rid, row.epoch, len(row.events), -1, 0.0, "", int(Flag.ERROR), error=Failure("generation", message))
