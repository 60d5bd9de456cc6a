"""`/v1/chat/completions` and `/chat_tokenize` (TGI reference §1.8, §1.9, §2.3)."""

from __future__ import annotations

import asyncio
from typing import Any

from common.errors import RequestError
from common.messages import Event
from gateway import headers, openai, outcome, running, sse
from gateway.call import Call
from gateway.generation import Generation
from gateway.schemas.chat import CHAT, ChatRequest
from gateway.schemas.openai import SAMPLING, Sampling
from gateway.templating import ChatTemplate
from gateway.token_ids import require_tokenizer

INLINE_CHARACTERS = 50_000
"""Longer chats are rendered beside the event loop."""

PER_MESSAGE = 200
"""What a message costs by itself, in characters."""


async def chat(call: Call) -> None:
    value = await call.json()
    await serve_chat(call, CHAT(value), SAMPLING(value))


async def chat_tokenize(call: Call) -> None:
    """The rendered chat and its tokens, none added."""
    value = await call.json()
    request, sampling = CHAT(value), SAMPLING(value)
    prompt = await _prompt(call, request, sampling)
    call.service.metrics.requests.inc()
    encoder = await call.service.encoders.of(call.service.model(sampling.model).card)
    spans = [span._asdict() for span in await encoder.spans(prompt, special_tokens=False)]
    await call.answer_json({"tokenize_response": spans, "templated_text": prompt})


async def serve_chat(call: Call, request: ChatRequest, sampling: Sampling) -> None:
    """Every chunk has the role; the last token's chunk has the finish reason."""
    prompt = await _prompt(call, request, sampling)
    parameters = sampling.parameters()._replace(top_n_tokens=request.top_logprobs)
    generations = [
        Generation(call, prompt, parameters._replace(seed=seed), model=sampling.model, special_tokens=False)
        for seed in openai.seeds(sampling, sampling.n)
    ]
    session = call.session((request, sampling))
    served = openai.served_name(call, sampling.model)
    model = served if sampling.model in (None, "", "tgi") else str(sampling.model)
    if sampling.stream:
        await running.stream(call, generations, session, Chunks(generations, request, sampling, model))
        return
    if not await running.complete(call, generations, session):
        return
    answer = openai.head("chat.completion", "chatcmpl", model)
    answer["choices"] = [_choice(index, generation, request.logprobs) for index, generation in enumerate(generations)]
    answer["usage"] = openai.usage(generations[:1], generations)
    timings = [generation.timing() for generation in generations]
    await call.answer_json(answer, headers.of_response(call.service.compute_type, len(prompt), timings))
    for generation in generations:
        outcome.succeeded(generation)


async def _prompt(call: Call, request: ChatRequest, sampling: Sampling) -> str:
    """The rendered chat; raises what the request or the template says against it."""
    try:
        request.check()
        openai.check_choices(call, sampling)
        card = call.service.model(sampling.model).card
        require_tokenizer(card, "a chat")
        template = await call.service.templates.of(card)
        if sum(len(message.content or "") + PER_MESSAGE for message in request.messages) <= INLINE_CHARACTERS:
            return _render(template, request)
        return await asyncio.get_running_loop().run_in_executor(call.service.threads, _render, template, request)
    except RequestError as error:
        outcome.refused(call, error)
        raise


def _render(template: ChatTemplate, request: ChatRequest) -> str:
    return template.render(
        [message.for_template() for message in request.messages],
        name=request.chat_template,
        arguments=request.chat_template_kwargs,
        generation_prompt=request.add_generation_prompt,
        continued=request.continued,
    )


class Chunks:
    """The stream of a chat."""

    def __init__(self, generations: list[Generation], request: ChatRequest, sampling: Sampling, model: str) -> None:
        self._generations = generations
        self._choices = [openai.Choice(generations[0].parameters.stop) for _ in generations]
        self._head = openai.head("chat.completion.chunk", "chatcmpl", model)
        self._logprobs = request.logprobs
        self._with_usage = sampling.stream_options.include_usage

    def show(self, index: int, generation: Generation) -> dict[str, Any]:
        event, choice = generation.events[-1], self._choices[index]
        shown = {
            "index": index,
            "delta": {"role": "assistant", "content": choice.add(event)},
            "logprobs": {"content": [_logprob(generation, event)]} if self._logprobs else None,
            "finish_reason": choice.finish_reason,
        }
        return {**self._head, "choices": [shown], "usage": None}

    def end(self) -> bytes:
        return openai.last(self._head, openai.usage(self._generations[:1], self._generations) if self._with_usage else None)

    def error(self, error: RequestError) -> bytes:
        return openai.failed(error)


def _choice(index: int, generation: Generation, logprobs: bool) -> dict[str, Any]:
    text, finish_reason = openai.choice_of(generation)
    return {
        "index": index,
        "message": {"role": "assistant", "content": text, "refusal": None},
        "logprobs": {"content": [_logprob(generation, event) for event in generation.events]} if logprobs else None,
        "finish_reason": finish_reason,
    }


def _logprob(generation: Generation, event: Event) -> dict[str, Any]:
    top = [{"token": text, "logprob": sse.float32(logprob), "bytes": _bytes(text)} for _, logprob, text in event.top]
    return {"token": event.text, "logprob": sse.float32(event.logprob), "bytes": _bytes(event.text), "top_logprobs": top}


def _bytes(text: str) -> list[int] | None:
    """None where the text stands for bytes that are no character by themselves."""
    return None if "\ufffd" in text else list(text.encode("utf-8"))
