"""Clients of the OpenAI routes."""

from __future__ import annotations

import pytest

from tests.clients.conftest import Clients

pytestmark = pytest.mark.clients


@pytest.mark.parametrize("environment", ["hub", "hub-0.36"])
def test_huggingface_hub(clients: Clients, environment: str) -> None:
    clients.program(environment, "hub_chat.py")


@pytest.mark.parametrize(
    ("environment", "program"),
    [("openai", "openai_sdk.py"), ("langchain", "langchain_hf.py"), ("node", "openai_sdk.cjs"), ("node", "inference.cjs")],
)
def test_libraries(clients: Clients, environment: str, program: str) -> None:
    clients.program(environment, program)
