"""What a card must hold, before it is asked to (gaudi.md §7, cases 6 and 15): estimates in bytes that rather say too much."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from common.errors import StartError
from common.shapes import Bucket
from workers.decoder_size import ITEM_BYTES, Sizes, count_weights, sizes
from workers.gaudi.buckets import Plan
from workers.gaudi.library import Memory
from workers.gaudi.refusals import OUT_OF_MEMORY

RESERVE = 0.05
"""Share of the card's memory that stays free: graphs, workspaces and fragments need it."""

SOFTMAX_BYTES = 4
"""Attention without the fused kernel also holds the scores in float32."""


def fits(needed_bytes: int, memory: Memory, reserve: float = RESERVE) -> bool:
    """Whether so much can be allocated while the reserve stays free."""
    return needed_bytes <= memory.free - reserve * memory.total


def prefill_bytes(config: Mapping[str, Any], bucket: Bucket, item_bytes: int, flash: bool, trims: bool) -> int:
    """What one prefill holds at its peak: keys and values, activations of a layer, scores unless `flash`, logits.

    `trims`: logits of one position a row. 0 when the configuration does not say its sizes: then only the card can tell.
    """
    size = sizes(config)
    if size is None:
        return 0
    n_tokens = bucket.rows * bucket.length
    kept = n_tokens * size.n_layers * size.kv_width * item_bytes
    residual = 2 * n_tokens * size.hidden * item_bytes
    logits = (bucket.rows if trims else n_tokens) * size.vocab_size * item_bytes
    return kept + residual + max(_attention_bytes(size, bucket, item_bytes, flash), _feed_forward_bytes(size, n_tokens, item_bytes), logits)


def cache_bytes(config: Mapping[str, Any], batch_size: int, max_length: int, item_bytes: int) -> int:
    """The static keys and values of all rows; 0 when the configuration does not say its sizes."""
    size = sizes(config)
    return batch_size * max_length * size.n_layers * size.kv_width * item_bytes if size else 0


def require_room(folder: Path, config: Mapping[str, Any], plan: Plan, dtype: str, memory: Memory) -> None:
    """Raises `StartError`, before anything is loaded, when weights, cache and the smallest prefill cannot fit; names the largest batch."""
    size = sizes(config)
    if size is None:
        return
    item_bytes = ITEM_BYTES[dtype]
    weights = count_weights(folder, size) * item_bytes
    smallest = min(prefill_bytes(config, pair, item_bytes, flash=True, trims=True) for pair in plan.prefills)
    cache = cache_bytes(config, plan.batch_size, plan.max_length, item_bytes)
    if fits(weights + cache + smallest, memory):
        return
    room = memory.free - RESERVE * memory.total - weights - smallest
    fitting = max(0, int(room / (cache / plan.batch_size)))
    advice = f"the largest --max-batch-size that fits is {fitting}" if fitting else "not even one row fits: lower --max-total-tokens"
    if room <= 0:
        advice = "the model is too big for one card"
    raise StartError(
        f"out of device memory: weights of {_gib(weights)} and a cache of {plan.batch_size} × {plan.max_length} tokens of {_gib(cache)} "
        f"do not fit the {_gib(memory.free)} that are free; {advice}",
        OUT_OF_MEMORY,
    )


def _attention_bytes(size: Sizes, bucket: Bucket, item_bytes: int, flash: bool) -> int:
    """Queries, keys, values and the result; the mask; the scores and their softmax."""
    n_tokens = bucket.rows * bucket.length
    projected = n_tokens * (2 * size.n_heads * size.head_dim + size.kv_width) * item_bytes
    mask = n_tokens * bucket.length * item_bytes
    scores = 0 if flash else n_tokens * bucket.length * size.n_heads * (item_bytes + SOFTMAX_BYTES)
    return projected + mask + scores


def _feed_forward_bytes(size: Sizes, n_tokens: int, item_bytes: int) -> int:
    """Gate, up and their product, for each expert that a token takes."""
    return 3 * n_tokens * size.feed_forward * size.n_active_experts * item_bytes


def _gib(n_bytes: float) -> str:
    return f"{n_bytes / 2**30:.1f} GiB"
