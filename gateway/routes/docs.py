"""The interface described: an OpenAPI file, and a page for people that needs nothing from elsewhere."""

from __future__ import annotations

from functools import cache
from html import escape
from typing import Any

from gateway import sse
from gateway.call import Call
from gateway.openapi import spec


async def openapi(call: Call) -> None:
    await call.answer_json(spec())


async def page(call: Call) -> None:
    await call.answer(200, _html(), [(b"content-type", b"text/html; charset=utf-8")])


@cache
def _html() -> bytes:
    described = spec()
    sections = [
        _section(method, path, operation) for path, operations in described["paths"].items() for method, operation in operations.items()
    ]
    style = "body{font:15px sans-serif;max-width:60em;margin:2em auto}td{padding:0 1em 0 0;vertical-align:top}code{white-space:pre-wrap}"
    head = f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(described['info']['title'])}</title><style>{style}</style>"
    intro = f"<h1>{escape(described['info']['description'])}</h1><p>As <a href=/api-doc/openapi.json>OpenAPI</a>"
    return f"{head}{intro}{''.join(sections)}</html>".encode()


def _section(method: str, path: str, operation: dict[str, Any]) -> str:
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
    variants = body.get("anyOf", [body])
    fields = {name: schema for variant in variants for name, schema in variant.get("properties", {}).items()}
    rows = "".join(f"<tr><td>{escape(name)}<td><code>{escape(sse.dumps(schema).decode())}</code>" for name, schema in fields.items())
    statuses = ", ".join(operation["responses"])
    return f"<h2>{method.upper()} {escape(path)}</h2><p>{escape(operation['summary'])}. Answers {statuses}.<table>{rows}</table>"
