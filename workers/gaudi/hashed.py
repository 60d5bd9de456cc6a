"""A decoder for the double that needs no weights: its cache holds tokens and positions where a model has keys and values.

A row's next token is a hash of what it can see, so a wrong mask, position or column is a wrong token; a row that does not see the
positions 0, 1, 2 … once each is refused.
"""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import _disable_current_modes

from workers.double_tokens import NextToken
from workers.gaudi.library import KeysValues

HASHED = "int64"
"""What its cache holds."""


class RowClobbered(AssertionError):
    """A row sees columns that are not its own."""


class HashedDecoder:
    """Implements `workers.gaudi.library.Decoder`; `next_token` gives the logits after some tokens."""

    cuts = True
    trims = True
    fused = True

    def __init__(self, next_token: NextToken, vocab_size: int) -> None:
        self.prefill = Prefill(next_token)
        self.decode = Decode(next_token)
        self.vocab_size = vocab_size


class Prefill(torch.nn.Module):
    def __init__(self, next_token: NextToken) -> None:
        super().__init__()
        self._next_token = next_token

    def forward(
        self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, token_idx: torch.Tensor
    ) -> tuple[torch.Tensor, KeysValues]:
        logits = next_logits(self._next_token, ids, mask, positions)
        return logits, ((ids[:, None, :, None].clone(), positions[:, None, :, None].clone()),)


class Decode(torch.nn.Module):
    def __init__(self, next_token: NextToken) -> None:
        super().__init__()
        self._next_token = next_token

    def forward(
        self, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor, token_idx: torch.Tensor, kv: KeysValues, n_columns: int | None
    ) -> torch.Tensor:
        ((tokens, places),) = kv
        column = (token_idx - 1).view(1)
        tokens.index_copy_(2, column, ids[:, None, :, None])
        places.index_copy_(2, column, positions[:, None, :, None])
        n = n_columns or mask.shape[1]
        return next_logits(self._next_token, tokens[:, 0, :n, 0], mask[:, :n], places[:, 0, :n, 0])


def next_logits(next_token: NextToken, ids: torch.Tensor, mask: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """`[rows, vocab]`, each row from the tokens its mask shows, in the order of their positions."""
    rows = []
    with _disable_current_modes():  # what a card would do in one operation
        for index, (tokens, live, places) in enumerate(zip(ids.tolist(), mask.tolist(), positions.tolist(), strict=True)):
            seen = sorted((place, token) for token, shown, place in zip(tokens, live, places, strict=True) if shown)
            if [place for place, _ in seen] != list(range(len(seen))):
                raise RowClobbered(f"row {index} sees positions {[place for place, _ in seen]}")
            rows.append(next_token(index, tuple(token for _, token in seen)))
        return torch.stack(rows)
