"""The body of `/v1/completions` beside sampling (TGI reference §1.10)."""

from __future__ import annotations

from typing import Any, NamedTuple

from gateway.schemas.fields import Record, boolean, described, list_of, misfit, text, uint32, wrong_type

Prompt = str | tuple[int, ...]
"""Text, or token ids that are taken as they are."""


class CompletionRequest(NamedTuple):
    prompt: tuple[Prompt, ...]
    suffix: str | None = None
    echo: bool = False
    logprobs: int | None = None
    best_of: int | None = None


_ids = list_of(uint32)
_IDS_SCHEMA = {"type": "array", "items": {"type": "integer", "minimum": 0}}
_MANY = [{"type": "array", "minItems": 1, "items": items} for items in ({"type": "string"}, _IDS_SCHEMA)]


@described(anyOf=[{"type": "string"}, _IDS_SCHEMA, *_MANY])
def prompts(value: Any, path: str) -> tuple[Prompt, ...]:
    """A text, a list of token ids, or a list of either."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        raise wrong_type(value, path, "a string or a sequence")
    if not value:
        raise misfit("", "Empty array detected. Do not use an empty array for the prompt.")
    if isinstance(value[0], int):
        return (_ids(value, path),)
    return tuple(item if isinstance(item, str) else _ids(item, f"{path}[{index}]") for index, item in enumerate(value))


COMPLETION = Record(
    CompletionRequest,
    {"prompt": prompts, "suffix": text, "echo": boolean, "logprobs": uint32, "best_of": uint32},
)
