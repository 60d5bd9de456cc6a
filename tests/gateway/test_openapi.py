"""The OpenAPI file says what there is, and the page needs nothing from elsewhere."""

from __future__ import annotations

import re

import httpx

from gateway import app
from gateway.openapi import spec
from gateway.schemas.tgi import PARAMETERS


def test_every_route_is_described_and_no_other() -> None:
    paths = spec()["paths"]
    assert {path for path, operations in paths.items() if "post" in operations} == {"/", *app.PROTECTED}
    assert {path.replace("{id}", "{id:path}") for path, operations in paths.items() if "get" in operations} == {"/", *app.OPEN}


def test_bodies_are_those_of_the_tables() -> None:
    schema = spec()["paths"]["/generate"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert schema["required"] == ["inputs"]
    assert schema["properties"]["parameters"]["anyOf"][0] == PARAMETERS.schema
    chat = spec()["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert chat["required"] == ["messages"]
    assert {"messages", "max_tokens", "max_completion_tokens", "logit_bias", "chat_template_kwargs", "stream"} <= chat["properties"].keys()


def test_it_is_served_with_a_page_for_people(http: httpx.Client) -> None:
    assert http.get("/api-doc/openapi.json").json() == spec()
    for path in ("/docs", "/docs/"):
        page = http.get(path)
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert "POST /v1/chat/completions" in page.text and "chat_template_kwargs" in page.text
        assert not re.search(r"<script|src=|https?://", page.text)
