from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.farm import Farm
from tests.neuron.doubles import exported
from tests.servers import Server


@pytest.fixture
def farm(tmp_path: Path, server: Server) -> Iterator[Farm]:
    """Neuron engines over the double, on a folder as an export leaves it."""
    model = exported(tmp_path / "model")
    env = {"FARM_BACKEND": "neuron-double", "MODEL_ID": str(model), "FARM_SERVED_NAME": "words", "MAX_TOTAL_TOKENS": "512"}
    with Farm(tmp_path, server, env) as farm:
        yield farm
