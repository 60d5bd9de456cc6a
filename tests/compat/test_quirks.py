"""The table is whole and names tests that exist."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.compat.quirks import QUIRKS, Quirk

ROOT = Path(__file__).parents[2]


def test_all_37_are_there_once_and_in_order() -> None:
    assert [quirk.id for quirk in QUIRKS] == list(range(1, 38))


@pytest.mark.parametrize("quirk", QUIRKS, ids=lambda quirk: str(quirk.id))
def test_each_is_decided_and_has_a_test(quirk: Quirk) -> None:
    assert quirk.choice in ("M", "L", "F")
    assert quirk.tests
    for test in quirk.tests:
        path, _, name = test.partition("::")
        module = ast.parse((ROOT / path).read_text())
        assert name in {node.name for node in module.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
