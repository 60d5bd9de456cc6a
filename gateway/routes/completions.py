"""`/v1/completions` (TGI reference §1.10, §2.4; `n`, `best_of`, `echo` and `logprobs` as OpenAI has them)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from common.errors import RequestError, invalid
from common.messages import Event
from gateway import headers, openai, outcome, running, sse
from gateway.call import Call
from gateway.generation import Generation
from gateway.schemas.completions import COMPLETION, CompletionRequest
from gateway.schemas.openai import SAMPLING, Sampling

Token = tuple[int, float, str]


async def completions(call: Call) -> None:
    value = await call.json()
    await serve_completions(call, COMPLETION(value), SAMPLING(value))


async def serve_completions(call: Call, request: CompletionRequest, sampling: Sampling) -> None:
    """Choices come in order, `n` of each prompt; the model's name is always the served one."""
    try:
        n = _check(call, request, sampling)
        model = openai.served_name(call, sampling.model)
    except RequestError as error:
        outcome.refused(call, error)
        raise
    parameters = sampling.parameters()._replace(top_n_tokens=request.logprobs, best_of=n if n > sampling.n else None)
    generations = [
        Generation(
            call, prompt, parameters._replace(seed=seed), model=sampling.model,
            wants_prompt=request.echo and request.logprobs is not None,
        )
        for prompt in request.prompt
        for seed in openai.seeds(sampling, n)
    ]  # fmt: skip
    session = call.session((request, sampling))
    if sampling.stream:
        await running.stream(call, generations, session, Chunks(generations, request, sampling, model))
        return
    if not await running.complete(call, generations, session):
        return
    shown = [generation for at in range(0, len(generations), n) for generation in _best(generations[at : at + n], sampling.n)]
    answer = openai.head("text_completion", "cmpl", model)
    answer["choices"] = [_choice(index, generation, request) for index, generation in enumerate(shown)]
    answer["usage"] = openai.usage(generations[::n], generations)
    timings = [generation.timing() for generation in generations]
    n_characters = sum(len(generation.inputs) for generation in generations[::n])
    await call.answer_json(answer, headers.of_response(call.service.compute_type, n_characters, timings, with_compute_time=False))
    for generation in generations:
        outcome.succeeded(generation)


def _check(call: Call, request: CompletionRequest, sampling: Sampling) -> int:
    """How many generations each prompt gets; raises in TGI's order."""
    if request.suffix is not None:
        raise RequestError("suffix not supported", "Suffix is not supported and can be achieved by preprocessing the prompt.")
    most = call.service.settings.max_client_batch_size
    if len(request.prompt) > most:
        raise RequestError("batch size exceeded", f"Number of prompts exceeds the maximum allowed batch size of {most}")
    openai.check_choices(call, sampling)
    n = max(sampling.n, request.best_of or 1)
    if request.best_of is not None and request.best_of < sampling.n:
        raise invalid(f"`best_of` must be >= `n`. Given: {request.best_of}")
    if n > sampling.n and sampling.stream:
        raise invalid("`best_of` != 1 is not supported when streaming tokens")
    max_best_of = call.service.settings.max_best_of
    if n > max(sampling.n, max_best_of):
        raise invalid(f"`best_of` must be > 0 and <= {max_best_of}. Given: {n}")
    return n


def _best(generations: Sequence[Generation], n: int) -> Sequence[Generation]:
    return generations if n == len(generations) else sorted(generations, key=lambda each: -each.mean_logprob)[:n]


class Chunks:
    """The stream of one or more prompts, interleaved."""

    def __init__(self, generations: list[Generation], request: CompletionRequest, sampling: Sampling, model: str) -> None:
        self._generations = generations
        self._choices = [openai.Choice(generations[0].parameters.stop) for _ in generations]
        self._n_characters = [0] * len(generations)
        self._head = openai.head("text_completion", "cmpl", model)
        self._request = request
        self._n = sampling.n
        self._with_usage = sampling.stream_options.include_usage

    def show(self, index: int, generation: Generation) -> dict[str, Any]:
        event, choice, request = generation.events[-1], self._choices[index], self._request
        first = len(generation.events) == 1
        text = choice.add(event)
        logprobs = None
        if request.logprobs is not None:
            rows = [*(_prompt_rows(generation) if first and request.echo else ()), _row(event)]
            logprobs = _logprobs(rows, self._n_characters[index])
            self._n_characters[index] += sum(len(token[2]) for token, _ in rows)
        if first and request.echo:
            text = generation.prompt + text
        shown = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": choice.finish_reason}
        return {**self._head, "choices": [shown], "usage": None}

    def end(self) -> bytes:
        usage = openai.usage(self._generations[:: self._n], self._generations) if self._with_usage else None
        return openai.last(self._head, usage)

    def error(self, error: RequestError) -> bytes:
        return openai.failed(error)


def _choice(index: int, generation: Generation, request: CompletionRequest) -> dict[str, Any]:
    text, finish_reason = openai.choice_of(generation)
    logprobs = None
    if request.logprobs is not None:
        logprobs = _logprobs([*(_prompt_rows(generation) if request.echo else ()), *map(_row, generation.events)])
    text = generation.prompt + text if request.echo else text
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}


Row = tuple[Token, Sequence[Token]]
"""A token, and the likeliest ones in its place."""


def _row(event: Event) -> Row:
    return (event.token, event.logprob, event.text), event.top


def _prompt_rows(generation: Generation) -> list[Row]:
    """Tokens of the prompt; nothing is known of the first, nor of those that no prefill gave."""
    event, nothing = generation.events[0], float("nan")
    tokens: list[Token] = [(token, logprob, text + generation.joint) for token, logprob, text in event.prefill]
    tokens += [(token, nothing, "") for token in generation.input_ids[len(tokens) :]]
    best = [(), *((each,) for each in event.prefill_top)]
    best += [()] * (len(tokens) - len(best))
    return list(zip(tokens, best, strict=False))


def _logprobs(rows: Iterable[Row], n_characters: int = 0) -> dict[str, Any]:
    """OpenAI's four lists; `top_logprobs` has the likeliest tokens and the one that is there."""
    shown: dict[str, list[Any]] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    for (_, logprob, text), best in rows:
        shown["tokens"].append(text)
        shown["token_logprobs"].append(sse.float32(logprob))
        tops = {each[2]: sse.float32(each[1]) for each in reversed(best)}
        tops.setdefault(text, sse.float32(logprob))
        shown["top_logprobs"].append(tops if logprob == logprob else None)
        shown["text_offset"].append(n_characters)
        n_characters += len(text)
    return shown
