from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.farm import Farm
from tests.neuron.doubles import plain
from tests.servers import Server


@pytest.fixture
def farm(tmp_path: Path, server: Server) -> Iterator[Farm]:
    """Gaudi engines over the double, on a model of the oracle's words."""
    model = plain(tmp_path / "model")
    env = {
        "FARM_BACKEND": "gaudi-double",
        "MODEL_ID": str(model),
        "FARM_SERVED_NAME": "words",
        "MAX_BATCH_SIZE": "4",
        "MAX_TOTAL_TOKENS": "512",
        "HF_HOME": str(tmp_path / "hf"),
    }
    with Farm(tmp_path, server, env) as farm:
        yield farm
