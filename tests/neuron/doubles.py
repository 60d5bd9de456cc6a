"""Engines over the device double, and model folders for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from common.config import Settings
from workers.double_tokens import HashTokens, NextToken
from workers.engines.neuron_double import COMPILER, LIBRARY, DoubleLibrary, DoubleModel
from workers.engines.oracle import N_SPECIAL, N_WORDS, write_model
from workers.neuron.artifact import Artifact
from workers.neuron.double import DeviceDouble, Faults
from workers.neuron.engine import StaticEngine

ARTIFACT = Artifact(4, 32, 1, "float32", 32, True)
VOCAB = 120
NO_FAULTS = Faults()

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}


def engine_over(artifact: Artifact = ARTIFACT, tokens: NextToken | None = None, faults: Faults = NO_FAULTS, **env: str) -> StaticEngine:
    """A warmed engine, strict about shapes; its device is `device_of(engine)`."""
    engine = StaticEngine(Settings.from_env(env), "", "test", DoubleLibrary(faults))
    engine.serve(DoubleModel(DeviceDouble(artifact, tokens or HashTokens(VOCAB), faults), VOCAB))
    engine.ledger.strict = True
    engine.warm_up(lambda _what, _done: None)
    return engine


def device_of(engine: StaticEngine) -> DeviceDouble:
    model = engine._model
    assert isinstance(model, DoubleModel)
    return model.device


def exported(folder: Path, **config: Any) -> Path:
    """A folder like an exported model's: the oracle's words as tokenizer, no weights."""
    folder.mkdir(parents=True, exist_ok=True)
    write_model(folder)
    write_config(folder)
    given = {"batch_size": 4, "sequence_length": 512, "tp_degree": 2, "torch_dtype": "bfloat16", "continuous_batching": True}
    versions = {"_serialized_key": "NxDNeuronConfig", "optimum_neuron_version": LIBRARY, "neuronxcc_version": COMPILER, "target": "trn1"}
    (folder / "neuron_config.json").write_text(json.dumps({**given, **versions, **config}))
    return folder


def plain(folder: Path) -> Path:
    """A checkpoint without a number in it: the double compiles whatever is asked for, and speaks the oracle's words."""
    folder.mkdir(parents=True)
    write_model(folder)
    write_config(folder)
    (folder / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    return folder


def write_config(folder: Path, **more: Any) -> None:
    """config.json of a decoder as small as memory checks need it."""
    (folder / "config.json").write_text(json.dumps({**LLAMA, "vocab_size": N_WORDS, "eos_token_id": [1, N_SPECIAL - 1], **more}))
