"""A device double: refuses what the chip refuses, and shows a misuse of the cache as a wrong token (neuron.md §4.8).

It remembers tokens where the chip has keys and values: a row's next token is a function of what its memory holds, so every
write into another row's cache becomes a visible fault without modelling attention. What is not a number stays so, as on the
chip: masked columns are read as well, and a NaN times a weight of zero is NaN.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Event

import torch

from workers.double_tokens import NextToken
from workers.faults import NEVER
from workers.neuron.artifact import Artifact
from workers.neuron.graphs import graphs, require_compiled


class SlotClobbered(AssertionError):
    """A call changed what the cache holds of a row that is in use."""


@dataclass(frozen=True)
class Faults:
    """What goes wrong, and how long calls take. Calls are counted from 1, warm-up included."""

    prefill_ms: float = 0.0
    step_ms: float = 0.0
    fail_at: int = NEVER
    status: int = 1004
    nan_at: int = NEVER
    hang_at: int = NEVER
    n_cores: int = 32
    load_status: int = 0


@dataclass
class DeviceDouble:
    """Callable as the traced model of an artifact; `calls` lists the graphs that ran."""

    artifact: Artifact
    next_token: NextToken
    faults: Faults = Faults()
    occupied: dict[int, int] = field(default_factory=dict)
    """Slot → how many of its first positions no call may change; told by tests."""
    calls: list[str] = field(default_factory=list)
    n_layers: int = 3

    def __post_init__(self) -> None:
        self.table = graphs(self.artifact)
        self.memory = [[0] * self.artifact.sequence_length for _ in range(self.artifact.batch_size)]
        self.spoiled = [[self.n_layers] * self.artifact.sequence_length for _ in range(self.artifact.batch_size)]
        """For each slot and position the lowest layer whose keys and values are not numbers; `n_layers`: none."""
        self._random = torch.Generator().manual_seed(0)

    def __call__(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, seq_ids: torch.Tensor, sampling_params: torch.Tensor
    ) -> torch.Tensor:
        name = "decode" if input_ids.shape[-1] == 1 else "prefill"
        return self.run(name, input_ids, position_ids, seq_ids, sampling_params)

    def chunk(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, seq_ids: torch.Tensor, sampling_params: torch.Tensor
    ) -> torch.Tensor:
        """The graph of chunked prefill; gives logits even when the decode graph samples."""
        return self.run("chunk", input_ids, position_ids, seq_ids, sampling_params)

    def run(self, name: str, *inputs: torch.Tensor) -> torch.Tensor:
        """Checks and runs one graph."""
        require_compiled(name, inputs, self.table)
        self.calls.append(name)
        self._misbehave(name)
        input_ids, position_ids, seq_ids, sampling_params = inputs
        slots = seq_ids.tolist()
        self._check_range(name, slots, position_ids, sampling_params)
        self._nan_in = slots[0] if len(self.calls) == self.faults.nan_at else None
        logits = torch.stack(
            [self._row(name, slot, *row) for slot, *row in zip(slots, input_ids.tolist(), position_ids.tolist(), strict=True)]
        )
        if name != "chunk" and self.artifact.on_device_sampling:
            return torch.stack([self._sample(*row) for row in zip(logits, sampling_params, strict=True)])
        return logits[:, None]

    def _row(self, name: str, slot: int, tokens: list[int], positions: list[int]) -> torch.Tensor:
        """The context graph writes its whole padded row; the others write each token at its position."""
        last = max(positions)
        where = range(len(tokens)) if name == "prefill" else positions
        memory = self.memory[slot]
        for at, token in zip(where, tokens, strict=True):
            if at < self.occupied.get(slot, 0) and memory[at] != token:
                raise SlotClobbered(f"{name} wrote token {token} over {memory[at]} at position {at} of slot {slot}")
            memory[at] = token
        logits = self.next_token(slot, tuple(memory[: last + 1]))
        return self._spoil(name, slot, where, logits)

    def _spoil(self, name: str, slot: int, where: Sequence[int], logits: torch.Tensor) -> torch.Tensor:
        """A layer that reads NaN spoils the layers above it, at the positions that are written; a prefill reads no cache."""
        row = self.spoiled[slot]
        lowest = self.n_layers if name == "prefill" else min(row)
        if lowest < self.n_layers or slot == self._nan_in:
            logits = torch.full_like(logits, float("nan"))
        fresh = 0 if logits.isnan().any() else self.n_layers
        for at in where:
            row[at] = fresh if lowest == self.n_layers else lowest + 1
        return logits

    def _check_range(self, name: str, slots: list[int], positions: torch.Tensor, sampling: torch.Tensor) -> None:
        rows = list(range(self.artifact.batch_size))
        if name == "decode" and slots != rows:
            raise failed(1006, f"decode wants rows {rows}, got {slots}")
        if len(set(slots)) != len(slots) or not set(slots) <= set(rows):
            raise failed(1006, f"rows {slots} of {rows}")
        if not 0 <= int(positions.min()) <= int(positions.max()) < self.artifact.sequence_length:
            raise failed(1006, f"positions {int(positions.min())} to {int(positions.max())}")
        top_k, top_p, temperature = sampling.unbind(1)
        if not (((top_k >= 1) & (top_k <= self.artifact.max_topk) & (top_p > 0) & (top_p <= 1) & (temperature > 0)).all()):
            raise failed(1002, f"sampling parameters {sampling.tolist()}")

    def _sample(self, logits: torch.Tensor, params: torch.Tensor) -> torch.Tensor:
        """As on the chip: top_k, top_p, temperature, and a generator that no request can seed."""
        top_k, top_p, temperature = int(params[0]), float(params[1]), float(params[2])
        values, ids = logits.topk(min(top_k, len(logits)))
        masses = (values / temperature).softmax(0)
        masses[masses.cumsum(0) - masses >= top_p] = 0.0
        return ids[torch.multinomial(masses, 1, generator=self._random)[0]].to(torch.int32)

    def _misbehave(self, name: str) -> None:
        faults, n_calls = self.faults, len(self.calls)
        milliseconds = faults.step_ms if name == "decode" else faults.prefill_ms
        if milliseconds:
            time.sleep(milliseconds / 1000)
        if n_calls == faults.hang_at:
            Event().wait()
        if n_calls == faults.fail_at:
            raise failed(faults.status, "as told")


def failed(status: int, why: str) -> RuntimeError:
    """In the words of the Neuron runtime."""
    return RuntimeError(f"Failed to execute the model status={status} message={why}")
