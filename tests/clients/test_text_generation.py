"""Clients of TGI's native routes."""

from __future__ import annotations

import pytest

from tests.clients.conftest import Clients

pytestmark = pytest.mark.clients


@pytest.mark.parametrize("environment", ["hub", "hub-0.36"])
def test_huggingface_hub(clients: Clients, environment: str) -> None:
    clients.program(environment, "hub.py")


def test_text_generation_0_7(clients: Clients) -> None:
    clients.program("text-generation", "text_generation_0_7.py")
