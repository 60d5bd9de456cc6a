"""Chats to prompts with the model's own template, by transformers' sandboxed renderer and without torch (design §4, TGI reference §7)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from common.errors import RequestError

ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")

END_OF_PROMPT = "\ue0f1\ue0f2\ue0f3"
"""Marks where a message to be continued ends: characters for private use, which no template trims."""

RESERVED = {"messages", "conversations", "tools", "documents", "chat_template", "add_generation_prompt", "continue_final_message"}
RESERVED |= {"return_assistant_tokens_mask"}
"""What a client's template arguments may not replace."""


class ChatTemplate:
    """One model's templates; never changed after it was made, so any thread may use it."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        import transformers.utils.chat_template_utils  # noqa: F401  here, off the event loop: it takes a second

        config = _json(files, "tokenizer_config.json")
        self._templates = _templates(files, config)
        self._special_tokens = _special_tokens({**_json(files, "special_tokens_map.json"), **config})

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        name: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        generation_prompt: bool = True,
        continued: bool = False,
    ) -> str:
        """The prompt; with `continued` it ends right after the last message's content, less trailing white space.

        `name` picks one of several templates, else tools take the one called `tool_use`. Raises `template_error`, with the
        template's own sentence when it refuses the chat.
        """
        from transformers.utils.chat_template_utils import render_jinja_template

        template = self._find(name, bool(tools))
        chat = [dict(message) for message in messages]
        if continued:
            chat[-1]["content"] = chat[-1]["content"].rstrip() + END_OF_PROMPT
        given = {key: value for key, value in (arguments or {}).items() if key not in RESERVED}
        try:
            rendered: Any = render_jinja_template(
                conversations=[chat], tools=[dict(tool) for tool in tools] if tools else None, chat_template=template,
                add_generation_prompt=generation_prompt and not continued, **{**self._special_tokens, **given},
            )  # fmt: skip
        except Exception as error:  # whatever a template does wrong is its own affair
            raise refused(str(error) or type(error).__name__) from error
        prompt: str = rendered[0][0]
        if not continued:
            return prompt
        if END_OF_PROMPT not in prompt:
            return self.render(messages, tools, name, arguments, generation_prompt)
        return prompt[: prompt.rindex(END_OF_PROMPT)]

    def _find(self, name: str | None, with_tools: bool) -> str:
        names = (name,) if name else (("tool_use", "default") if with_tools else ("default",))
        for wanted in names:
            if wanted in self._templates:
                return self._templates[wanted]
        raise refused("template not found")


def refused(detail: str) -> RequestError:
    return RequestError("template_error", f"Template error: {detail}")


def _templates(files: Mapping[str, bytes], config: Mapping[str, Any]) -> dict[str, str]:
    """By name; `chat_template.jinja` comes before `chat_template.json`, and that before the tokenizer's configuration."""
    named = config.get("chat_template")
    named = _json(files, "chat_template.json").get("chat_template", named)
    if isinstance(named, list):
        found = {str(each["name"]): str(each["template"]) for each in named}
    else:
        found = {"default": named} if isinstance(named, str) else {}
    if "chat_template.jinja" in files:
        found["default"] = files["chat_template.jinja"].decode("utf-8")
    return found


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """What templates call `bos_token`, `eos_token` and so on."""
    found = {}
    for role in ROLES:
        token = config.get(f"{role}_token")
        content = token.get("content") if isinstance(token, Mapping) else token
        if isinstance(content, str):
            found[f"{role}_token"] = content
    return found


def _json(files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    value = json.loads(files[name]) if name in files else {}
    return value if isinstance(value, dict) else {}
