"""Prompts of a model without a tokenizer: token ids, separated by commas (`SKIP_TOKENIZER_IN_TGI` of TGI's Gaudi backend)."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor

from common.errors import invalid
from common.messages import Card
from gateway.tokenizing import Encoder, Span, run

WHITE = " \t\r\n"

MAX_DIGITS = 18
"""Longer numbers are no ids of any vocabulary."""


class IdEncoder:
    """Takes the place of `Encoder`: nothing is added to the ids, none of them is special."""

    special_ids: frozenset[int] = frozenset()
    joint = ","

    def __init__(self, n_vocabulary: int | None, threads: Executor) -> None:
        self._n_vocabulary = n_vocabulary
        self._threads = threads

    async def encode(self, text: str, truncate: int | None = None, special_tokens: bool = True) -> list[int]:
        """The last `truncate` of the ids; raises 422 for what is none."""
        return (await run(self._threads, self._ids, text))[-(truncate or 0) :]

    async def spans(self, text: str, special_tokens: bool = True) -> list[Span]:
        """The ids with their places in `text`."""
        return await run(self._threads, self._spans, text)

    def decode(self, ids: Sequence[int]) -> str:
        """The ids as a prompt."""
        return self.joint.join(map(str, ids))

    def _ids(self, text: str) -> list[int]:
        ids = [_id(number, item) for number, item in enumerate(text.split(self.joint), 1)]
        require_known(ids, self._n_vocabulary, "`inputs`")
        return ids

    def _spans(self, text: str) -> list[Span]:
        spans, at = [], 0
        for token, item in zip(self._ids(text), text.split(self.joint), strict=True):
            shown, start = item.strip(WHITE), at + len(item) - len(item.lstrip(WHITE))
            spans.append(Span(token, shown, start, start + len(shown)))
            at += len(item) + len(self.joint)
        return spans


def encoder_of(card: Card, threads: Executor) -> Encoder | IdEncoder:
    """What turns the prompts of a card's model into ids."""
    if card.takes_ids:
        return IdEncoder(card.limits.get("vocab_size"), threads)
    return Encoder(card.files["tokenizer.json"], threads)


def require_tokenizer(card: Card, what: str) -> None:
    """Raises 422 for what needs texts, where a model has only ids."""
    if card.takes_ids:
        raise invalid(f"{what} is not supported: this model is served without a tokenizer (SKIP_TOKENIZER_IN_TGI)")


def require_known(ids: Sequence[int], n_vocabulary: int | None, field: str) -> None:
    """Raises 422 unless all ids are in the vocabulary; None: its size is not known."""
    if n_vocabulary is not None and ids and max(ids) >= n_vocabulary:
        raise invalid(f"{field} token ids must be < {n_vocabulary}. Given: {max(ids)}")


def _id(number: int, item: str) -> int:
    digits = item.strip(WHITE)
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= MAX_DIGITS):
        raise invalid(f"`inputs` must be token ids separated by commas: this model is served without a tokenizer. Not an id: item {number}")
    return int(digits)
