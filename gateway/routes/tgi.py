"""TGI's own routes: `/generate`, `/generate_stream`, `POST /`, `/tokenize` (TGI reference §1.1–§1.3, §1.7)."""

from __future__ import annotations

from typing import Any

from common.errors import RequestError
from gateway import headers, outcome, sse
from gateway.call import Call
from gateway.connection import Connection
from gateway.generation import Generation
from gateway.schemas.tgi import GENERATE, GenerateRequest


async def generate(call: Call) -> None:
    await _complete(call, await call.read(GENERATE), in_list=False)


async def generate_stream(call: Call) -> None:
    await _stream(call, await call.read(GENERATE))


async def compat(call: Call) -> None:
    """`POST /`: answers in a list of one, and gives the prompt back unless told not to or the model's task is another."""
    request = await call.read(GENERATE)
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
    generation = Generation(call.service, request, call.request_id)
    try:
        generation.check_before_permit(stream=False)
        async with Connection(call.receive, call.send) as connection:
            with call.service.permits:
                live = await generation.start()
                try:
                    connection.check()
                    async for event in live:
                        generation.add(event)
                finally:
                    await live.close()
        if connection.gone:
            outcome.dropped(generation)
            return
        answer = _response(generation)
    except RequestError as error:
        outcome.failed(generation, error)
        raise
    extra = headers.of_response(call.service.compute_type, len(generation.inputs), generation.timing())
    await call.answer_json([answer] if in_list else answer, extra)
    outcome.succeeded(generation)


async def _stream(call: Call, request: GenerateRequest) -> None:
    """Errors before the first byte have their own status, later ones are the stream's last event."""
    generation = Generation(call.service, request, call.request_id)
    connection = Connection(call.receive, call.send)
    try:
        generation.check_before_permit(stream=True)
        async with connection:
            with call.service.permits:
                live = await generation.start()
                try:
                    connection.check()
                    extra = headers.of_stream(call.service.compute_type, len(generation.inputs))
                    await connection.open_stream(sse.HEADERS + extra)
                    async for event in live:
                        generation.add(event)
                        write = connection.write if event.finish is None else connection.close_stream
                        await write(sse.event(_stream_event(generation)))
                finally:
                    await live.close()
    except RequestError as error:
        outcome.failed(generation, error)
        if not connection.streaming:
            raise
        await connection.close_stream(sse.event(_in_stream(error).body()))
    else:
        if connection.gone:
            outcome.dropped(generation)
        else:
            outcome.succeeded(generation)


def _in_stream(error: RequestError) -> RequestError:
    """TGI has another name for an answer that stops in mid-stream."""
    if error.kind == "incomplete_generation":
        return RequestError("incomplete_generation_stream", "Incomplete generation stream")
    return error


def _response(generation: Generation) -> dict[str, Any]:
    """The body of `/generate`; `details` only when asked for."""
    parameters = generation.parameters
    answer: dict[str, Any] = {"generated_text": _text(generation)}
    if not (parameters.details or parameters.decoder_input_details):
        return answer
    details: dict[str, Any] = {
        "finish_reason": generation.finish_reason,
        "generated_tokens": len(generation.events),
        "seed": generation.seed if generation.samples else None,
        "prefill": generation.prefill(),
        "tokens": [generation.token(event) for event in generation.events],
    }
    if parameters.top_n_tokens:
        details["top_tokens"] = [generation.top_tokens(event) for event in generation.events]
    answer["details"] = details
    return answer


def _stream_event(generation: Generation) -> dict[str, Any]:
    """The last event as `/generate_stream` shows it."""
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


def _text(generation: Generation) -> str:
    return generation.inputs + generation.text if generation.parameters.return_full_text else generation.text
