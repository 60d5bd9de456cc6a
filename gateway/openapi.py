"""The OpenAPI file, made of the tables that check requests; answers and statuses are those the routes give."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from common.errors import TABLE
from gateway.release import TGI_VERSION
from gateway.schemas.chat import CHAT
from gateway.schemas.completions import COMPLETION
from gateway.schemas.fields import Record, Schema
from gateway.schemas.openai import SAMPLING
from gateway.schemas.tgi import GENERATE


def joined(*records: Record[Any]) -> Schema:
    """The schema of a body that several tables read."""
    properties = {name: schema for record in records for name, schema in record.schema["properties"].items()}
    return {"type": "object", "properties": properties, "required": [n for record in records for n in record.schema.get("required", ())]}


def obj(required: Schema, **optional: Any) -> Schema:
    return {"type": "object", "properties": {**required, **optional}, "required": list(required)}


def each(items: Schema) -> Schema:
    return {"type": "array", "items": items}


TEXT, COUNT, NUMBER = {"type": "string"}, {"type": "integer", "minimum": 0}, {"type": ["number", "null"]}
TOKEN = obj({"id": COUNT, "text": TEXT, "logprob": NUMBER, "special": {"type": "boolean"}})
PREFILL = obj({"id": COUNT, "text": TEXT, "logprob": NUMBER})
FINISH = {"enum": ["length", "eos_token", "stop_sequence"]}
SEQUENCE = {
    "finish_reason": FINISH,
    "generated_tokens": COUNT,
    "seed": {"type": ["integer", "null"]},
    "prefill": each(PREFILL),
    "tokens": each(TOKEN),
}
TOP = each(each(TOKEN))
DETAILS = obj(SEQUENCE, best_of_sequences=each(obj({"generated_text": TEXT, **SEQUENCE}, top_tokens=TOP)), top_tokens=TOP)
GENERATED = obj({"generated_text": TEXT}, details=DETAILS)
SPANS = each(obj({"id": COUNT, "text": TEXT, "start": COUNT, "stop": COUNT}))
EVENT = obj({"data": TEXT})
USAGE = obj(dict.fromkeys(("prompt_tokens", "completion_tokens", "total_tokens"), COUNT))
HEAD = {"id": TEXT, "created": COUNT, "model": TEXT, "system_fingerprint": TEXT}
LOGPROBS = {"type": ["object", "null"]}
STOPPED = {"enum": ["stop", "length"]}
MESSAGE = obj({"role": TEXT, "content": {"type": ["string", "null"]}, "refusal": {"type": "null"}})
CHOICE = obj({"index": COUNT, "message": MESSAGE, "logprobs": LOGPROBS, "finish_reason": STOPPED})
CHATTED = obj({"object": {"const": "chat.completion"}, **HEAD, "choices": each(CHOICE), "usage": USAGE})
TEXT_CHOICE = obj({"index": COUNT, "text": TEXT, "logprobs": LOGPROBS, "finish_reason": STOPPED})
COMPLETED = obj({"object": {"const": "text_completion"}, **HEAD, "choices": each(TEXT_CHOICE), "usage": USAGE})
MODEL = obj({"id": TEXT, "object": {"const": "model"}, "created": COUNT, "owned_by": TEXT})
CHAT_BODY, COMPLETION_BODY = joined(CHAT, SAMPLING), joined(COMPLETION, SAMPLING)
ERROR = obj({"error": TEXT, "error_type": {"enum": sorted(TABLE)}})

JSON, EVENTS, PLAIN, PAGE = "application/json", "text/event-stream", "text/plain; charset=utf-8", "text/html; charset=utf-8"


class Said(NamedTuple):
    """What a route takes and answers: `content` by type for 200, `empty` statuses without a body, `errors` with the flat object."""

    what: str
    content: dict[str, Schema] | None = None
    body: Schema | None = None
    errors: tuple[int, ...] = ()
    empty: tuple[int, ...] = ()
    detaches: bool = False


READING = (400, 413, 415, 422, 429)
GENERATING = (*READING, 404, 424, 500, 503, 504)


def _generating(what: str, body: Schema, answer: Schema | None, streams: bool = True) -> Said:
    content = {JSON: answer} if answer is not None else {}
    return Said(what, {**content, **({EVENTS: EVENT} if streams else {})}, body, GENERATING, (401,), detaches=True)


POSTS = {
    "/": _generating("Generate, in a list of one, or streamed with `stream`", GENERATE.schema, each(GENERATED)),
    "/generate": _generating("Generate", GENERATE.schema, GENERATED, streams=False),
    "/generate_stream": _generating("Generate, one event a token", GENERATE.schema, None),
    "/tokenize": Said("Tokens of a text", {JSON: SPANS}, GENERATE.schema, READING, (401,)),
    "/v1/chat/completions": _generating("Answer a chat", CHAT_BODY, CHATTED),
    "/v1/completions": _generating("Complete prompts", COMPLETION_BODY, COMPLETED),
    "/chat_tokenize": Said(
        "A chat as its prompt, and its tokens",
        {JSON: obj({"tokenize_response": SPANS, "templated_text": TEXT})}, CHAT_BODY, READING, (401,),
    ),
    "/invocations": _generating(
        "Any of `/`, `/v1/chat/completions`, `/v1/completions`",
        {"anyOf": [GENERATE.schema, CHAT_BODY, COMPLETION_BODY]}, {"anyOf": [each(GENERATED), CHATTED, COMPLETED]},
    ),
}  # fmt: skip

HEALTH = Said("Can the farm serve now?", None, errors=(503,), empty=(200,))

GETS = {
    "/": HEALTH,
    "/health": HEALTH,
    "/ping": HEALTH,
    "/health/live": Said("Is this process alive?", empty=(200,)),
    "/health/accept": Said("May a balancer send new connections here?", empty=(200, 503)),
    "/info": Said("The served model and the limits", {JSON: obj({"model_id": TEXT, "version": TEXT})}),
    "/v1/models": Said("The served models", {JSON: obj({"object": {"const": "list"}, "data": each(MODEL)})}),
    "/v1/models/{id}": Said("One served model", {JSON: MODEL}, errors=(404,)),
    "/metrics": Said("Metrics for Prometheus", {PLAIN: TEXT}),
    "/sd/workers": Said("Workers, for Prometheus' discovery", {JSON: {}}),
    "/farm": Said("What the farm is doing", {JSON: {}}),
    "/docs": Said("This file for people", {PAGE: TEXT}),
    "/docs/": Said("This file for people", {PAGE: TEXT}),
    "/api-doc/openapi.json": Said("This file", {JSON: {"type": "object"}}),
}


@cache
def spec() -> dict[str, Any]:
    """OpenAPI 3.1."""
    paths: dict[str, Any] = {}
    for method, table in (("get", GETS), ("post", POSTS)):
        for path, said in table.items():
            paths.setdefault(path, {})[method] = _operation(path, said)
    return {
        "openapi": "3.1.0",
        "info": {"title": "tokenfarm", "version": TGI_VERSION, "description": "The HTTP interface of Text Generation Inference"},
        "paths": paths,
        "components": {"schemas": {"Error": ERROR}, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
    }


def _operation(path: str, said: Said) -> dict[str, Any]:
    answers: dict[str, Any] = {}
    if said.content is not None:
        answers["200"] = {"description": "Done", "content": {kind: {"schema": schema} for kind, schema in said.content.items()}}
    if said.detaches:
        answers["202"] = {"description": "Goes on without its client", "content": {JSON: {"schema": obj({"id": TEXT})}}}
    for status in said.empty:
        answers[str(status)] = {"description": "No body"}
    for status in said.errors:
        answers[str(status)] = {
            "description": "An error",
            "content": {JSON: {"schema": {"$ref": "#/components/schemas/Error"}}},
        }
    operation: dict[str, Any] = {"summary": said.what, "responses": answers}
    if said.body is not None:
        operation["requestBody"] = {"required": True, "content": {JSON: {"schema": said.body}}}
        operation["security"] = [{}, {"key": []}]
    if "{id}" in path:
        operation["parameters"] = [{"name": "id", "in": "path", "required": True, "schema": TEXT}]
    return operation
