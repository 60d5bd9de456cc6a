"""What the start and the engine need of a Neuron library: the real one, or one over the device double."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from workers.neuron.artifact import Artifact, Wanted
from workers.neuron.cores import Host

if TYPE_CHECKING:
    import torch

    from common.config import Settings


class Model(Protocol):
    """A loaded model. `forward` takes one full compiled input and returns logits `[n, 1, vocab]`, or tokens `[n]`."""

    artifact: Artifact
    vocab_size: int
    n_layers: int

    def forward(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, seq_ids: torch.Tensor, sampling_params: torch.Tensor
    ) -> torch.Tensor: ...

    def prefill_chunk(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, seq_ids: torch.Tensor, sampling_params: torch.Tensor
    ) -> torch.Tensor: ...


class Library(Protocol):
    """`use` is called before anything is imported that could take cores."""

    def versions(self) -> tuple[str, str]:
        """(library, compiler), empty when not installed."""

    def host(self, settings: Settings) -> Host:
        """Raises `StartError` when there is no device."""

    def use(self, env: Mapping[str, str]) -> None:
        """Puts the runtime's variables into force."""

    def cached(self, folder: Path, asked: Wanted) -> list[Artifact]:
        """The configurations of this model in the hub's cache of compiled graphs; raises `OSError` when it cannot be read."""

    def load(self, folder: Path) -> Model:
        """Loads an exported model."""

    def export(self, folder: Path, artifact: Artifact, target: Path | None) -> Model:
        """Compiles, or takes the graphs from the cache; kept in `target` for the next start when given."""
