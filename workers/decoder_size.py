"""How big a decoder is, by its config.json: what memory checks reckon with before anything is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from workers.model_files import n_weights

ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}


class Sizes(NamedTuple):
    """Of the language part."""

    n_layers: int
    hidden: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    feed_forward: int
    n_experts: int
    n_active_experts: int
    vocab_size: int
    tied: bool

    @property
    def kv_width(self) -> int:
        """Numbers that one token leaves in the cache of one layer."""
        return 2 * self.n_kv_heads * self.head_dim

    @property
    def n_weights(self) -> int:
        """Embedding, attention and gated feed-forward of a Llama-like decoder, with all its experts."""
        attention = self.hidden * self.head_dim * 2 * (self.n_heads + self.n_kv_heads)
        feed_forward = 3 * self.hidden * self.feed_forward * self.n_experts
        return self.n_layers * (attention + feed_forward) + (1 if self.tied else 2) * self.vocab_size * self.hidden


def sizes(config: Mapping[str, Any]) -> Sizes | None:
    """From config.json by any of the names in use; None when it does not say them."""
    config = config.get("text_config") or config
    hidden = _number(config, "hidden_size", "n_embd", "d_model")
    n_layers = _number(config, "num_hidden_layers", "n_layer", "n_layers", "num_layers")
    n_heads = _number(config, "num_attention_heads", "n_head", "n_heads", "num_heads")
    vocab_size = _number(config, "vocab_size")
    if not (hidden and n_layers and n_heads and vocab_size):
        return None
    n_kv_heads = _number(config, "num_key_value_heads", "num_kv_heads") or (1 if config.get("multi_query") else n_heads)
    return Sizes(
        n_layers=n_layers,
        hidden=hidden,
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=_number(config, "head_dim") or hidden // n_heads,
        feed_forward=_number(config, "moe_intermediate_size", "intermediate_size", "ffn_hidden_size", "n_inner", "ffn_dim") or 4 * hidden,
        n_experts=_number(config, "num_local_experts", "num_experts", "n_routed_experts") or 1,
        n_active_experts=_number(config, "num_experts_per_tok") or 1,
        vocab_size=vocab_size,
        tied=bool(config.get("tie_word_embeddings")),
    )


def count_weights(folder: Path, size: Sizes) -> int:
    """Of the checkpoint's files when they are here, else what the configuration implies."""
    return n_weights(folder) or size.n_weights


def _number(config: Mapping[str, Any], *names: str) -> int:
    """The first of these that is given, else 0."""
    return next((int(config[name]) for name in names if config.get(name)), 0)
