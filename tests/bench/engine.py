"""What the farm costs on a real model: its tokens/s ÷ a bare loop over the same engine, batch and lengths."""

from __future__ import annotations

import asyncio
import statistics
import time
from pathlib import Path

from common.config import Settings
from common.shapes import smallest_bucket
from tests.bench.figures import Figure
from tests.chaos.streams import client
from tests.farm import Farm
from tests.servers import Server
from workers.engines import create
from workers.engines.base import DecodeRow, Engine, PrefillRow
from workers.sampling import Sampler
from workers.weights import local_path

ROWS = 8
N_TOKENS = 160
N_ROUNDS = 3
ENV = {"FARM_BACKEND": "cpu", "MAX_BATCH_SIZE": str(ROWS), "MAX_TOTAL_TOKENS": "512", "MAX_CONCURRENT_REQUESTS": "64"}
PROMPT = "<|im_start|>user\nTell me a long story about number {} and the sea.<|im_end|>\n<|im_start|>assistant\n"


def farm_ratio(folder: Path) -> list[Figure]:
    """Rounds of both, in turn, on one machine; the median of the ratios."""
    settings = Settings.from_env(ENV)
    path = local_path(settings, lambda what, done: None)
    engine = create(settings, str(path), "")
    engine.load(lambda what, done: None)
    engine.warm_up(lambda what, done: None)
    server = Server(folder).start()
    try:
        with Farm(folder, server, {**ENV, "MODEL_ID": str(path)}) as farm:
            url = farm.gateway()
            farm.worker()
            farm.wait_ready(timeout_s=120)
            ratios, rates = [], []
            for _ in range(N_ROUNDS):
                bare = _bare(engine)
                rate, length = asyncio.run(_farm(url))
                ratios.append(rate / bare)
                rates.append((rate, bare, length))
    finally:
        server.stop()
    rate, bare, _ = rates[N_ROUNDS // 2]
    return [Figure(f"farm tokens/s ÷ bare loop, SmolLM2-135M, batch {ROWS}", statistics.median(ratios), 0.9, least=True,
                   note=f"{rate:.0f} ÷ {bare:.0f}")]  # fmt: skip


def _bare(engine: Engine) -> float:
    """Tokens/s of decode and greedy choice alone."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(local_path(Settings.from_env(ENV), lambda what, done: None) / "tokenizer.json"))
    sampler = Sampler(engine.vocab_size)
    tokens, lengths = [], []
    for slot in range(ROWS):
        ids = tokenizer.encode(PROMPT.format(slot)).ids
        bucket = smallest_bucket([len(ids)], engine.shape)
        assert bucket is not None
        row = PrefillRow(slot, ids)
        tokens.append(sampler.pick(engine.prefill(bucket, [row]), [row], [None])[0].token)
        lengths.append(len(ids))
    started_s = time.perf_counter()
    for step in range(N_TOKENS - 1):
        rows = [DecodeRow(slot, tokens[slot], lengths[slot] + step) for slot in range(ROWS)]
        tokens = [picked.token for picked in sampler.pick(engine.decode(rows), rows, [None] * ROWS)]
    return ROWS * (N_TOKENS - 1) / (time.perf_counter() - started_s)


async def _farm(url: str) -> tuple[float, int]:
    """Tokens/s while all rows run."""
    async with client() as http:
        times = await asyncio.gather(*(_times(http, url, number) for number in range(ROWS)))
    start, end = max(row[0] for row in times), min(row[-1] for row in times)
    n_tokens = sum(start < at <= end for row in times for at in row)
    return n_tokens / (end - start), min(map(len, times))


async def _times(http, url: str, number: int) -> list[float]:  # type: ignore[no-untyped-def]
    body = {"inputs": PROMPT.format(number), "parameters": {"max_new_tokens": N_TOKENS}}
    async with http.stream("POST", f"{url}/generate_stream", json=body) as response:
        return [time.perf_counter() async for line in response.aiter_lines() if line.startswith("data:")]
