"""What the engine needs of a Gaudi card and its library: the real ones, or their doubles."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    import torch

    from common.config import Settings
    from workers.gaudi.cards import Card

KeysValues = tuple[tuple["torch.Tensor", "torch.Tensor"], ...]
"""Per layer: keys and values `[rows, heads, columns, width]` on the device; latent ones have no heads."""


class Versions(NamedTuple):
    """Empty where not installed."""

    library: str  # optimum-habana
    stack: str  # the Gaudi software: version of habana-torch-plugin


class Memory(NamedTuple):
    """Of the card, in bytes."""

    free: int
    total: int


class Decoder(Protocol):
    """A loaded model as two modules that take tensors by position only, each to be captured.

    `prefill(ids [n, L], mask [n, L], positions [n, L], token_idx [])` → (logits `[n, vocab]` of the last column, keys and values).
    Prompts end in column L - 1: padded on the left, mask 0 and position 0 there.
    `decode(ids [B, 1], mask [B, T], positions [B, 1], token_idx [], keys and values, n_columns)` → logits `[B, vocab]`; writes column
    `token_idx - 1` of every row in place and looks at the columns below `n_columns` (None: all T) whose mask is 1.
    All are int64 but the logits and the cache. `cuts`: whether `n_columns` may be a number. `trims`: whether a prefill computes
    logits of the last column only. `fused`: whether attention holds no scores.
    """

    vocab_size: int
    cuts: bool
    trims: bool
    fused: bool

    @property
    def prefill(self) -> torch.nn.Module: ...

    @property
    def decode(self) -> torch.nn.Module: ...


class Library(Protocol):
    """`use` is called before anything that reads the environment is imported; nothing else before `load` touches the card."""

    device: torch.device

    def versions(self) -> Versions: ...

    def card(self, settings: Settings) -> Card:
        """The card of this worker. Raises `StartError` when there is none."""

    def use(self, env: Mapping[str, str]) -> None:
        """Puts variables into force."""

    def acquire(self) -> str:
        """Takes the card of this process; its generation: gaudi, gaudi2 or gaudi3. Raises `RuntimeError` in the words of the driver."""

    def load(self, folder: Path, way: str, dtype: torch.dtype) -> Decoder:
        """Reads the weights onto the card; `way` is that of the model's row in the table: habana or stock."""

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Allocates on the card."""

    def capture(self, module: torch.nn.Module) -> Callable[..., object]:
        """The module behind device graphs, one for each shape; takes `bypass_hpu_graphs=True` to run without."""

    def recipe(self) -> AbstractContextManager[None]:
        """What runs in it outside of captured modules is compiled as one recipe: by operations, shapes and numbers."""

    def synchronize(self) -> None:
        """Waits for the card."""

    def memory(self) -> Memory: ...

    def n_compilations(self) -> int:
        """How many recipes the card's compiler made so far."""
