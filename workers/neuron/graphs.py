"""The static shapes of one artifact as one table, and the shape the scheduler sees (neuron.md §4.3)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from common.shapes import Bucket, Shape
from workers.neuron.artifact import Artifact

MIN_PREFILL = 2
"""A one-token input goes to the decode graph, so it must come as a decode row (hazard H2)."""

Inputs = tuple[tuple[tuple[int, ...], str], ...]
Graphs = Mapping[str, Inputs]
"""Graph name → (shape, dtype) of input_ids, position_ids, seq_ids, sampling_params."""


class ShapeNotCompiled(RuntimeError):
    """A call that no compiled graph takes: our bug, never the user's."""


def graphs(artifact: Artifact) -> Graphs:
    """`prefill` or `chunk`, one row; `decode`, all rows."""
    chunk = artifact.prefill_chunk_size
    first = {"chunk": _inputs(1, chunk)} if chunk else {"prefill": _inputs(1, artifact.max_context_length)}
    return {**first, "decode": _inputs(artifact.batch_size, 1)}


def shape_of(artifact: Artifact) -> Shape:
    """With chunks a prompt may fill the whole row, in steps of one chunk; without, one bucket of `max_context_length`."""
    step = artifact.prefill_chunk_size or artifact.max_context_length
    longest = artifact.sequence_length if artifact.prefill_chunk_size else step
    buckets = tuple(Bucket(1, min(length, longest)) for length in range(step, longest + step, step))
    return Shape(artifact.batch_size, artifact.sequence_length, buckets, MIN_PREFILL)


def require_compiled(name: str, inputs: Sequence[Any], table: Graphs) -> None:
    """Raises `ShapeNotCompiled` unless these tensors are exactly what graph `name` was compiled for."""
    got = tuple((tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")) for tensor in inputs)
    if got != table.get(name):
        raise ShapeNotCompiled(f"{name}: got {got}, compiled is {table.get(name)}")


def _inputs(rows: int, length: int) -> Inputs:
    return ((rows, length), "int32"), ((rows, length), "int32"), ((rows,), "int32"), ((rows, 3), "float32")
