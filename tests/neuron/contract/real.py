"""Real decoder classes of optimum-neuron over the device double."""

from __future__ import annotations

from typing import Any

from common.config import Settings
from tests.parity.tiny import MAX_LENGTH, VOCAB_SIZE, tiny_model
from workers.double_tokens import ModelTokens
from workers.engines.neuron import OptimumModel, OptimumNeuron
from workers.neuron.artifact import parse
from workers.neuron.double import DeviceDouble
from workers.neuron.engine import StaticEngine

FAMILIES = ("llama", "qwen3", "granite", "phi3", "smollm3")
ROWS = 4
LENGTH = 32


def neuron_config(**more: Any) -> Any:
    """A real `NxDNeuronConfig`."""
    from optimum.neuron.models.inference.backend.config import NxDNeuronConfig

    given = {"batch_size": ROWS, "continuous_batching": True, "sequence_length": LENGTH, "tp_degree": 2, "torch_dtype": "float32"}
    return NxDNeuronConfig(**{**given, **more})


def reference(family: str) -> Any:
    """A tiny random model of stock `transformers`."""
    assert MAX_LENGTH >= LENGTH
    return tiny_model(family)


def real_model(reference_model: Any, **more: Any) -> tuple[Any, DeviceDouble]:
    """The library's class for this model type with a device double as its traced model."""
    from optimum.neuron.models.auto_model import get_neuron_model_class

    config = neuron_config(**more)
    device = DeviceDouble(parse(vars(config)), ModelTokens(reference_model))
    cls = get_neuron_model_class(reference_model.config.model_type, task="text-generation", mode="inference")
    return cls(reference_model.config, config, traced_model=device, graph_builders={}), device


def real_engine(reference_model: Any, **more: Any) -> tuple[StaticEngine, DeviceDouble]:
    """Our engine, warmed, over the real class."""
    model, device = real_model(reference_model, **more)
    engine = StaticEngine(Settings.from_env({}), "", "test", OptimumNeuron())
    engine.serve(OptimumModel(model))
    engine.ledger.strict = True
    engine.warm_up(lambda _what, _done: None)
    assert engine.vocab_size == VOCAB_SIZE
    return engine, device
