from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.streams import BACKEND
from tests.farm import Farm
from tests.neuron.doubles import plain
from tests.servers import Server

SALTED = {
    "FARM_ORACLE_SALTED": "true",
    "FARM_ORACLE_PREFILL_MS": "100",
    "FARM_ORACLE_STEP_MS": "10",
    "FARM_LEASE_S": "1",
    "MAX_BATCH_SIZE": "8",
}


@pytest.fixture
def farm(tmp_path: Path, server: Server) -> Iterator[Farm]:
    with Farm(tmp_path, server, salted(tmp_path)) as farm:
        yield farm


def salted(folder: Path) -> dict[str, str]:
    """A salted engine with a prefill of 100 ms: an unsalted or quick one cannot show the worst faults."""
    return SALTED | backend(folder)


def backend(folder: Path) -> dict[str, str]:
    """The oracle, or the device double that `make chaos BACKEND=…` names."""
    if BACKEND == "oracle":
        return {}
    return {"FARM_BACKEND": BACKEND, "MODEL_ID": str(plain(folder / "model")), "FARM_SERVED_NAME": "oracle"}
