"""A chat to its prompt in the gateway ÷ transformers' own rendering of the same chat."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from gateway.schemas.chat import CHAT
from gateway.templating import ChatTemplate
from tests.bench.figures import Figure
from tests.bench.validation import SENTENCE, tokenizer

BAR = 1.5
N_ROUNDS = 300
N_MESSAGES = (2, 20, 200)
TEMPLATE = (
    "{%- for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] | trim }}<|im_end|>\n{% endfor %}"
    "{%- if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def fastest_us(run: Callable[[], object]) -> float:
    fastest_s = float("inf")
    for _ in range(N_ROUNDS):
        start_s = time.perf_counter()
        run()
        fastest_s = min(fastest_s, time.perf_counter() - start_s)
    return fastest_s * 1e6


def templating(_: Path) -> list[Figure]:
    """One figure per length of chat."""
    library = PreTrainedTokenizerFast(tokenizer_object=tokenizer(), chat_template=TEMPLATE)
    template = ChatTemplate({"chat_template.jinja": TEMPLATE.encode()})
    return [figure(n, library, template) for n in N_MESSAGES]


def figure(n_messages: int, library: Any, template: ChatTemplate) -> Figure:
    messages = [{"role": ("user", "assistant")[n % 2], "content": SENTENCE} for n in range(n_messages)]
    request = CHAT({"messages": messages})

    def bare() -> object:
        return library.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)

    def gateway() -> object:
        return template.render([message.for_template() for message in request.messages])

    assert bare() == gateway()
    gateway_us = fastest_us(gateway)
    return Figure(f"templating ÷ transformers, {n_messages} messages", gateway_us / fastest_us(bare), BAR, note=f"{gateway_us:.0f} µs")
