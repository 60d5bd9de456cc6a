"""The real model in bf16: English comes out, and a seeded text does not depend on its slot or its neighbours."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from common.config import Settings
from common.messages import Params
from common.shapes import smallest_bucket
from workers.engines.base import DecodeRow, PrefillRow, Step
from workers.engines.cpu import CpuEngine
from workers.sampling import Sampler
from workers.weights import local_path

pytestmark = [pytest.mark.parity, pytest.mark.timeout(300)]

N_SLOTS = 4
N_TOKENS = 100
SAMPLED = Params(do_sample=True, temperature=0.8, top_p=0.95)
PROMPTS = (
    "Once upon a time",
    "The meaning of life is",
    "My favourite dish needs",
    "A river rises in the mountains, gathers streams from both sides, turns mills, carries boats and at last meets the sea. "
    "Along its banks people have built towns, fought over bridges, washed their clothes and taught their children to swim. "
    "Today its greatest danger is",
)


@pytest.fixture(scope="module")
def folder() -> Path:
    return local_path(Settings.from_env(os.environ), lambda _what, _done: None)


@pytest.fixture(scope="module")
def engine(folder: Path) -> CpuEngine:
    settings = Settings.from_env({"DTYPE": "bfloat16", "MAX_BATCH_SIZE": str(N_SLOTS), "MAX_TOTAL_TOKENS": "256"})
    engine = CpuEngine(settings, str(folder), "real")
    engine.load(lambda _what, _done: None)
    engine.ledger.strict = True
    engine.warm_up(lambda _what, _done: None)
    return engine


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def generate(engine: CpuEngine, prompts: dict[int, list[int]], params: Params, n_tokens: int) -> dict[int, list[int]]:
    """Tokens of the prompts in their slots (slot → ids), all decoded together; a row's seed comes from its prompt."""
    sampler = Sampler(engine.vocab_size)
    seeds = {slot: sum(ids) for slot, ids in prompts.items()}
    tokens: dict[int, list[int]] = {slot: [] for slot in prompts}

    def pick(step: Step, rows: Sequence[PrefillRow | DecodeRow]) -> None:
        for row, picked in zip(rows, sampler.pick(step, rows, [None] * len(rows)), strict=True):
            tokens[row.slot].append(picked.token)

    for slot, ids in prompts.items():
        bucket = smallest_bucket([len(ids)], engine.shape)
        assert bucket is not None
        rows = [PrefillRow(slot, ids, params=params, seed=seeds[slot])]
        pick(engine.prefill(bucket, rows), rows)
    for pos in range(1, n_tokens):
        named = [DecodeRow(slot, tokens[slot][-1], len(ids) + pos - 1, params, seeds[slot], pos) for slot, ids in prompts.items()]
        pick(engine.decode(named), named)
    for slot in prompts:
        engine.release(slot)
    return tokens


def test_the_capital_of_france(engine: CpuEngine, tokenizer: Tokenizer) -> None:
    prompt = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
    tokens = generate(engine, {2: tokenizer.encode(prompt).ids}, Params(), 10)[2]
    assert "Paris" in tokenizer.decode(tokens)


def test_a_seeded_text_is_equal_alone_in_a_full_batch_and_in_every_slot(engine: CpuEngine, tokenizer: Tokenizer) -> None:
    prompts = [tokenizer.encode(text).ids for text in PROMPTS]
    texts = [
        generate(engine, {(index + shift) % N_SLOTS: ids for index, ids in enumerate(prompts)}, SAMPLED, N_TOKENS)
        for shift in range(N_SLOTS)
    ]
    first = [texts[0][index] for index in range(N_SLOTS)]
    assert len(set(map(tuple, first))) == N_SLOTS and all(len(set(tokens)) > 20 for tokens in first)
    for shift, tokens in enumerate(texts):
        assert [tokens[(index + shift) % N_SLOTS] for index in range(N_SLOTS)] == first
    assert generate(engine, {3: prompts[0]}, SAMPLED, N_TOKENS)[3] == first[0]
