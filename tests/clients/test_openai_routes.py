"""Clients of the OpenAI routes."""

from __future__ import annotations

import shutil

import pytest

from tests.clients.conftest import Clients

pytestmark = pytest.mark.clients
needs_npm = pytest.mark.skipif(shutil.which("npm") is None, reason="needs Node.js and npm")


@pytest.mark.parametrize("environment", ["hub", "hub-0.36"])
def test_huggingface_hub(clients: Clients, environment: str) -> None:
    clients.program(environment, "hub_chat.py")


@pytest.mark.parametrize(
    ("environment", "program"),
    [
        ("openai", "openai_sdk.py"),
        ("langchain", "langchain_hf.py"),
        pytest.param("node", "openai_sdk.cjs", marks=needs_npm),
        pytest.param("node", "inference.cjs", marks=needs_npm),
    ],
)
def test_libraries(clients: Clients, environment: str, program: str) -> None:
    clients.program(environment, program)
