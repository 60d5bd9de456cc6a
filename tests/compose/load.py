"""Clients at the balancer while something happens to the farm."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import httpx

from tests.chaos.streams import PROMPT, Shown, client, stream

PATIENCE_S = 40.0


def under_load(url: str, seeds: Sequence[int], n_tokens: int, action: Callable[[], None]) -> list[Shown]:
    """Streams from before the action to its end; what each client saw."""

    async def run() -> list[Shown]:
        async with client() as http:
            streams = [asyncio.create_task(stream(http, url, seed, n_tokens)) for seed in seeds]
            await asyncio.sleep(0)
            await asyncio.to_thread(action)
            return list(await asyncio.gather(*streams))

    return asyncio.run(run())


class Client:
    """One stream whose client may come back: after a broken connection it asks again from the last event it saw."""

    def __init__(self, url: str, seed: int, n_tokens: int, resumes: bool) -> None:
        self.shown = Shown(seed, n_tokens)
        self.name = f"client-{seed}-{time.monotonic_ns()}"
        self.n_breaks = 0
        self._url = f"{url}/generate_stream"
        self._resumes = resumes
        self._last = ""
        parameters = {"max_new_tokens": n_tokens, "seed": seed, "do_sample": True, "details": True}
        self._body = {"inputs": PROMPT, "parameters": parameters}

    async def run(self, http: httpx.AsyncClient) -> Client:
        deadline_s = time.monotonic() + PATIENCE_S
        while not self.shown.finish_reason and not self.shown.error:
            try:
                await self._read(http)
            except httpx.HTTPError as error:
                self.n_breaks += 1
                if not self._resumes or time.monotonic() > deadline_s:
                    self.shown.error = repr(error)
                await asyncio.sleep(0.1)
        return self

    async def _read(self, http: httpx.AsyncClient) -> None:
        headers = {"x-request-id": self.name}
        if self._resumes:
            headers |= {"Last-Event-ID": self._last} if self._last else {"x-farm-resume": "1"}
        async with http.stream("POST", self._url, json=self._body, headers=headers) as response:
            if response.status_code in (429, 502, 503) and self._resumes:
                return
            if response.status_code != 200:
                self.shown.error = f"{response.status_code} {(await response.aread())[:200]!r}"
                return
            last = ""
            async for line in response.aiter_lines():
                if line.startswith("id:"):
                    last = line[3:].strip()
                elif line.startswith("data:"):
                    self._take(json.loads(line[5:]))
                    self._last = last or self._last

    def _take(self, event: dict[str, Any]) -> None:
        if "error" in event:
            self.shown.error = str(event["error"])
            return
        self.shown.tokens.append(event["token"]["id"])
        self.shown.indices.append(event["index"])
        self.shown.times_s.append(time.monotonic())
        if event["details"]:
            self.shown.finish_reason = event["details"]["finish_reason"]
