"""Engines by name. `create` imports only the one that is asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from common.errors import StartError

if TYPE_CHECKING:
    from common.config import Settings
    from workers.engines.base import Engine

BACKENDS = {
    "cpu": "workers.engines.cpu:CpuEngine",
    "gaudi": "workers.engines.gaudi:GaudiEngine",
    "gaudi-double": "workers.engines.gaudi_double:GaudiDoubleEngine",
    "neuron": "workers.engines.neuron:NeuronEngine",
    "neuron-double": "workers.engines.neuron_double:NeuronDoubleEngine",
    "oracle": "workers.engines.oracle:OracleEngine",
}


def check_backend(name: str) -> None:
    """Raises `StartError` for an unknown name, before anything slow."""
    if name not in BACKENDS:
        raise StartError(f"FARM_BACKEND={name} is not supported; supported: {', '.join(sorted(BACKENDS))}")


def create(settings: Settings, model_path: str, worker: str) -> Engine:
    """Builds the engine named by `settings.backend`, not yet loaded; raises `StartError` for an unknown name."""
    check_backend(settings.backend)
    module, name = BACKENDS[settings.backend].split(":")
    engine: Engine = getattr(import_module(module), name)(settings, model_path, worker)
    return engine
