"""The oracle: an engine without a model whose tokens show any fault of order, loss, repetition or cache (design §6).

Token = hash(seed, position, previous token); `salted` also takes the worker, so that nobody can regenerate a lost run.
It keeps the tokens it was given per slot, as a cache would, and refuses rows that do not continue them.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from zlib import crc32

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from common.config import Settings
from common.noise import mix64
from common.shapes import Bucket, Shape, doubling
from workers.engines.base import Capabilities, DecodeRow, EngineFault, PrefillRow, Progress, ShapeLedger, Step

N_WORDS = 16_384
UNKNOWN = 0
EOS = 1
DEADLY = 2  # a prompt with this word kills the process in its prefill,
HANGING = 3  # this one never comes back,
FAULTY = 4  # this one is refused by the engine,
NOT_A_NUMBER = 8  # this one has no usable output,
REPEATING = 9  # this one gives the same token for ever
N_SPECIAL = 10
"""Tokens below are never generated."""

CALLS_PER_COMPILATION = 10
"""A shape that a cold oracle has not met takes as long as so many calls."""


def next_token(seed: int, pos: int, previous: int, salt: str = "") -> int:
    """The token after `previous` at generated position `pos`; never a special one."""
    return N_SPECIAL + mix64(mix64(mix64(seed) ^ pos) ^ previous ^ crc32(salt.encode())) % (N_WORDS - N_SPECIAL)


def write_model(folder: Path) -> None:
    """Fills a folder with the oracle's tokenizer: a word `w123` is token 123, any other is unknown."""
    vocabulary = {"<unk>": UNKNOWN, "</s>": EOS, **{f"w{token}": token for token in range(DEADLY, N_WORDS)}}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.add_special_tokens(["<unk>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({"model_type": "oracle", "vocab_size": N_WORDS, "eos_token_id": EOS}))


class OracleEngine:
    """Sleeps `oracle_prefill_ms` per prefill and `oracle_step_ms` per step."""

    cold = False

    def __init__(self, settings: Settings, model_path: str, worker: str) -> None:
        length = settings.max_total_tokens or 4096
        batch_size = settings.max_batch_size or 8
        rows = min(4, batch_size)
        self.worker = worker
        self.shape = Shape(batch_size, length, tuple(Bucket(n, size) for size in doubling(16, length) for n in sorted({1, rows})))
        self.capabilities = Capabilities(step="tokens", reproducible=not settings.oracle_salted)
        self.ledger = ShapeLedger(strict=True)
        self.vocab_size = N_WORDS
        self.eos_ids = frozenset({EOS})
        self._settings = settings
        self._cache: list[list[int]] = [[] for _ in range(batch_size)]

    @property
    def build(self) -> str:
        return "oracle"

    def load(self, progress: Progress) -> None:
        progress("weights", 1.0)

    def warm_up(self, progress: Progress) -> None:
        if self._settings.skip_warmup:
            self.cold = True
            return
        for bucket in self.shape.buckets:
            self.ledger.see("prefill", bucket)
        self.ledger.see("decode", self.shape.batch_size)
        self.ledger.serving = True
        progress("warm-up", 1.0)

    def prefill(self, bucket: Bucket, rows: Sequence[PrefillRow]) -> Step:
        assert 0 < len(rows) <= bucket.rows
        n_calls = CALLS_PER_COMPILATION if self.ledger.see("prefill", bucket) else 1
        for row in rows:
            assert len(row.ids) <= bucket.length
            assert row.start in (0, len(self._cache[row.slot]))
            self._cache[row.slot][row.start :] = row.ids
        _sleep_ms(n_calls * self._settings.oracle_prefill_ms)
        misbehave(rows)
        return Step(tokens=[self._token(row, row.ids[-1]) for row in rows])

    def decode(self, rows: Sequence[DecodeRow]) -> Step:
        n_calls = CALLS_PER_COMPILATION if self.ledger.see("decode", len(self._cache)) else 1
        assert rows and len({row.slot for row in rows}) == len(rows)
        for row in rows:
            cache = self._cache[row.slot]
            if row.at == 0:
                cache.clear()
            assert len(cache) == row.at < self.shape.max_length, f"slot {row.slot} holds {len(cache)} tokens, not {row.at}"
            cache.append(row.token)
        _sleep_ms(n_calls * self._settings.oracle_step_ms)
        return Step(tokens=[self._token(row, row.token) for row in rows])

    def release(self, slot: int) -> None:
        return

    def scrub(self, slot: int) -> None:
        self._cache[slot].clear()

    def _token(self, row: PrefillRow | DecodeRow, previous: int) -> int:
        if NOT_A_NUMBER in self._cache[row.slot]:
            return -1
        if REPEATING in self._cache[row.slot]:
            return N_SPECIAL
        return next_token(row.seed, row.pos, previous, self.worker if self._settings.oracle_salted else "")


def misbehave(rows: Sequence[PrefillRow]) -> None:
    """Does what a prompt's special words say."""
    words = {token for row in rows for token in row.ids}
    if DEADLY in words:
        os.kill(os.getpid(), signal.SIGKILL)
    if HANGING in words:
        time.sleep(3600)
    faulty = [row.slot for row in rows if FAULTY in row.ids]
    if faulty:
        raise EngineFault(faulty, "the oracle refuses this prompt")


def _sleep_ms(milliseconds: float) -> None:
    if milliseconds:
        time.sleep(milliseconds / 1000)
