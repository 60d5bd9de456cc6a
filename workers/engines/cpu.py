"""The CPU engine: any stock `transformers` decoder over a per-slot static cache, one row per prefill call."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from workers.host import MATHS, cpu_threads, require_memory

os.environ.update(MATHS | os.environ)

import torch

from common.errors import StartError
from common.shapes import Bucket, Shape, doubling
from workers.engines.base import Capabilities, DecodeRow, PrefillRow, Progress, ShapeLedger, Step
from workers.model_files import eos_ids, n_weights
from workers.static_cache import StaticCache
from workers.stock_model import StockModel, choose_dtype, load_stock_model
from workers.supported import require_supported

if TYPE_CHECKING:
    from common.config import Settings

log = logging.getLogger(__name__)

DEFAULT_BATCH_SIZE = 8
DEFAULT_MAX_LENGTH = 2048
SMALLEST_PREFILL = 32
SMALLEST_COLUMNS = 128
LOGPROB_CHUNK = 128


class CpuEngine:
    """Serves `batch_size` slots of `max_length` columns; implements `workers.engines.base.Engine`.

    The result of a row does not depend on its slot, its neighbours or the KV length, bit for bit. `eos_ids`, `vocab_size` and
    `precision` are valid after `load`. Log-probabilities of prompts are warmed, and offered, only when the settings allow them.
    """

    shape: Shape
    vocab_size: int
    precision: str

    cold = False

    def __init__(self, settings: Settings, model_path: str, worker: str) -> None:
        self.capabilities = Capabilities(prompt_logprobs=settings.enable_prefill_logprobs, reproducible=True)
        self.ledger = ShapeLedger()
        self.eos_ids: frozenset[int] = frozenset()
        self.worker = worker
        self._settings = settings
        self._folder = Path(model_path)

    @property
    def build(self) -> str:
        """Another CPU family, or another number of threads, may add in another order."""
        return f"cpu {self.precision} torch {torch.__version__} {torch.backends.cpu.get_cpu_capability()} {torch.get_num_threads()} threads"

    def load(self, progress: Progress) -> None:
        """Reads the weights and allocates the cache; raises `StartError` for an unsupported model or too little memory."""
        require_supported(self._folder)
        n_threads = cpu_threads(self._settings.workers)
        torch.set_num_threads(n_threads)
        progress("weights", 0.0)
        dtype = choose_dtype(self._settings.dtype)
        require_memory(n_weights(self._folder) * dtype.itemsize, f"the model's weights in {dtype}")
        model = load_stock_model(self._folder, dtype, self._settings.trust_remote_code)
        self.serve(model)
        log.info("%s on %d threads in %s, %d linears packed", model.config.model_type, n_threads, self.precision, model.n_packed)
        self.eos_ids = eos_ids(self._folder)
        progress("weights", 1.0)

    def serve(self, model: StockModel) -> None:
        """Takes a loaded model and lays out the cache for the settings' batch size and length, in tokens."""
        self._model = model
        self.precision = str(model.dtype).removeprefix("torch.")
        batch_size = self._settings.max_batch_size or DEFAULT_BATCH_SIZE
        max_length = self._settings.max_total_tokens or min(model.max_positions, DEFAULT_MAX_LENGTH)
        if max_length > model.max_positions:
            raise StartError(f"MAX_TOTAL_TOKENS={max_length} is more than the {model.max_positions} positions of this model")
        lengths = doubling(min(SMALLEST_PREFILL, max_length), max_length)
        self.shape = Shape(batch_size, max_length, tuple(Bucket(1, length) for length in lengths))
        self._columns = decode_columns(max_length)
        self._next_pos = [0] * batch_size
        self._cache = StaticCache(batch_size, max_length)
        self.vocab_size, bytes_per_token = self._probe()
        require_memory(
            bytes_per_token * batch_size * max_length,
            f"the cache of MAX_BATCH_SIZE={batch_size} rows of MAX_TOTAL_TOKENS={max_length} tokens",
        )

    def warm_up(self, progress: Progress) -> None:
        """Runs every prefill and decode shape once through the serving functions, then closes the ledger."""
        kinds = (False, True) if self.capabilities.prompt_logprobs else (False,)
        prompts = [(bucket, PrefillRow(0, [0] * bucket.length, prompt_logprobs=kind)) for bucket in self.shape.buckets for kind in kinds]
        n_shapes = len(prompts) + len(self._columns)
        for n_done, (bucket, row) in enumerate(prompts, 1):
            self.prefill(bucket, [row])
            progress("warm-up", n_done / n_shapes)
        for n_done, n_columns in enumerate(self._columns, len(prompts) + 1):
            self.decode([DecodeRow(0, 0, n_columns - 1)])
            progress("warm-up", n_done / n_shapes)
        self.scrub(0)
        self.release(0)
        self.ledger.serving = True

    @torch.inference_mode()
    def prefill(self, bucket: Bucket, rows: Sequence[PrefillRow]) -> Step:
        """Writes one row's prompt into its slot; logits `[1, vocab]` of its last token."""
        (row,) = rows
        n_tokens = len(row.ids)
        assert row.start == 0 and 0 < n_tokens <= bucket.length, "a row's prompt starts at 0 and fits its bucket"
        self.ledger.see("prefill", bucket.length, row.prompt_logprobs)
        ids = torch.zeros(1, bucket.length, dtype=torch.int64)
        ids[0, :n_tokens] = torch.tensor(row.ids)
        positions = torch.arange(bucket.length)[None]
        self._cache.select_prefill(row.slot)
        self._next_pos[row.slot] = n_tokens
        if not row.prompt_logprobs:
            logits = self._model.forward(ids, positions, self._cache, bucket.length, torch.tensor([n_tokens - 1]))
            return Step(logits=logits[0].float(), prompt_logprobs=[None])
        logits = self._model.forward(ids, positions, self._cache, bucket.length)[0]
        logprobs, best = _logprobs_of(logits, row.ids)
        return Step(logits=logits[n_tokens - 1 : n_tokens].float(), prompt_logprobs=[logprobs], prompt_best=[best])

    @torch.inference_mode()
    def decode(self, rows: Sequence[DecodeRow]) -> Step:
        """One step of the whole batch; logits `[n, vocab]` in the order of `rows`."""
        n_columns = next(n for n in self._columns if n > max(row.at for row in rows))
        self.ledger.see("decode", n_columns)
        tokens = [0] * self.shape.batch_size
        # A slot not named here writes where its own next step will overwrite it.
        at = [min(pos, self.shape.max_length - 1) for pos in self._next_pos]
        for row in rows:
            tokens[row.slot] = row.token
            at[row.slot] = row.at
            self._next_pos[row.slot] = row.at + 1
        positions = torch.tensor(at)
        self._cache.select_decode(positions, n_columns)
        logits = self._model.forward(torch.tensor(tokens)[:, None], positions[:, None], self._cache, n_columns)
        return Step(logits=logits[[row.slot for row in rows], 0].float(), prompt_logprobs=[None] * len(rows))

    def release(self, slot: int) -> None:
        self._next_pos[slot] = 0

    @torch.inference_mode()
    def scrub(self, slot: int) -> None:
        self._cache.scrub(slot)

    @torch.inference_mode()
    def _probe(self) -> tuple[int, int]:
        """(vocabulary size, cache bytes per token), read from one pass over one token."""
        cache = StaticCache(1, 1)
        cache.select_prefill(0)
        zero = torch.zeros(1, 1, dtype=torch.int64)
        logits = self._model.forward(zero, zero, cache, 1)
        return logits.shape[-1], cache.n_bytes


def decode_columns(max_length: int) -> tuple[int, ...]:
    """The KV lengths that decode steps read: 128, 192, 256, 384, 512, … and `max_length` at the end."""
    lengths = doubling(min(SMALLEST_COLUMNS, max_length), max_length)
    halfway = [length * 3 // 2 for length in lengths if length * 3 // 2 < max_length]
    return tuple(sorted({*lengths, *halfway}))


def _logprobs_of(logits: torch.Tensor, ids: Sequence[int]) -> tuple[list[float], list[tuple[int, float]]]:
    """The log-probability of each prompt token after the first, and (id, log-probability) of the likeliest in its place.

    In float32 and in chunks that bound the memory.
    """
    logprobs: list[float] = []
    best: list[tuple[int, float]] = []
    targets = torch.tensor(ids)[1:, None]
    for start in range(0, len(targets), LOGPROB_CHUNK):
        chunk = targets[start : start + LOGPROB_CHUNK]
        rows = logits[start : start + len(chunk)].float()
        total = rows.logsumexp(1)
        logprobs += (rows.gather(1, chunk)[:, 0] - total).tolist()
        highest, at = rows.max(1)
        best += zip(at.tolist(), (highest - total).tolist(), strict=True)
    return logprobs, best
