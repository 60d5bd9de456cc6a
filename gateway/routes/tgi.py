"""TGI's own routes: `/generate`, `/generate_stream`, `POST /`, `/tokenize` (TGI reference §1.1–§1.3, §1.7)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from common.errors import RequestError
from gateway import headers, outcome, running, sse
from gateway.call import Call
from gateway.generation import Generation
from gateway.schemas.tgi import GENERATE, GenerateRequest


async def generate(call: Call) -> None:
    await _complete(call, await call.read(GENERATE), in_list=False)


async def generate_stream(call: Call) -> None:
    await _stream(call, await call.read(GENERATE))


async def compat(call: Call) -> None:
    await serve_compat(call, await call.read(GENERATE))


async def serve_compat(call: Call, request: GenerateRequest) -> None:
    """`POST /`: answers in a list of one, and gives the prompt back unless told not to or the model's task is another."""
    if request.parameters.return_full_text is None:
        model = call.service.relay.model()
        full_text = model is None or model.card.pipeline_tag in ("", "text-generation")
        request = request._replace(parameters=request.parameters._replace(return_full_text=full_text))
    if request.stream:
        await _stream(call, request)
    else:
        await _complete(call, request, in_list=True)


async def tokenize(call: Call) -> None:
    """No permit, no length limit; `truncate` is ignored."""
    request = await call.read(GENERATE)
    encoder = await call.service.encoders.of(call.service.model().card)
    await call.answer_json([span._asdict() for span in await encoder.spans(request.inputs)])


async def _complete(call: Call, request: GenerateRequest, in_list: bool) -> None:
    """With `best_of` the likeliest of several, the others in its details."""
    n = max(1, request.parameters.best_of or 1)
    n = n if n <= call.service.limits().max_best_of else 1
    generations = [Generation(call, request.inputs, request.parameters) for _ in range(n)]
    if not await running.complete(call, generations, call.session(request)):
        return
    best, *others = sorted(generations, key=lambda generation: -generation.mean_logprob)
    answer = _response(best, others)
    extra = headers.of_response(call.service.compute_type, len(best.inputs), [best.timing()])
    await call.answer_json([answer] if in_list else answer, extra)
    for generation in generations:
        outcome.succeeded(generation)


async def _stream(call: Call, request: GenerateRequest) -> None:
    await running.stream(call, [Generation(call, request.inputs, request.parameters)], call.session(request), Events())


class Events:
    """TGI's stream: one event a token, the text of all with the last."""

    def show(self, index: int, generation: Generation) -> dict[str, Any]:
        event = generation.events[-1]
        shown: dict[str, Any] = {"index": len(generation.events), "token": generation.token(event)}
        if event.top:
            shown["top_tokens"] = generation.top_tokens(event)
        shown["generated_text"] = None if event.finish is None else _text(generation)
        shown["details"] = None
        if event.finish is not None and generation.parameters.details:
            shown["details"] = {
                "finish_reason": event.finish.reason,
                "generated_tokens": len(generation.events),
                "seed": generation.seed if generation.samples else None,
                "input_length": generation.n_input,
            }
        return shown

    def end(self) -> bytes:
        return b""

    def error(self, error: RequestError) -> bytes:
        """TGI has another name for an answer that stops in mid-stream."""
        if error.kind == "incomplete_generation":
            error = RequestError("incomplete_generation_stream", "Incomplete generation stream")
        return sse.event(error.body())


def _response(generation: Generation, others: Sequence[Generation]) -> dict[str, Any]:
    """The body of `/generate`; `details` only when asked for."""
    parameters = generation.parameters
    answer: dict[str, Any] = {"generated_text": _text(generation)}
    if not (parameters.details or parameters.decoder_input_details):
        return answer
    details = _details(generation)
    if others:
        details["best_of_sequences"] = [{"generated_text": _text(other), **_details(other)} for other in others]
    if parameters.top_n_tokens:
        details["top_tokens"] = details.pop("top_tokens")
    answer["details"] = details
    return answer


def _details(generation: Generation) -> dict[str, Any]:
    details: dict[str, Any] = {
        "finish_reason": generation.finish_reason,
        "generated_tokens": len(generation.events),
        "seed": generation.seed if generation.samples else None,
        "prefill": generation.prefill(),
        "tokens": [generation.token(event) for event in generation.events],
    }
    if generation.parameters.top_n_tokens:
        details["top_tokens"] = [generation.top_tokens(event) for event in generation.events]
    return details


def _text(generation: Generation) -> str:
    return generation.prompt + generation.text if generation.parameters.return_full_text else generation.text
