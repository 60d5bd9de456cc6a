"""`/invocations`: the body's shape says which route it means (TGI reference §1.11)."""

from __future__ import annotations

from typing import Any, TypeVar

from common.errors import RequestError
from gateway.call import Call
from gateway.routes.chat import serve_chat
from gateway.routes.completions import serve_completions
from gateway.routes.tgi import serve_compat
from gateway.schemas.chat import CHAT
from gateway.schemas.completions import COMPLETION
from gateway.schemas.fields import Record, misfit
from gateway.schemas.openai import SAMPLING
from gateway.schemas.tgi import GENERATE

R = TypeVar("R", bound=tuple[Any, ...])


async def invocations(call: Call) -> None:
    """The first of `/`, chat and completions that takes the body; one that fits and asks too much has its own error."""
    value = await call.json()
    if (generate := _fits(GENERATE, value)) is not None:
        await serve_compat(call, generate)
    elif (chat := _fits(CHAT, value)) is not None and (sampling := _fits(SAMPLING, value)) is not None:
        await serve_chat(call, chat, sampling)
    elif (completion := _fits(COMPLETION, value)) is not None and (sampling := _fits(SAMPLING, value)) is not None:
        await serve_completions(call, completion, sampling)
    else:
        raise misfit("", "data did not match any variant of untagged enum SagemakerRequest")


def _fits(record: Record[R], value: Any) -> R | None:
    try:
        return record(value)
    except RequestError as error:
        if error.message.startswith("Input validation error"):
            raise
        return None
