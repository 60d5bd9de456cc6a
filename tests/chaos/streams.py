"""Streams against a salted oracle: what is shown must follow, token by token, from what was shown before."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import httpx

from workers.double_tokens import hashed_token
from workers.engines.oracle import N_SPECIAL, N_WORDS, next_token

BACKEND = os.environ.get("FARM_BACKEND", "oracle")
PROMPT_IDS = (15, 16, 77)
PROMPT = " ".join(f"w{token}" for token in PROMPT_IDS)


def expected(seed: int, shown: Sequence[int], worker: str) -> int:
    """The token that this worker gives after `shown`; a device double's depends on all tokens before it."""
    if BACKEND == "oracle":
        return next_token(seed, len(shown), (*PROMPT_IDS, *shown)[-1], worker)
    return hashed_token((*PROMPT_IDS, *shown), N_WORDS, N_SPECIAL, worker)


@dataclass
class Shown:
    """What one client saw."""

    seed: int
    n_wanted: int
    tokens: list[int] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    finish_reason: str = ""
    error: str = ""

    def faults(self, worker_ids: Sequence[str]) -> list[str]:
        """Everything wrong with this stream; empty when it is consistent and complete."""
        found = [f"seed {self.seed}: {self.error}"] if self.error else []
        if len(self.tokens) != self.n_wanted or self.finish_reason != "length":
            found.append(f"seed {self.seed}: {len(self.tokens)} of {self.n_wanted} tokens, ended by {self.finish_reason!r}")
        if self.indices != list(range(1, len(self.tokens) + 1)):
            found.append(f"seed {self.seed}: indices {self.indices}")
        owner: str | None = None
        for pos, token in enumerate(self.tokens):
            if owner is None or token != expected(self.seed, self.tokens[:pos], owner):
                owner = next((worker for worker in worker_ids if token == expected(self.seed, self.tokens[:pos], worker)), None)
            if owner is None:
                found.append(f"seed {self.seed}: token {token} at {pos} follows from nothing that was shown")
        return found

    @property
    def longest_pause_s(self) -> float:
        return max((b - a for a, b in zip(self.times_s, self.times_s[1:], strict=False)), default=0.0)


async def stream(client: httpx.AsyncClient, url: str, seed: int, n_tokens: int) -> Shown:
    """Reads one stream to its end, or to its error."""
    shown = Shown(seed, n_tokens)
    parameters = {"max_new_tokens": n_tokens, "seed": seed, "do_sample": True, "details": True}
    try:
        async with client.stream("POST", f"{url}/generate_stream", json={"inputs": PROMPT, "parameters": parameters}) as response:
            if response.status_code != 200:
                shown.error = f"{response.status_code} {(await response.aread())[:200]!r}"
                return shown
            async for line in response.aiter_lines():
                if line.startswith("data:"):
                    _take(shown, json.loads(line[5:]))
    except httpx.HTTPError as error:
        shown.error = repr(error)
    return shown


def _take(shown: Shown, event: dict[str, object]) -> None:
    if "error" in event:
        shown.error = str(event["error"])
        return
    token, details = event["token"], event["details"]
    assert isinstance(token, dict)
    shown.tokens.append(token["id"])
    shown.indices.append(int(str(event["index"])))
    shown.times_s.append(time.monotonic())
    if isinstance(details, dict):
        shown.finish_reason = details["finish_reason"]


def client() -> httpx.AsyncClient:
    """One without a limit of connections or time."""
    return httpx.AsyncClient(timeout=httpx.Timeout(60), limits=httpx.Limits(max_connections=None), trust_env=False)


async def streams(url: str, seeds: Iterable[int], n_tokens: int) -> list[Shown]:
    """Many streams at once."""
    async with client() as http:
        return list(await asyncio.gather(*(stream(http, url, seed, n_tokens) for seed in seeds)))
