"""Imports go downward only, and some names have one home (design §4)."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = sorted(path for package in ("common", "gateway", "workers") for path in (ROOT / package).rglob("*.py"))

FORBIDDEN = {
    "common": {"gateway", "workers", "torch", "transformers", "fastapi", "starlette", "uvicorn", "httpx"},
    "gateway": {"workers", "torch", "huggingface_hub"},
    "workers": {"gateway", "fastapi", "starlette", "uvicorn"},
}
QUICK = {"redis", "torch", "transformers", "msgpack", "tokenizers"}
"""What nothing may import that must answer at once or run before the installation."""

BEFORE_INSTALL = ("bootstrap", "install", "listening", "progress")


def imports(path: Path) -> Iterator[str]:
    """Top-level names of all modules a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield (node.module or "").split(".")[0]


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", FILES, ids=relative)
def test_imports_go_downward_only(path: Path) -> None:
    assert not set(imports(path)) & FORBIDDEN[path.relative_to(ROOT).parts[0]]


def test_the_command_line_imports_nothing_slow() -> None:
    for name in ("cli", "config", "flags", "logs", "local", "children", "embedded", "errors", *BEFORE_INSTALL):
        assert not set(imports(ROOT / "common" / f"{name}.py")) & QUICK, name


@pytest.mark.parametrize("name", BEFORE_INSTALL)
def test_the_first_step_runs_with_old_pythons(name: str) -> None:
    source = (ROOT / "common" / f"{name}.py").read_text(encoding="utf-8")
    ast.parse(source, feature_version=(3, 6))
    assert "__future__" not in source
    assert set(imports(ROOT / "common" / f"{name}.py")) <= {"common", *sys.stdlib_module_names}


def owners(pattern: str) -> set[str]:
    return {relative(path) for path in FILES if re.search(pattern, path.read_text(encoding="utf-8"))}


def test_only_one_file_spells_keys() -> None:
    assert owners(r"(lane|req|res|journal|mail|worker|ev|card):\{|:models") == {"common/keys.py"}


def test_only_one_file_creates_metrics() -> None:
    assert owners(r"prometheus_client import .*\b(Counter|Gauge|Histogram|Summary)\b") == {"common/metrics.py"}
