"""Who may enter: permits, and the checks of a request in TGI's order with TGI's messages (TGI reference §1.1.2, §1.1.3). Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sized
from contextlib import contextmanager
from typing import NamedTuple

from common.errors import RequestError, invalid, overloaded
from gateway.schemas.tgi import GenerateParameters

MAX_BIASED_TOKENS = 1024


class Limits(NamedTuple):
    """What requests are checked against; lengths in tokens."""

    max_best_of: int
    max_stop_sequences: int
    max_top_n_tokens: int
    max_input_tokens: int
    max_total_tokens: int


class Permits:
    """At most `limit` requests at once, None: any number; a request never waits for one. Calls `when_idle` after the last."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.taken = 0
        self.when_idle: Callable[[], None] = lambda: None

    @contextmanager
    def take(self, n: int = 1) -> Iterator[None]:
        """All `n`, or raises 429."""
        if self.limit is not None and self.taken + n > self.limit:
            raise overloaded()
        self.taken += n
        try:
            yield
        finally:
            self.taken -= n
            if not self.taken:
                self.when_idle()


class Rule(NamedTuple):
    """Violated when `broken` says so."""

    broken: Callable[[GenerateParameters, Limits], bool]
    message: Callable[[GenerateParameters, Limits], str]


def _outside(value: float | None, low: float, high: float) -> bool:
    return value is not None and not low < value < high


def _samples_at_all(p: GenerateParameters) -> bool:
    """The looser reading of `best_of`: a temperature of 1.0 counts."""
    return p.do_sample or any(value is not None for value in (p.temperature, p.top_k, p.top_p, p.typical_p))


STREAM_RULES = (
    Rule(lambda p, _: p.best_of not in (None, 1), lambda *_: "`best_of` != 1 is not supported when streaming tokens"),
    Rule(lambda p, _: p.decoder_input_details, lambda *_: "`decoder_input_details` == true is not supported when streaming tokens"),
)
"""Checked before the permit is taken."""

BEST_OF_RULES = (
    Rule(
        lambda p, limits: (p.best_of or 1) > limits.max_best_of == 1,
        lambda *_: "`best_of` != 1 is not allowed for this endpoint",
    ),
    Rule(
        lambda p, limits: (p.best_of or 1) > limits.max_best_of,
        lambda p, limits: f"`best_of` must be > 0 and <= {limits.max_best_of}. Given: {p.best_of}",
    ),
)
"""Checked before the permit is taken."""

PARAMETER_RULES = (
    Rule(
        lambda p, _: (p.best_of or 1) > 1 and not _samples_at_all(p),
        lambda *_: "you must use sampling when `best_of` is > 1",
    ),
    Rule(lambda p, _: p.temperature is not None and p.temperature <= 0, lambda *_: "`temperature` must be strictly positive"),
    Rule(
        lambda p, _: p.repetition_penalty is not None and p.repetition_penalty <= 0,
        lambda *_: "`repetition_penalty` must be strictly positive",
    ),
    Rule(
        lambda p, _: p.frequency_penalty is not None and not -2.0 <= p.frequency_penalty <= 2.0,
        lambda *_: "`frequency_penalty` must be >= -2.0 and <= 2.0",
    ),
    Rule(
        lambda p, _: p.presence_penalty is not None and not -2.0 <= p.presence_penalty <= 2.0,
        lambda *_: "`presence_penalty` must be >= -2.0 and <= 2.0",
    ),
    Rule(
        lambda p, _: any(not -100 <= bias <= 100 for _, bias in p.logit_bias),
        lambda *_: "`logit_bias` values must be >= -100.0 and <= 100.0",
    ),
    Rule(
        lambda p, _: len(p.logit_bias) > MAX_BIASED_TOKENS,
        lambda p, _: f"`logit_bias` supports up to {MAX_BIASED_TOKENS} tokens. Given: {len(p.logit_bias)}",
    ),
    Rule(lambda p, _: p.min_p is not None and not 0.0 <= p.min_p <= 1.0, lambda *_: "`min_p` must be >= 0.0 and <= 1.0"),
    Rule(lambda p, _: _outside(p.top_p, 0.0, 1.0), lambda *_: "`top_p` must be > 0.0 and < 1.0"),
    Rule(lambda p, _: _outside(p.typical_p, 0.0, 1.0), lambda *_: "`typical_p` must be > 0.0 and < 1.0"),
    Rule(lambda p, _: p.top_k is not None and p.top_k <= 0, lambda *_: "`top_k` must be strictly positive"),
    Rule(lambda p, _: p.max_new_tokens == 0, lambda *_: "`max_new_tokens` must be strictly positive"),
    Rule(
        lambda p, limits: len(p.stop) > limits.max_stop_sequences,
        lambda p, limits: f"`stop` supports up to {limits.max_stop_sequences} stop sequences. Given: {len(p.stop)}",
    ),
    Rule(
        lambda p, _: (p.best_of or 1) > 1 and p.seed is not None,
        lambda *_: "`seed` must not be set when `best_of` > 1",
    ),
    Rule(
        lambda p, limits: (p.top_n_tokens or 0) > limits.max_top_n_tokens,
        lambda p, limits: f"`top_n_tokens` must be >= 0 and <= {limits.max_top_n_tokens}. Given: {p.top_n_tokens}",
    ),
    Rule(lambda p, _: p.watermark, lambda *_: "`watermark` is not supported yet"),
    Rule(lambda p, _: bool(p.adapter_id), lambda *_: "`adapter_id` is not supported yet"),
)

TRUNCATE_RULE = Rule(
    lambda p, limits: p.truncate is not None and not 0 < p.truncate <= limits.max_input_tokens,
    lambda p, limits: f"`truncate` must be strictly positive and less than {limits.max_input_tokens}. Given: {p.truncate}",
)

GRAMMAR_RULE = Rule(lambda p, _: p.grammar is not None, lambda *_: "grammar is not supported")


def check(rules: tuple[Rule, ...], parameters: GenerateParameters, limits: Limits) -> None:
    """Raises 422 for the first rule that is broken."""
    for rule in rules:
        if rule.broken(parameters, limits):
            raise invalid(rule.message(parameters, limits))


def check_request(inputs: Sized, parameters: GenerateParameters, limits: Limits) -> None:
    """Everything that can be said before the prompt is tokenized."""
    check(PARAMETER_RULES, parameters, limits)
    if not len(inputs):
        raise invalid("`inputs` cannot be empty")
    check((TRUNCATE_RULE,), parameters, limits)


def check_lengths(n_input: int, max_new_tokens: int | None, limits: Limits) -> None:
    """Whether prompt and output fit; an unset `max_new_tokens` needs room for one token."""
    if n_input == 0:
        raise invalid("`inputs` cannot be empty")
    if max_new_tokens is not None and n_input + max_new_tokens > limits.max_total_tokens:
        raise never_fits(n_input, max_new_tokens, limits.max_total_tokens)
    if n_input > limits.max_input_tokens:
        raise invalid(f"`inputs` must have less than {limits.max_input_tokens} tokens. Given: {n_input}")
    if n_input >= limits.max_total_tokens:
        raise never_fits(n_input, 1, limits.max_total_tokens)


def never_fits(n_input: int, max_new_tokens: int, max_total_tokens: int) -> RequestError:
    """No shape of the farm holds the request."""
    given = f"Given: {n_input} `inputs` tokens and {max_new_tokens} `max_new_tokens`"
    return invalid(f"`inputs` tokens + `max_new_tokens` must be <= {max_total_tokens}. {given}")
