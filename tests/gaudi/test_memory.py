from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.config import Settings
from common.errors import StartError
from common.shapes import Bucket
from workers.decoder_size import Sizes, count_weights, sizes
from workers.gaudi.buckets import Plan, plan
from workers.gaudi.library import Memory
from workers.gaudi.memory import cache_bytes, fits, prefill_bytes, require_room

GIB = 2**30
LLAMA_8B: dict[str, Any] = {
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}
GPT2 = {"vocab_size": 50257, "n_embd": 768, "n_layer": 12, "n_head": 12}
FALCON_7B = {"vocab_size": 65024, "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71, "multi_query": True}
MIXTRAL = {**LLAMA_8B, "vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2}


def planned(**env: str) -> Plan:
    return plan(Settings.from_env({"FARM_BACKEND": "gaudi", **env}), 131_072)


def test_sizes_by_any_of_the_names_in_use() -> None:
    assert sizes(GPT2) == Sizes(12, 768, 12, 12, 64, 3072, 1, 1, 50257, False)
    falcon = sizes(FALCON_7B)
    assert falcon is not None and (falcon.n_kv_heads, falcon.head_dim, falcon.feed_forward) == (1, 64, 4 * 4544)
    assert sizes({"text_config": LLAMA_8B}) == sizes(LLAMA_8B)
    assert sizes({"vocab_size": 200}) is None


def test_weights_of_known_models(tmp_path: Path) -> None:
    for config, n_weights in ((LLAMA_8B, 8.03e9), (MIXTRAL, 46.7e9)):
        size = sizes(config)
        assert size is not None and count_weights(tmp_path, size) == pytest.approx(n_weights, rel=0.01)


def test_the_cache_of_all_rows() -> None:
    assert cache_bytes(LLAMA_8B, 32, 4096, 2) == 32 * 4096 * 2 * 32 * 8 * 128 * 2 == 16 * GIB
    assert cache_bytes({}, 32, 4096, 2) == 0


def test_a_prefill_holds_what_each_part_needs() -> None:
    pair = Bucket(4, 1024)
    lean = prefill_bytes(LLAMA_8B, pair, 2, flash=True, trims=True)
    kept = 4 * 1024 * 32 * 2 * 8 * 128 * 2
    feed_forward = 3 * 4 * 1024 * 14336 * 2
    assert lean == kept + 2 * 4 * 1024 * 4096 * 2 + feed_forward
    full_logits = prefill_bytes(LLAMA_8B, pair, 2, flash=True, trims=False)
    assert full_logits - lean == 4 * 1024 * 128256 * 2 - feed_forward, "every position's logits take the place of the feed-forward's peak"
    scores = prefill_bytes(LLAMA_8B, pair, 2, flash=False, trims=True)
    assert scores - lean > 4 * 32 * 1024 * 1024 * 6 - feed_forward
    assert prefill_bytes({"vocab_size": 200}, pair, 2, True, True) == 0, "unknown: the card itself answers"


@given(st.integers(1, 32), st.integers(1, 4096), st.booleans(), st.booleans())
def test_more_tokens_never_need_less(rows: int, length: int, flash: bool, trims: bool) -> None:
    here = prefill_bytes(LLAMA_8B, Bucket(rows, length), 2, flash, trims)
    assert prefill_bytes(LLAMA_8B, Bucket(rows + 1, length), 2, flash, trims) > here
    assert prefill_bytes(LLAMA_8B, Bucket(rows, length + 1), 2, flash, trims) > here
    assert prefill_bytes(LLAMA_8B, Bucket(rows, length), 2, False, False) >= here


def test_the_reserve_stays_free() -> None:
    memory = Memory(free=20 * GIB, total=100 * GIB)
    assert fits(15 * GIB, memory) and not fits(15 * GIB + 1, memory)
    assert fits(20 * GIB, memory, reserve=0.0)


def test_a_batch_that_cannot_fit_names_the_largest_that_does(tmp_path: Path) -> None:
    """tgi-gaudi #54: the operator can tell too little memory from a bug. 8 B on a Gaudi 1."""
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_8B))
    card = Memory(32 * GIB, 32 * GIB)
    with pytest.raises(StartError) as refusal:
        require_room(tmp_path, LLAMA_8B, planned(MAX_BATCH_SIZE="64"), "bfloat16", card)
    assert refusal.value.code == 8
    assert str(refusal.value) == (
        "out of device memory: weights of 15.0 GiB and a cache of 64 × 4096 tokens of 32.0 GiB do not fit the 32.0 GiB that are free; "
        "the largest --max-batch-size that fits is 30"
    )
    require_room(tmp_path, LLAMA_8B, planned(MAX_BATCH_SIZE="30"), "bfloat16", card)
    with pytest.raises(StartError, match="fits is 30"):
        require_room(tmp_path, LLAMA_8B, planned(MAX_BATCH_SIZE="31"), "bfloat16", card)


def test_other_ways_not_to_fit(tmp_path: Path) -> None:
    with pytest.raises(StartError, match="the model is too big for one card"):
        require_room(tmp_path, MIXTRAL, planned(MAX_BATCH_SIZE="1"), "bfloat16", Memory(32 * GIB, 32 * GIB))
    long = planned(MAX_BATCH_SIZE="2", MAX_TOTAL_TOKENS="131072", MAX_INPUT_TOKENS="1024")
    with pytest.raises(StartError, match="not even one row fits: lower --max-total-tokens"):
        require_room(tmp_path, LLAMA_8B, long, "bfloat16", Memory(32 * GIB, 32 * GIB))
    require_room(tmp_path, {"vocab_size": 200}, long, "bfloat16", Memory(1, 1))
