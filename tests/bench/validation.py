"""What the gateway adds to tokenizing: body, fields, rules and ids of a request ÷ the library's own encode of the same text.

The tokenizer is a byte-level one trained on the text itself.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from gateway import admission, body
from gateway.admission import Limits
from gateway.schemas.tgi import GENERATE
from gateway.tokenizing import Encoder
from tests.bench.figures import Figure

BAR = 2.0
N_ROUNDS = 200
LIMITS = Limits(2, 4, 5, 1_000_000, 2_000_000)
PARAMETERS = {"max_new_tokens": 100, "temperature": 0.7, "top_k": 50, "top_p": 0.9, "stop": ["\n\n"], "seed": 1, "details": True}
SENTENCE = "A farm of workers packs the requests of many people into static shapes, and nobody's words are lost on the way. "
LENGTHS_CHARACTERS = (200, 1_000, 10_000, 100_000)


def tokenizer() -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel()  # type: ignore[assignment]
    made.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(vocab_size=1_000, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())  # type: ignore[call-arg]
    made.train_from_iterator([SENTENCE], trainer)
    return made


async def fastest_us(run: Callable[[], Awaitable[object]]) -> float:
    fastest_s = float("inf")
    for _ in range(N_ROUNDS):
        start_s = time.perf_counter()
        await run()
        fastest_s = min(fastest_s, time.perf_counter() - start_s)
    return fastest_s * 1e6


async def measure(n_characters: int, bare: Tokenizer, encoder: Encoder) -> tuple[float, float]:
    """Microseconds of the library alone and of all the gateway does."""
    text = (SENTENCE * (n_characters // len(SENTENCE) + 1))[:n_characters]
    data = json.dumps({"inputs": text, "parameters": PARAMETERS}).encode()

    async def library() -> object:
        return bare.encode(text).ids

    async def gateway() -> object:
        request = GENERATE(body.parse(data))
        admission.check_request(request.inputs, request.parameters, LIMITS)
        ids = await encoder.encode(request.inputs, request.parameters.truncate)
        admission.check_lengths(len(ids), request.parameters.max_new_tokens, LIMITS)
        return ids

    assert await library() == await gateway()
    return await fastest_us(library), await fastest_us(gateway)


def validation(_: Path) -> list[Figure]:
    """One figure per length of text."""

    async def all_lengths() -> list[Figure]:
        bare = tokenizer()
        with ThreadPoolExecutor(2) as threads:
            encoder = Encoder(bare.to_str().encode(), threads)
            return [await figure(n_characters, bare, encoder) for n_characters in LENGTHS_CHARACTERS]

    return asyncio.run(all_lengths())


async def figure(n_characters: int, bare: Tokenizer, encoder: Encoder) -> Figure:
    library_us, gateway_us = await measure(n_characters, bare, encoder)
    name = f"validation and tokenizing ÷ bare encode, {n_characters} characters"
    return Figure(name, gateway_us / library_us, BAR, note=f"{gateway_us:.0f} µs")
