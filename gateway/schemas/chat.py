"""The body of `/v1/chat/completions` and `/chat_tokenize` beside sampling (TGI reference §1.9), and its messages for templates."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from common.errors import RequestError, invalid
from gateway.schemas.fields import Record, anything, boolean, described, list_of, misfit, one_of, text, uint32, wrong_type


class Function(NamedTuple):
    """Which function the model called; `arguments` as JSON, or as a string that holds it."""

    name: str
    arguments: Any = None


class ToolCall(NamedTuple):
    function: Function
    id: str = ""
    type: str = "function"


class Message(NamedTuple):
    role: str
    content: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    name: str | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None

    def for_template(self) -> dict[str, Any]:
        """As templates know messages: text, and the arguments of calls as objects."""
        shown: dict[str, Any] = {"role": self.role, "content": self.content or ""}
        for key in ("name", "tool_call_id", "reasoning_content"):
            if getattr(self, key) is not None:
                shown[key] = getattr(self, key)
        if self.tool_calls:
            shown["tool_calls"] = [
                {"id": call.id, "type": call.type, "function": {"name": call.function.name, "arguments": _parsed(call.function.arguments)}}
                for call in self.tool_calls
            ]
        return shown


class ResponseFormat(NamedTuple):
    type: str


class ChatRequest(NamedTuple):
    messages: tuple[Message, ...]
    tools: tuple[Any, ...] | None = None
    tool_choice: Any = None
    tool_prompt: str | None = None
    response_format: ResponseFormat | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    chat_template: str | None = None
    chat_template_kwargs: Any = None
    add_generation_prompt: bool = True
    continue_final_message: bool | None = None

    @property
    def continued(self) -> bool:
        """Whether the answer goes on with the last message: always when the assistant said it, unless told not to."""
        last = self.messages[-1]
        if self.continue_final_message is None:
            return last.role == "assistant" and not last.tool_calls
        return self.continue_final_message

    def check(self) -> None:
        """Raises 422 for what no worker could do yet."""
        if not self.messages:
            raise invalid("`inputs` cannot be empty")
        formatted = self.response_format is not None and self.response_format.type != "text"
        if formatted and self.tools is not None:
            raise RequestError("tool_error", "Tool error: Grammar and tools are mutually exclusive")
        if formatted:
            raise invalid("grammar is not supported")
        if self.tools and self.tool_choice != "none":
            raise RequestError("tool_error", "Tool error: tools are not supported yet")


PART_SCHEMA = {"type": "object", "properties": {"type": {"enum": ["text"]}, "text": {"type": "string"}}, "required": ["type", "text"]}


@described(anyOf=[{"type": "string"}, {"type": "array", "items": PART_SCHEMA}])
def content(value: Any, path: str) -> str:
    """Text, or parts that are put together without anything in between."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise wrong_type(value, path, "a string or a sequence")
    return "".join(_part(part, f"{path}[{index}]") for index, part in enumerate(value))


def _part(value: Any, path: str) -> str:
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        return text(value.get("text"), f"{path}.text")
    if kind == "image_url":
        raise invalid("images are not supported by this model")
    raise misfit(path, "unknown variant, expected one of `text`, `image_url`")


FUNCTION = Record(Function, {"name": text, "arguments": anything}, {"arguments": ("parameters",)})
TOOL_CALL = Record(ToolCall, {"function": FUNCTION, "id": text, "type": text})
MESSAGE = Record(
    Message,
    {
        "role": text,
        "content": content,
        "tool_calls": list_of(TOOL_CALL),
        "name": text,
        "tool_call_id": text,
        "reasoning_content": text,
    },
)


@described(**MESSAGE.schema)
def message(value: Any, path: str) -> Message:
    read = MESSAGE(value, path)
    if read.content is None and not read.tool_calls:
        raise misfit(path, "data did not match any variant of untagged enum MessageBody")
    return read


@described(type="object")
def arguments(value: Any, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise wrong_type(value, path, "a map")
    return value


CHAT = Record(
    ChatRequest,
    {
        "messages": list_of(message),
        "tools": list_of(anything),
        "tool_choice": anything,
        "tool_prompt": text,
        "response_format": Record(ResponseFormat, {"type": one_of(("text", "json", "json_object", "json_schema", "regex"))}),
        "logprobs": boolean,
        "top_logprobs": uint32,
        "chat_template": text,
        "chat_template_kwargs": arguments,
        "add_generation_prompt": boolean,
        "continue_final_message": boolean,
    },
)


def _parsed(value: Any) -> Any:
    """Arguments that came as a string of JSON, as OpenAI's clients send them."""
    if not isinstance(value, str):
        return {} if value is None else value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value
