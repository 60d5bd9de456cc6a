"""Runs only where optimum-habana is importable: `make contract-gaudi` puts the overlay and the stub in front."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.gaudi.contract.parity import results
from tests.gaudi.contract.tiny import CHECKPOINTS, TYPES, WRONG
from workers.gaudi.models import served

HERE = find_spec("habana_frameworks") is not None
collect_ignore_glob = [] if HERE else ["test_*.py"]

NAMES = [name for name in (*TYPES, *CHECKPOINTS, *WRONG) if name.partition("/")[0] in served()]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny models of every type that is served, each with the tokens of plain `transformers`."""
    folder = tmp_path_factory.mktemp("models")
    results(folder, "oracle", NAMES)
    return folder


@pytest.fixture(scope="session", autouse=True)
def library(folder: Path) -> Iterator[None]:
    """optimum-habana's classes in place of those of `transformers`: for good, so the oracle has run before, elsewhere."""
    from tests.gaudi.contract import host

    before = dict(os.environ)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        host.install()
        from optimum.habana.transformers.modeling_utils import adapt_transformers_to_gaudi

        adapt_transformers_to_gaudi()
    yield
    os.environ.clear()
    os.environ.update(before)
