"""Prompts to token ids with the `tokenizers` library alone (design §4), long ones off the event loop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from itertools import accumulate
from typing import NamedTuple, TypeVar

from tokenizers import Encoding, Tokenizer

from common.errors import RequestError, invalid

INLINE_CHARACTERS = 2_000
"""Shorter texts cost less here than a change of threads."""

R = TypeVar("R")


class Span(NamedTuple):
    """A token of a text: `start` and `stop` are offsets in UTF-8 bytes."""

    id: int
    text: str
    start: int
    stop: int


class Encoder:
    """One model's tokenizer, shared by all requests and threads: it is never changed after it was made.

    `joint` stands between a prompt and what is generated after it.
    """

    joint = ""

    def __init__(self, tokenizer_json: bytes, threads: Executor) -> None:
        self._tokenizer = Tokenizer.from_str(tokenizer_json.decode("utf-8"))
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        self._threads = threads
        added = json.loads(tokenizer_json).get("added_tokens") or []
        self.special_ids = frozenset(token["id"] for token in added if token.get("special"))
        self.n_before, self.n_after = self._specials_around()

    async def encode(self, text: str, truncate: int | None = None, special_tokens: bool = True) -> list[int]:
        """Ids, with special tokens added or not. `truncate` keeps the last so many, these included (TGI reference §3.7)."""
        if not special_tokens:
            return (await self._run(self._plain_ids, text))[-(truncate or 0) :]
        ids = await self._run(self._ids, text)
        return ids if truncate is None else self._last(ids, truncate)

    async def spans(self, text: str, special_tokens: bool = True) -> list[Span]:
        """The tokens with their places in `text`; added special tokens stand at 0 … 0 with no text (TGI reference §1.7)."""
        return await self._run(self._spans if special_tokens else self._plain_spans, text)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of a prompt that came as ids."""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=False)
        return text

    async def _run(self, work: Callable[[str], R], text: str) -> R:
        try:
            return await run(self._threads, work, text)
        except Exception as error:
            raise _failed(error) from error

    def _ids(self, text: str) -> list[int]:
        """The batch call gives the interpreter free, the single one does not."""
        encoding: Encoding = self._tokenizer.encode_batch_fast([text])[0]
        return encoding.ids

    def _plain_ids(self, text: str) -> list[int]:
        encoding: Encoding = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)[0]
        return encoding.ids

    def _plain_spans(self, text: str) -> list[Span]:
        return self._spans(text, special_tokens=False)

    def _spans(self, text: str, special_tokens: bool = True) -> list[Span]:
        encoding: Encoding = self._tokenizer.encode_batch([text], add_special_tokens=special_tokens)[0]
        data = text.encode("utf-8")
        at = range(len(text) + 1) if text.isascii() else [0, *accumulate(map(_n_bytes, text))]
        places = ((token, at[start], at[stop]) for token, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True))
        return [Span(token, data[start:stop].decode("utf-8", "replace"), start, stop) for token, start, stop in places]

    def _specials_around(self) -> tuple[int, int]:
        plain = self._tokenizer.encode("a", add_special_tokens=False).ids
        full = self._tokenizer.encode("a").ids
        n_added = len(full) - len(plain)
        n_before = next((n for n in range(n_added + 1) if full[n : n + len(plain)] == plain), 0)
        return n_before, n_added - n_before

    def _last(self, ids: list[int], n: int) -> list[int]:
        n_content = max(0, n - self.n_before - self.n_after)
        end = len(ids) - self.n_after
        return ids[: self.n_before] + ids[max(self.n_before, end - n_content) : end] + ids[end:]


async def run(threads: Executor, work: Callable[[str], R], text: str) -> R:
    """Long texts are worked on beside the event loop."""
    if len(text) <= INLINE_CHARACTERS:
        return work(text)
    return await asyncio.get_running_loop().run_in_executor(threads, work, text)


def _n_bytes(character: str) -> int:
    code = ord(character)
    return 1 + (code > 0x7F) + (code > 0x7FF) + (code > 0xFFFF)


def _failed(error: Exception) -> RequestError:
    """The library's message may quote the text, so only its kind is shown."""
    return invalid(f"tokenizer error {type(error).__name__}")
