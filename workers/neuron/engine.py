"""The engine contract over a compiled Neuron model: prefill one slot per call, decode all rows every time (neuron.md §4.3, §4.4)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from common.messages import Params
from common.shapes import Bucket, Shape
from workers.engines.base import Capabilities, DecodeRow, EngineFault, PrefillRow, Progress, ShapeLedger, Step
from workers.model_files import eos_ids
from workers.neuron.artifact import Artifact
from workers.neuron.counters import memory_bytes
from workers.neuron.graphs import MIN_PREFILL, graphs, require_compiled, shape_of
from workers.neuron.library import Library, Model
from workers.neuron.rows import GREEDY, Inputs, chunk_inputs, decode_inputs, prefill_inputs, sampling_row
from workers.neuron.start import open_model
from workers.neuron.status import DeviceError, device_failure

if TYPE_CHECKING:
    from common.config import Settings

PAD = 0

MOST_SCRUB_CALLS = 64
"""Seconds, in which all rows wait: well within a lease, and less than a restart."""


class StaticEngine:
    """Serves the slots of one artifact; implements `workers.engines.base.Engine`.

    Every call has exactly the shapes of a compiled graph. A decode names every slot, in order: a slot without a row writes where
    its own next token will overwrite it. Errors of the device are `DeviceError` (start again) or `DeviceLost` (give up).
    """

    shape: Shape
    capabilities: Capabilities
    vocab_size: int
    precision: str
    artifact: Artifact
    cold = False

    def __init__(self, settings: Settings, model_path: str, worker: str, library: Library) -> None:
        self.worker = worker
        self.ledger = ShapeLedger()
        self.eos_ids: frozenset[int] = frozenset()
        self._settings = settings
        self._folder = Path(model_path)
        self._library = library

    @property
    def build(self) -> str:
        return f"neuron {self.artifact!r}"

    def load(self, progress: Progress) -> None:
        """Opens the model; raises `StartError`."""
        self.serve(open_model(self._settings, self._folder, self._library, progress))
        self.eos_ids = eos_ids(self._folder)

    def serve(self, model: Model) -> None:
        """Takes a loaded model."""
        self._model = model
        self.artifact = artifact = model.artifact
        self.vocab_size = model.vocab_size
        self.precision = artifact.dtype
        self.shape = shape_of(artifact)
        self._table = graphs(artifact)
        self._next_pos = [0] * artifact.batch_size
        self._n_written = [0] * artifact.batch_size  # by the slot's last request; what is behind it was overwritten or scrubbed
        sampled = Capabilities("tokens", seed=False, logprobs=False, penalties=False, max_top_k=artifact.max_topk)
        self.capabilities = sampled if artifact.on_device_sampling else Capabilities(reproducible=True)

    def warm_up(self, progress: Progress) -> None:
        """One prefill into each slot, one decode of all."""
        n_calls = self.shape.batch_size + 1
        for slot in range(self.shape.batch_size):
            self.prefill(self.shape.buckets[0], [PrefillRow(slot, [PAD, PAD])])
            progress("warm-up", (slot + 1) / n_calls)
        self.decode([DecodeRow(slot, PAD, 2) for slot in range(self.shape.batch_size)])
        for slot in range(self.shape.batch_size):
            self.release(slot)
        self.ledger.serving = True
        progress("warm-up", 1.0)

    @torch.inference_mode()
    def prefill(self, bucket: Bucket, rows: Sequence[PrefillRow]) -> Step:
        """Writes one row's prompt; logits `[1, vocab]`, or the token. A token that the model does not have is that row's fault."""
        (row,) = rows
        assert row.start == 0 and len(row.ids) <= bucket.length, "a row's prompt starts at 0 and fits its bucket"
        self._n_written[row.slot] = 0
        unknown = [token for token in row.ids if not 0 <= token < self.vocab_size]
        if unknown:
            raise EngineFault([row.slot], f"token {unknown[0]} is not in the model's vocabulary of {self.vocab_size}")
        output = self._prefill(row.slot, row.ids, self._sampling(row.params))
        self._next_pos[row.slot] = self._n_written[row.slot] = len(row.ids)
        return self._step(output, [0])

    @torch.inference_mode()
    def decode(self, rows: Sequence[DecodeRow]) -> Step:
        """One step of the whole batch, in the order of `rows`. A row whose token the model does not have gets NaN."""
        assert len({row.slot for row in rows}) == len(rows), "every row exactly once"
        assert all(0 <= row.at < self.shape.max_length for row in rows), "a row ends at the compiled length"
        known = [row if 0 <= row.token < self.vocab_size else row._replace(token=PAD) for row in rows]
        sampling = {row.slot: self._sampling(row.params) for row in rows}
        at = [min(pos, self.shape.max_length - 1) for pos in self._next_pos]
        output = self._call("decode", decode_inputs(known, at, PAD, sampling))
        for row in rows:
            self._next_pos[row.slot] = self._n_written[row.slot] = row.at + 1
        step = self._step(output, [row.slot for row in rows])
        if step.logits is not None:
            for index, (row, as_known) in enumerate(zip(rows, known, strict=True)):
                if row is not as_known:
                    step.logits[index] = float("nan")
        return step

    def device_memory(self) -> dict[str, int]:
        """Bytes in use by core, for the self-test."""
        return memory_bytes()

    def release(self, slot: int) -> None:
        self._next_pos[slot] = 0

    @torch.inference_mode()
    def scrub(self, slot: int) -> None:
        """Overwrites all that the slot's last request wrote, in every layer; raises `DeviceError` where that takes too long.

        A prefill reads no cache, so one is enough. A chunk or a decode reads the whole row, and a NaN times a weight of zero is
        NaN: only what the layers below hold is a number afterwards. So a pass over all positions heals one layer.
        """
        n_written, chunk = self._n_written[slot], self.artifact.prefill_chunk_size
        n_calls = self._model.n_layers * math.ceil(n_written / chunk) if chunk else 1
        if n_calls > MOST_SCRUB_CALLS or (not chunk and n_written > self.shape.max_bucket):
            raise DeviceError(f"slot {slot} cannot be scrubbed: no graph overwrites its {n_written} positions in a few seconds")
        for _ in range(self._model.n_layers if chunk else 1):
            self._prefill(slot, [PAD] * max(n_written, MIN_PREFILL), GREEDY)

    def _prefill(self, slot: int, ids: Sequence[int], sampling: tuple[float, float, float]) -> torch.Tensor:
        chunk = self.artifact.prefill_chunk_size
        if not chunk:
            return self._call("prefill", prefill_inputs(slot, ids, self.artifact.max_context_length, PAD, sampling))
        for start in range(0, len(ids), chunk):
            output = self._call("chunk", chunk_inputs(slot, ids[start : start + chunk], start, chunk, sampling))
        return output

    def _call(self, name: str, inputs: Inputs) -> torch.Tensor:
        require_compiled(name, inputs, self._table)
        self.ledger.see(name, tuple(inputs[0].shape))
        try:
            return self._model.prefill_chunk(*inputs) if name == "chunk" else self._model.forward(*inputs)
        except RuntimeError as error:
            raise device_failure(name, error) from error

    def _step(self, output: torch.Tensor, rows: Sequence[int]) -> Step:
        if output.dim() == 1:
            return Step(tokens=[int(output[row]) for row in rows], prompt_logprobs=[None] * len(rows))
        return Step(logits=output[list(rows), -1, : self.vocab_size].float(), prompt_logprobs=[None] * len(rows))

    def _sampling(self, params: Params) -> tuple[float, float, float]:
        return sampling_row(params, self.artifact.max_topk) if self.artifact.on_device_sampling else GREEDY
