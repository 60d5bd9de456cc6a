"""Tiny models of every type on TGI's Gaudi page that `transformers` has, and of settings that real checkpoints have."""

from __future__ import annotations

from typing import Any

from tests.parity.tiny import tiny_model

LENGTH = 64
"""Of rows; windows are no shorter, or the engine refuses the model."""

WINDOW: dict[str, Any] = {"sliding_window": LENGTH}
YARN = {"type": "yarn", "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 40}
MSCALE = {"mscale": 0.707, "mscale_all_dim": 0.707, "beta_fast": 32.0, "beta_slow": 1.0}
LINEAR = {"rope_scaling": {"type": "linear", "rope_type": "linear", "factor": 4.0}}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 40}

TYPES: dict[str, dict[str, Any]] = {
    "cohere": {"use_qk_norm": True},
    "cohere2": WINDOW,
    "dbrx": {},
    "deepseek_v2": {"moe_layer_freq": 1},
    "deepseek_v3": {},
    "falcon": {},
    "gemma": {},
    "gemma2": WINDOW,
    "gemma3_text": WINDOW,
    "gpt2": {},
    "gpt_bigcode": {},
    "gpt_neox": {},
    "gptj": {},
    "granite": {},
    "llama": {},
    "mistral": WINDOW,
    "mixtral": {},
    "olmo2": {},
    "opt": {},
    "phi": {"num_key_value_heads": 4},
    "phi3": WINDOW,
    "phimoe": WINDOW,
    "qwen2": {"use_sliding_window": False, "layer_types": None},
    "qwen2_moe": {},
    "qwen3": {},
    "qwen3_moe": {},
    "smollm3": {},
    "stablelm": {},
    "starcoder2": WINDOW,
}
"""model_type → what its configuration has here beside `tests.parity.tiny`."""

CHECKPOINTS: dict[str, dict[str, Any]] = {
    "deepseek_v2/yarn": {"rope_scaling": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.0}},  # transformers 4.55 forgets the latter
    "deepseek_v2/lite": {"q_lora_rank": None, "topk_method": "greedy"},
    "deepseek_v3/r1": {"rope_scaling": {**YARN, **MSCALE}, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.5},
    "falcon/7b": {"new_decoder_architecture": False, "multi_query": True, "parallel_attn": True, "num_kv_heads": None},
    "gemma3_text/27b": {"rope_scaling": {"rope_type": "linear", "factor": 8.0}, "query_pre_attn_scalar": 30},
    "gpt_bigcode/heads": {"multi_query": False},
    "llama/3.1": {"rope_scaling": LLAMA3, "tie_word_embeddings": True},
    "mistral/nemo": {"head_dim": 16},
    "qwen2/yarn": {"rope_scaling": YARN},
    "qwen3_moe/30b": {"norm_topk_prob": True, "head_dim": 16},
}
"""type/name → what such a checkpoint has."""

WRONG: dict[str, dict[str, Any]] = {
    "gpt2/layers": {"scale_attn_by_inverse_layer_idx": True},
    "gpt2/unscaled": {"scale_attn_weights": False},
    "llama/heads": {"head_dim": 16},
    "llama/linear": LINEAR,
    "mistral/linear": LINEAR,
    "mixtral/linear": LINEAR,
    "mixtral/window": WINDOW,
    "qwen2_moe/dense": {"mlp_only_layers": [1]},
    "qwen3_moe/dense": {"mlp_only_layers": [1]},
}
"""type/name → settings that optimum-habana ignores or gets wrong."""


def model(name: str) -> Any:
    """A random model of `type` or `type/name`."""
    model_type = name.partition("/")[0]
    return tiny_model(model_type, **{**TYPES[model_type], **CHECKPOINTS.get(name, {}), **WRONG.get(name, {})})
