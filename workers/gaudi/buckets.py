"""Settings to static shapes: which prefills are warmed, and how many columns a step may read (gaudi.md §2, §2.5).

Three generations of names, the newest that is given wins for each dimension: `VLLM_…_BUCKET_…`, then `…_EXPONENT_BASE`, then
`PREFILL_BATCH_BUCKET_SIZE`. Shapes grow by a factor unless `VLLM_EXPONENTIAL_BUCKETING=false` or only a step is given.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from common.errors import StartError
from common.shapes import Bucket

if TYPE_CHECKING:
    from common.config import Settings

log = logging.getLogger(__name__)

MAX_TOTAL = 4096
"""Default of TGI's Gaudi page; a prompt may be one shorter."""

PREFILL_TOKENS = 4096
"""TGI's default of MAX_BATCH_PREFILL_TOKENS, when one prompt may not be longer."""

BLOCK = 128
"""Columns of a block of keys and values; vLLM counts the blocks of all rows together."""


class Plan(NamedTuple):
    """`prefills` fit the budget and hold any prompt of up to `max_input` tokens; `columns` end with `max_length`. In tokens."""

    batch_size: int
    max_length: int
    prefills: tuple[Bucket, ...]
    columns: tuple[int, ...]
    max_input: int

    def __str__(self) -> str:
        pairs = f"{len(self.prefills)} prefills of up to {self.prefills[-1].length} tokens"
        return f"batch {self.batch_size}, length {self.max_length}, {pairs}, steps over {', '.join(map(str, self.columns))} columns"


class Growth(NamedTuple):
    """How one dimension grows: in at most `n_values`, else by `factor`, both rounded up to multiples of `step`; else in steps."""

    least: int
    step: int
    factor: float | None = None
    n_values: int | None = None

    def up_to(self, most: int) -> tuple[int, ...]:
        """Ascending, and exactly `most` at the end."""
        values = self._by_count(self.n_values, most) if self.n_values else self._by_factor(self.factor) if self.factor else self._by_step()
        below: list[int] = []
        for value in values:
            if value >= most:
                break
            below.append(value)
        return (*below, most)

    def _by_step(self) -> Iterable[int]:
        value = self.least
        while True:
            yield value
            value = 2 * value if 2 * value <= self.step else (value // self.step + 1) * self.step

    def _by_factor(self, factor: float) -> Iterable[int]:
        value = self.least
        while True:
            yield value
            value = max(_multiple(value + 1, self.step), _multiple(value * factor, self.step))

    def _by_count(self, n_values: int, most: int) -> Iterable[int]:
        exponents = (number / (n_values - 1) for number in range(n_values - 1))
        return sorted({_multiple(self.least * (most / self.least) ** exponent, self.step) for exponent in exponents})


class Dimension(NamedTuple):
    """What grows, with what is taken when nothing is given: least value, grain of a factor's values, step of a linear rule."""

    name: str
    least: int
    grain: int
    step: int
    factor: float


def plan(settings: Settings, max_positions: int) -> Plan:
    """What the settings ask of a model with so many positions; raises `StartError` for what contradicts itself."""
    n_rows = _batch_size(settings)
    max_input, max_length = _lengths(settings, max_positions)
    pad = settings.pad_sequence_to_multiple_of
    # TGI's factor for lengths is 2, then padding alone is a third of what is computed: python -m tests.bench waste
    seq = _growth(settings, Dimension("prompt_seq", pad, pad, pad, 1.5), settings.seq_len_exponent_base)
    row = _growth(settings, Dimension("prompt_bs", 1, 1, 32, 2.0), settings.batch_size_exponent_base, settings.prefill_batch_bucket_size)
    block = _growth(settings, Dimension("decode_block", n_rows, n_rows, BLOCK, 2.0))
    longest = settings.vllm_prompt_seq_bucket_max or max_input
    if longest < max_input:
        raise StartError(f"VLLM_PROMPT_SEQ_BUCKET_MAX={longest} is less than `max_input_tokens`({max_input})")
    lengths = seq.up_to(min(_multiple(longest, seq.step), max_length))
    lengths = tuple(length for length, shorter in zip(lengths, (0, *lengths), strict=False) if shorter < longest)
    rows = row.up_to(min(settings.vllm_prompt_bs_bucket_max or n_rows, n_rows))
    budget = settings.max_batch_prefill_tokens or max(PREFILL_TOKENS, max_input)
    blocks = block.up_to(n_rows * math.ceil(max_length / BLOCK))
    columns = sorted({min(math.ceil(n / n_rows) * BLOCK, max_length) for n in blocks})
    _say(settings)
    tokens = {length: max_input if length - seq.step < max_input <= length else length for length in lengths}
    return Plan(n_rows, max_length, _pairs(rows, tokens, budget), tuple(columns), max_input)


def _batch_size(settings: Settings) -> int:
    if settings.max_batch_size is not None:
        return settings.max_batch_size
    raise StartError("--max-batch-size is required on Gaudi: the rows of the batch, a static shape, for example --max-batch-size 8")


def _lengths(settings: Settings, max_positions: int) -> tuple[int, int]:
    """(most tokens of a prompt, most of prompt and output)."""
    asked = settings.max_total_tokens or MAX_TOTAL
    max_length = min(asked, max_positions)
    if max_length < asked:
        log.warning("`max_total_tokens`(%d) is clamped to the %d positions of the model", asked, max_positions)
    if settings.max_input_tokens is None:
        return min(max_length - 1, settings.max_batch_prefill_tokens or max_length), max_length
    if settings.max_input_tokens >= asked:
        raise StartError(f"Invalid argument: `max_input_tokens`({settings.max_input_tokens}) must be < `max_total_tokens`({asked})")
    return min(settings.max_input_tokens, max_length - 1), max_length


def _growth(settings: Settings, of: Dimension, base: float | None = None, fork_step: int | None = None) -> Growth:
    """The rule for one dimension, from vLLM's four names for it and the older two."""
    names, exponential = f"VLLM_{of.name.upper()}_BUCKET", settings.vllm_exponential_bucketing
    least, step, most, count = (getattr(settings, f"vllm_{of.name}_bucket_{part}") for part in ("min", "step", "max", "limit"))
    if least and most and least > most:
        raise StartError(f"{names}_MIN={least} is more than {names}_MAX={most}")
    if count and (exponential is False or (step and exponential is None)):
        raise StartError(f"{names}_LIMIT={count} needs VLLM_EXPONENTIAL_BUCKETING=true: without, shapes grow by {names}_STEP")
    if exponential is None and not count and not step and base is None and fork_step:
        return Growth(least or fork_step, fork_step)
    if exponential is False or (exponential is None and step):
        return Growth(least or of.least, step or of.step)
    return Growth(least or of.least, step or of.grain, base or of.factor, count)


def _pairs(rows: Sequence[int], tokens: Mapping[int, int], budget: int) -> tuple[Bucket, ...]:
    """Every length with all rows that the budget holds, at least one; `tokens` leaves out the padding of the longest prompt."""
    pairs: list[Bucket] = []
    for length, n_tokens in tokens.items():
        most = max(1, budget // n_tokens)
        pairs += [Bucket(n, length) for n in rows if n <= most] or [Bucket(most, length)]
    return tuple(pairs)


def _say(settings: Settings) -> None:
    how = "compiled, not captured, as TGI's page says (its code says false)" if settings.limit_hpu_graph else "captured, which takes memory"
    log.info("LIMIT_HPU_GRAPH=%s: prefills are %s", str(settings.limit_hpu_graph).lower(), how)
    if settings.batch_bucket_size is not None:
        log.info("BATCH_BUCKET_SIZE has no effect: there is one decode shape, of MAX_BATCH_SIZE rows")
    if settings.vllm_decode_block_bucket_max is not None:
        log.info("VLLM_DECODE_BLOCK_BUCKET_MAX has no effect: a step may read all columns")


def _multiple(value: float, step: int) -> int:
    """The least multiple of `step` that is not less."""
    return math.ceil(value / step - 1e-9) * step
