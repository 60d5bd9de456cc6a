"""What both OpenAI routes show of generations: text, finish reasons, usage, errors (TGI reference §1.9.5, §2.3, §8)."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Sequence
from time import time
from typing import Any

from common.errors import RequestError, invalid
from common.messages import Event, Flag
from gateway import sse
from gateway.call import Call
from gateway.generation import Generation
from gateway.release import TGI_VERSION
from gateway.schemas.openai import Sampling
from gateway.stopping import StopCut

FINGERPRINT = f"{TGI_VERSION}-native"
FINISH_REASONS = {"eos_token": "stop", "stop_sequence": "stop", "length": "length"}
DONE = b"data: [DONE]\n\n"

Head = dict[str, Any]
"""What all chunks of an answer have in common."""


class Choice:
    """The text of one generation as it grows, cut before a stop string; the same whole or streamed."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._cut = StopCut(stops)
        self.finish_reason: str | None = None

    def add(self, event: Event) -> str:
        """What the event adds to the text; with the last one also what was held back."""
        text = self._cut.push(event.text, bool(event.flags & Flag.SPECIAL))
        if event.finish is not None:
            text += self._cut.end()
            self.finish_reason = "stop" if self._cut.stopped else FINISH_REASONS.get(event.finish.reason, event.finish.reason)
        return text


def choice_of(generation: Generation) -> tuple[str, str | None]:
    """Text and finish reason of a generation that has ended."""
    choice = Choice(generation.parameters.stop)
    text = "".join(choice.add(event) for event in generation.events)
    return text, choice.finish_reason


def head(kind: str, prefix: str, model: str) -> Head:
    """The id is unique and the same in all chunks of an answer."""
    return {
        "object": kind,
        "id": f"{prefix}-{secrets.token_hex(16)}",
        "created": int(time()),
        "model": model,
        "system_fingerprint": FINGERPRINT,
    }


def usage(prompts: Iterable[Generation], generated: Iterable[Generation]) -> dict[str, int]:
    """Each prompt counts once, however many answers it gets."""
    n_prompt = sum(generation.n_input for generation in prompts)
    n_generated = sum(len(generation.events) for generation in generated)
    return {"prompt_tokens": n_prompt, "completion_tokens": n_generated, "total_tokens": n_prompt + n_generated}


def last(head: Head, usage: dict[str, int] | None) -> bytes:
    """The end of a stream that went well, with a chunk of usage when that was asked for."""
    return DONE if usage is None else sse.event({**head, "choices": [], "usage": usage}) + DONE


def failed(error: RequestError) -> bytes:
    """The end of a stream that fails, with the status it would have had at its start."""
    return sse.event({"error": {"message": error.message, "http_status_code": error.status}}) + DONE


def served_name(call: Call, model: str | None) -> str:
    return call.service.model(model).name


def check_choices(call: Call, sampling: Sampling) -> None:
    most = call.service.settings.max_client_batch_size
    if not 0 < sampling.n <= most:
        raise invalid(f"`n` must be > 0 and <= {most}. Given: {sampling.n}")


def seeds(sampling: Sampling, n: int) -> list[int | None]:
    """Choices of one prompt differ, and are the same again for the same seed."""
    return [None if sampling.seed is None else (sampling.seed + index) % 2**64 for index in range(n)]
