"""Text of tokens as they come, and stop strings in it (design §7, TGI reference §3.5, §3.8, §3.9)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer

CONTEXT_TOKENS = 5
"""How much of the prompt is decoded along with new tokens: what stands left of a token decides its leading space."""

MAX_CUT_TOKENS = 3
"""A character cut by the start of the context has at most this many tokens before it."""

MAX_HELD_TOKENS = 16
"""No character takes this many tokens: bytes still incomplete are broken, and shown as a decoder shows them."""

REPLACEMENT = "\ufffd"


class Detokenizer:
    """Gives each token of one request its own text; the texts joined are the full decoding less the prompt.

    A token that leaves a character incomplete gets "", the one that completes it the whole character; bytes that never become
    one when the text ends are dropped. A special token's text is its own content and is no part of the characters around it.
    """

    def __init__(self, tokenizer: Tokenizer, special_ids: frozenset[int], prompt_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._special_ids = special_ids
        self._window = self._end_of(prompt_ids)
        self._n_read = len(self._window)
        self._read_text = self._decode(self._window)

    def is_special(self, token: int) -> bool:
        return token in self._special_ids

    def push(self, token: int) -> str:
        """The text that `token` adds."""
        if token in self._special_ids:
            self._start_at([token], self._decode([token]))
            return self._tokenizer.id_to_token(token) or ""
        self._window.append(token)
        text = self._decode(self._window)
        n_held = len(self._window) - self._n_read
        if n_held < MAX_HELD_TOKENS and (len(text) <= len(self._read_text) or text.endswith(REPLACEMENT)):
            return ""
        new = text[len(self._read_text) :]
        context = self._window[self._n_read :]
        self._start_at(context, self._decode(context))
        return new

    def replay(self, tokens: Sequence[int]) -> None:
        """Takes tokens that were shown before, as after a takeover."""
        for token in tokens:
            self.push(token)

    def _end_of(self, prompt_ids: Sequence[int]) -> list[int]:
        """The last tokens of the prompt, from the start of a character."""
        for n_tokens in range(CONTEXT_TOKENS, CONTEXT_TOKENS + MAX_CUT_TOKENS + 1):
            window = list(prompt_ids[-n_tokens:])
            if not self._decode(window).startswith(REPLACEMENT):
                return window
        return list(prompt_ids[-CONTEXT_TOKENS:])

    def _start_at(self, window: list[int], text: str) -> None:
        self._window, self._n_read, self._read_text = window, len(window), text

    def _decode(self, tokens: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(tokens, skip_special_tokens=False)
        return text


class IdText:
    """Texts of a model without a tokenizer: ids, each but the first after a comma, and none of them special."""

    def __init__(self) -> None:
        self._joint = ""

    def is_special(self, token: int) -> bool:
        return False

    def push(self, token: int) -> str:
        text, self._joint = f"{self._joint}{token}", ","
        return text

    def replay(self, tokens: Sequence[int]) -> None:
        """Takes tokens that were shown before."""
        for token in tokens:
            self.push(token)


class StopStrings:
    """Tells when generated text first contains one of `stops`, wherever in a token it ends; keeps only the tail it needs."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._n_kept = max(map(len, stops), default=1) - 1
        self._tail = ""

    def push(self, text: str) -> bool:
        """Whether the text so far contains a stop string, `text` being its newest piece, special tokens included."""
        seen = self._tail + text
        self._tail = seen[-self._n_kept :] if self._n_kept > 0 else ""
        return any(stop in seen for stop in self._stops)


def special_ids(tokenizer: Tokenizer, config: Mapping[str, Any] | None = None) -> frozenset[int]:
    """Tokens flagged special in tokenizer.json, and those that tokenizer_config.json gives a role."""
    flagged = {token for token, added in tokenizer.get_added_tokens_decoder().items() if added.special}
    named = (tokenizer.token_to_id(content) for content in _contents_with_roles(config or {}))
    return frozenset(flagged | {token for token in named if token is not None})


def _contents_with_roles(config: Mapping[str, Any]) -> list[str]:
    entries = [config.get(f"{role}_token") for role in ("bos", "eos", "unk", "sep", "pad", "cls", "mask")]
    entries += [entry for entry in config.get("added_tokens_decoder", {}).values() if entry.get("special")]
    for key in ("additional_special_tokens", "extra_special_tokens"):
        more = config.get(key) or ()
        entries += more.values() if isinstance(more, Mapping) else more
    contents = [entry.get("content") if isinstance(entry, Mapping) else entry for entry in entries]
    return [content for content in contents if isinstance(content, str)]
