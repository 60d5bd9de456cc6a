"""Templates: which one, with what, and that they are rendered as transformers does (TGI reference §7, §8 row 20)."""

from __future__ import annotations

import json
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from common.errors import RequestError
from gateway.templating import ChatTemplate
from tests.gateway.scripted import tokenizer_json

HI = [{"role": "user", "content": "hi"}]
FORMATTED = """{%- for message in messages %}
    {%- if loop.first and tools %}
        {{- tools | tojson }}
    {%- endif %}
    <|{{ message.role }}|>
{{ message.content | trim }}
{% endfor %}
{% if add_generation_prompt %}
<|assistant|>
{% endif %}
"""


def template(config: dict[str, Any] | None = None, **files: str) -> ChatTemplate:
    named = {name.replace("__", "."): text.encode() for name, text in files.items()}
    return ChatTemplate({"tokenizer_config.json": json.dumps(config or {}).encode(), **named})


def refusal(made: ChatTemplate, **given: Any) -> str:
    with pytest.raises(RequestError) as caught:
        made.render(HI, **given)
    assert (caught.value.kind, caught.value.status) == ("template_error", 422)
    return caught.value.message.removeprefix("Template error: ")


def test_it_is_rendered_as_transformers_does() -> None:
    chat = [*HI, {"role": "assistant", "content": " é <&> "}, {"role": "user", "content": "x"}]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"b": 1, "a": "<é>"}}}]
    from tokenizers import Tokenizer

    library = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(tokenizer_json().decode()), chat_template=FORMATTED)
    expected = library.apply_chat_template(chat, tools=tools, tokenize=False, add_generation_prompt=True)
    assert template(chat_template__jinja=FORMATTED).render(chat, tools) == expected


def test_which_template() -> None:
    config = {"chat_template": "config"}
    file = json.dumps({"chat_template": "json"})
    assert template(config).render(HI) == "config"
    assert template(config, chat_template__json=file).render(HI) == "json"
    assert template(config, chat_template__json=file, chat_template__jinja="jinja").render(HI) == "jinja"
    named = template({"chat_template": [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]})
    assert (named.render(HI), named.render(HI, tools=[{}]), named.render(HI, name="tool_use")) == ("d", "t", "t")
    assert refusal(named, name="rag") == "template not found"
    assert refusal(template()) == "template not found"
    assert refusal(template({"chat_template": [{"name": "rag", "template": "r"}]})) == "template not found"


def test_special_tokens_and_arguments_reach_it() -> None:
    config = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": None}
    made = template(config, chat_template__jinja="{{ bos_token }}{{ eos_token }}{{ pad_token }}{{ depth }}{{ messages | length }}")
    assert made.render(HI, arguments={"depth": 2}) == "<s></s>21"
    names = ("messages", "conversations", "chat_template", "tools", "documents", "add_generation_prompt", "return_assistant_tokens_mask")
    assert made.render(HI, arguments=dict.fromkeys(names, "x")) == "<s></s>1"


def test_what_a_template_does_wrong_is_said_in_its_own_words() -> None:
    assert refusal(template(chat_template__jinja="{{ raise_exception('Roles must alternate') }}")) == "Roles must alternate"
    assert "unexpected end" in refusal(template(chat_template__jinja="{{ broken"))
    assert "nope" in refusal(template(chat_template__jinja="{{ nope.field }}"))
    assert refusal(template(chat_template__jinja="{{ 1 // 0 }}"))


@pytest.mark.parametrize("code", ["''.__class__.__mro__", "messages.append(1)", "cycler.__init__.__globals__.os", "range(10**9)|list"])
def test_templates_run_in_a_sandbox(code: str) -> None:
    made = template(chat_template__jinja="{{ " + code + " }}")
    try:
        assert "class" not in made.render(HI)
    except RequestError as error:
        assert error.kind == "template_error"


@pytest.mark.parametrize("text", ["I say", " I say  ", "a", "", "<|assistant|>", "x" * 3000])
def test_a_continued_message_ends_the_prompt(text: str) -> None:
    made = template(chat_template__jinja=FORMATTED)
    prompt = made.render([*HI, {"role": "assistant", "content": text}], continued=True)
    assert prompt.endswith("<|assistant|>\n" + text.strip())


def test_a_template_that_drops_the_message_gives_the_whole_prompt() -> None:
    made = template(chat_template__jinja="{{ messages[0].content }}{% if add_generation_prompt %}>{% endif %}")
    assert made.render([*HI, {"role": "assistant", "content": "x"}], continued=True) == "hi>"
