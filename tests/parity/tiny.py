"""Tiny random models of every type: wide enough in features (windows, layer types, MLA, experts), small enough for milliseconds."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

VOCAB_SIZE = 120
MAX_LENGTH = 160
WINDOW = 8
WEIGHT_SCALE = 3.0
"""With the default scale every model repeats one token, and parity would prove nothing."""

COMMON: dict[str, Any] = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": MAX_LENGTH,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
    "tie_word_embeddings": False,
}

LAYERED: dict[str, Any] = {"num_hidden_layers": 4, "sliding_window": WINDOW}
HALF_SLIDING: dict[str, Any] = {"layer_types": ["sliding_attention", "full_attention"] * 2}
EXPERTS: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2}
MLA: dict[str, Any] = {
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 12,
    "moe_intermediate_size": 16,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "n_group": 2,
    "topk_group": 1,
    "num_key_value_heads": 4,
}
GPT: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_inner": 64, "n_positions": MAX_LENGTH}
DBRX: dict[str, Any] = {
    "d_model": 32,
    "n_heads": 4,
    "n_layers": 2,
    "max_seq_len": MAX_LENGTH,
    "attn_config": {"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
    "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2},
}

CONFIGS: dict[str, dict[str, Any]] = {
    "cohere": {},
    "cohere2": {**LAYERED, **HALF_SLIDING},
    "dbrx": DBRX,
    "deepseek_v2": {**MLA, "topk_method": "group_limited_greedy", "scoring_func": "softmax"},
    "deepseek_v3": MLA,
    "falcon": {"new_decoder_architecture": True, "num_kv_heads": 2, "alibi": False},
    "gemma": {"head_dim": 8},
    "gemma2": {**LAYERED, "head_dim": 8, "attn_logit_softcapping": 20.0, "final_logit_softcapping": 15.0},
    "gemma3_text": {**LAYERED, **HALF_SLIDING, "head_dim": 8},
    "gpt2": GPT,
    "gpt_bigcode": {**GPT, "multi_query": True},
    "gpt_neox": {},
    "gptj": {**GPT, "rotary_dim": 4},
    "granite": {"logits_scaling": 2.0, "residual_multiplier": 0.5},
    "llama": {},
    "mistral": {"sliding_window": WINDOW},
    "mixtral": EXPERTS,
    "olmo2": {},
    "opt": {"ffn_dim": 64, "word_embed_proj_dim": 32, "pad_token_id": 1},
    "phi": {},
    "phi3": {"pad_token_id": 0},
    "phimoe": EXPERTS,
    "qwen2": {**LAYERED, "use_sliding_window": True, "max_window_layers": 2},
    "qwen2_moe": {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16},
    "qwen3": {"head_dim": 8},
    "qwen3_moe": {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    "smollm3": {"no_rope_layers": [1, 0], "no_rope_layer_interval": 2},
    "stablelm": {},
    "starcoder2": {"sliding_window": WINDOW},
}
"""model_type → what its tiny configuration adds to `COMMON`."""


def tiny_model(model_type: str, seed: int = 0, **overrides: Any) -> Any:
    """A random fp32 model of that type, its weights scaled up; it never ends a text by itself."""
    torch.set_num_threads(1)  # two threads only get in each other's way with matrices this small
    torch.manual_seed(seed)
    config = AutoConfig.for_model(model_type, **{**COMMON, **CONFIGS[model_type], **overrides})
    model = AutoModelForCausalLM.from_config(config).eval().float()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1 and "norm" not in name:
                parameter.mul_(WEIGHT_SCALE)
    return model
