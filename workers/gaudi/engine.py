"""The engine contract on a Gaudi card: padded prefills of warmed pairs, one decode of all rows on a shared write column (gaudi.md §5)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any

import torch

from common.shapes import Bucket, Shape
from workers.engines.base import Capabilities, DecodeRow, EngineFault, PrefillRow, Progress, ShapeLedger, Step
from workers.gaudi.buckets import Plan
from workers.gaudi.columns import Columns
from workers.gaudi.library import Decoder, KeysValues, Library
from workers.gaudi.recipes import report as report_recipes
from workers.gaudi.refusals import is_out_of_memory
from workers.gaudi.start import open_decoder
from workers.gaudi.warmup import Warmup, no_room
from workers.model_files import eos_ids

if TYPE_CHECKING:
    from common.config import Settings

log = logging.getLogger(__name__)

PAD = 0


class SharedColumnEngine:
    """Serves the slots of one card; implements `workers.engines.base.Engine`.

    Every call has a shape that was warmed; `shape` names those that were, which may be fewer than were planned. The cache has one
    write column for all rows, so a result may differ in its last bits with a row's neighbours.
    """

    shape: Shape
    vocab_size: int
    precision: str
    cold = False
    slowest_call_s = 0.0
    """Of the warmed shapes: a call that compiles says nothing of those that serve."""
    equal_slots = False
    """Whether equal requests in different slots have equal bits."""

    def __init__(self, settings: Settings, model_path: str, worker: str, library: Library) -> None:
        self.worker = worker
        self.capabilities = Capabilities()
        self.ledger = ShapeLedger()
        self.eos_ids: frozenset[int] = frozenset()
        self._settings = settings
        self._folder = Path(model_path)
        self._library = library
        self._n_compilations = 0

    @property
    def build(self) -> str:
        """What decides the last bits of a result, besides the model."""
        versions = self._library.versions()
        return f"gaudi {versions.stack} {versions.library} {self.precision} {self.shape.batch_size}x{self.shape.max_length}"

    def load(self, progress: Progress) -> None:
        """Takes the card and reads the weights; raises `StartError`."""
        self.serve(*open_decoder(self._settings, self._folder, self._library, progress))
        self.eos_ids = eos_ids(self._folder)

    def serve(self, decoder: Decoder, plan: Plan) -> None:
        """Takes a loaded model and lays out the cache that the plan wants."""
        self.plan = plan
        self._cuts, self.trims, self.fused = decoder.cuts, decoder.trims, decoder.fused
        self.vocab_size = decoder.vocab_size
        graphs = self._settings.enable_hpu_graph
        self._prefill: Callable[..., Any] = decoder.prefill
        if graphs and not self._settings.limit_hpu_graph:
            self._prefill = self._library.capture(decoder.prefill)
        self._decode: Callable[..., Any] = self._library.capture(decoder.decode) if graphs else decoder.decode
        self._columns = Columns(self.plan.batch_size, self.plan.max_length, PAD)
        self._use(self.plan.prefills)
        self._kv = self._allocate()
        self.precision = str(self._kv[0][0].dtype).removeprefix("torch.")
        self.precision_bytes = self._kv[0][0].element_size()

    def warm_up(self, progress: Progress) -> None:
        """Every shape twice, through the functions that serve; what the card's memory does not hold is left out of `shape`."""
        if self._settings.skip_warmup:
            self.cold = True
            return
        started_s = time()
        warmup = Warmup(self, self.plan, self._library, self._folder)
        self._use(warmup.run(progress))
        self.slowest_call_s = warmup.slowest_s
        self._n_compilations = self._library.n_compilations()
        report_recipes(self._settings, self._folder, started_s, self._n_compilations)
        self.ledger.serving = True

    @torch.inference_mode()
    def prefill(self, bucket: Bucket, rows: Sequence[PrefillRow]) -> Step:
        """Writes up to `bucket.rows` prompts into their slots; logits `[n, vocab]`. A token that the model lacks is its row's fault."""
        faulty = [row.slot for row in rows if not all(0 <= token < self.vocab_size for token in row.ids)]
        if faulty:
            raise EngineFault(faulty, f"a token is not in the model's vocabulary of {self.vocab_size}")
        assert 0 < len(rows) <= bucket.rows and all(row.start == 0 for row in rows), "whole prompts, no more than the bucket has rows"
        self.ledger.see("prefill", bucket.rows, bucket.length)
        *inputs, slots = self._columns.prefill_inputs(bucket, rows)
        with self._library.recipe():
            logits, fresh = self._prefill(*map(self._send, inputs), self._send(torch.tensor(bucket.length)))
        with self._library.recipe():
            self._insert(self._send(slots), fresh, bucket.length)
        self._columns.place(bucket, rows)
        self._guard(f"prefill of {bucket.rows} × {bucket.length}")
        return Step(logits=logits.to("cpu")[: len(rows)].float(), prompt_logprobs=[None] * len(rows))

    @torch.inference_mode()
    def decode(self, rows: Sequence[DecodeRow]) -> Step:
        """One step of the whole batch, in the order of `rows`. A row whose token the model lacks gets NaN.

        A row that was released after the step was planned is computed as a free one: nobody reads what it gives.
        """
        assert len({row.slot for row in rows}) == len(rows), "every row exactly once"
        if self._columns.wants_compaction():
            self.compact()
        known = [row if 0 <= row.token < self.vocab_size else row._replace(token=PAD) for row in rows]
        logits = self._step([row for row in known if self._columns.holds(row.slot)])
        for row, as_known in zip(rows, known, strict=True):
            if row is not as_known:
                logits[row.slot] = float("nan")
        return Step(logits=logits[[row.slot for row in rows]], prompt_logprobs=[None] * len(rows))

    @torch.inference_mode()
    def compact(self) -> None:
        """Moves every row's live columns to the left."""
        index = self._send(self._columns.compact())
        with self._library.recipe():
            for layer in self._kv:
                for tensor in layer:
                    at = index.view(len(index), *[1] * (tensor.dim() - 3), -1, 1)
                    tensor.copy_(tensor.gather(-2, at.expand_as(tensor)))

    def release(self, slot: int) -> None:
        self._columns.release(slot)

    @torch.inference_mode()
    def scrub(self, slot: int) -> None:
        """Zeroes one slot: a masked NaN would still reach its next request."""
        row = self._send(torch.tensor([slot]))
        with self._library.recipe():
            for layer in self._kv:
                for tensor in layer:
                    tensor.index_fill_(0, row, 0)

    def device_memory(self) -> dict[str, int]:
        """Bytes in use, for the self-test."""
        memory = self._library.memory()
        return {"used": memory.total - memory.free}

    @contextmanager
    def without_graphs(self) -> Iterator[None]:
        """Steps run uncaptured in it: the self-test compares both."""
        captured = self._decode
        if self._settings.enable_hpu_graph:
            self._decode = partial(captured, bypass_hpu_graphs=True)
        yield
        self._decode = captured

    @property
    def columns(self) -> tuple[int | None, ...]:
        """The KV lengths that a step may read, each a shape of its own."""
        return self.plan.columns if self._cuts else (None,)

    def step_over(self, n_columns: int | None) -> None:
        """For warm-up: the step that reads so many columns."""
        self._columns.next = (n_columns or self.plan.max_length) - 1
        self._step([DecodeRow(0, PAD, 0)])
        self.release(0)

    @torch.inference_mode()
    def _step(self, rows: Sequence[DecodeRow]) -> torch.Tensor:
        """Logits `[B, vocab]`, on the host."""
        n_columns = next(n for n in self.plan.columns if n > self._columns.next) if self._cuts else None
        self.ledger.see("decode", n_columns)
        inputs = self._columns.decode_inputs(rows)
        logits: torch.Tensor = self._decode(*map(self._send, inputs), self._kv, n_columns).to("cpu").float()
        self._columns.wrote(rows)
        self._guard(f"step over {n_columns or self.plan.max_length} columns")
        return logits

    def _use(self, prefills: tuple[Bucket, ...]) -> None:
        longest = min(self.plan.max_input, max(pair.length for pair in prefills))
        self.shape = Shape(self.plan.batch_size, self.plan.max_length, prefills, max_input=longest)

    def _allocate(self) -> KeysValues:
        """An empty cache like the keys and values that a prefill gives."""
        bucket = min(self.plan.prefills, key=lambda pair: (pair.length, pair.rows))
        *inputs, _ = self._columns.prefill_inputs(bucket, [PrefillRow(0, [PAD])])
        try:
            with torch.inference_mode(), self._library.recipe():
                _, fresh = self._prefill(*map(self._send, inputs), self._send(torch.tensor(bucket.length)))
            return tuple((self._empty(keys), self._empty(values)) for keys, values in fresh)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            raise no_room(self.plan) from error

    def _empty(self, like: torch.Tensor) -> torch.Tensor:
        return self._library.zeros((self.plan.batch_size, *like.shape[1:-2], self.plan.max_length, like.shape[-1]), like.dtype)

    def _insert(self, slots: torch.Tensor, fresh: KeysValues, length: int) -> None:
        for layer, new_layer in zip(self._kv, fresh, strict=True):
            for tensor, new in zip(layer, new_layer, strict=True):
                tensor[..., :length, :].index_copy_(0, slots, new)

    def _send(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self._library.device, non_blocking=True)

    def _guard(self, what: str) -> None:
        """A recipe that the card compiles while it serves is a shape that warm-up missed: seen, counted and named."""
        before, self._n_compilations = self._n_compilations, self._library.n_compilations()
        if self.ledger.serving and self._n_compilations > before:
            self.ledger.n_unwarmed += self._n_compilations - before
            log.warning("the card compiled %d recipes while serving, in a %s", self._n_compilations - before, what)
