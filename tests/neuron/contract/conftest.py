"""Runs only where optimum-neuron is importable: `make contract-neuron` puts the overlay in front."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from tests.neuron.contract import stubs

HERE = find_spec("optimum") is not None
collect_ignore_glob = [] if HERE else ["test_*.py"]


@pytest.fixture(scope="session", autouse=True)
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The real library over import stubs, and a compiler's version as metadata."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("metadata")
    info = folder / f"neuronx_cc-{stubs.COMPILER_VERSION.split('+')[0]}.dist-info"
    info.mkdir()
    Path(info, "METADATA").write_text(f"Metadata-Version: 2.1\nName: neuronx-cc\nVersion: {stubs.COMPILER_VERSION.split('+')[0]}\n")
    sys.path.append(str(folder))
    before = dict(os.environ)
    stubs.install()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import optimum.neuron
        import optimum.neuron.models.inference.auto_models  # noqa: F401
    yield
    os.environ.clear()
    os.environ.update(before)
