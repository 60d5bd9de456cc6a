"""Full compiled inputs, built on the host: the library never pads, cuts or reorders (hazards H1 to H8, H11, H13)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from common.messages import Params
from workers.engines.base import DecodeRow

Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
"""input_ids, position_ids `[n, length]` int32; seq_ids `[n]` int32; sampling_params `[n, 3]` float32."""

GREEDY = (1.0, 1.0, 1.0)
LEAST_TEMPERATURE = 0.01


def sampling_row(params: Params, max_topk: int) -> tuple[float, float, float]:
    """(top_k, top_p, temperature) that the graph accepts: `off` is `max_topk`, never -1 or 0 (hazards H9, H10)."""
    if not params.samples:
        return GREEDY
    top_k = params.top_k if 1 <= params.top_k <= max_topk else max_topk
    top_p = params.top_p if 0.0 < params.top_p <= 1.0 else 1.0
    return float(top_k), top_p, max(LEAST_TEMPERATURE, params.temperature)


def prefill_inputs(slot: int, ids: Sequence[int], length: int, pad: int, sampling: tuple[float, float, float]) -> Inputs:
    """One row padded on the right; pads have position 0, so that the last token's position is the only largest one (§2.5)."""
    assert 1 < len(ids) <= length, f"{len(ids)} tokens do not fit a prefill of 2 to {length}"
    tokens = torch.full((1, length), pad, dtype=torch.int32)
    tokens[0, : len(ids)] = torch.tensor(ids, dtype=torch.int32)
    positions = torch.zeros(1, length, dtype=torch.int32)
    positions[0, : len(ids)] = torch.arange(len(ids), dtype=torch.int32)
    return tokens, positions, _seq_ids([slot]), _sampling([sampling])


def chunk_inputs(slot: int, ids: Sequence[int], start: int, length: int, sampling: tuple[float, float, float]) -> Inputs:
    """One chunk from position `start`; the last token and its position are repeated as padding (§4.4)."""
    assert 0 < len(ids) <= length
    n_pads = length - len(ids)
    end = start + len(ids)
    tokens = torch.tensor([[*ids, *[ids[-1]] * n_pads]], dtype=torch.int32)
    positions = torch.tensor([[*range(start, end), *[end - 1] * n_pads]], dtype=torch.int32)
    return tokens, positions, _seq_ids([slot]), _sampling([sampling])


def decode_inputs(
    rows: Sequence[DecodeRow], next_pos: Sequence[int], pad: int, sampling: Mapping[int, tuple[float, float, float]]
) -> Inputs:
    """All rows of the batch in slot order; a slot without a row writes a pad where its own next token will overwrite it."""
    tokens = [pad] * len(next_pos)
    positions = list(next_pos)
    for row in rows:
        tokens[row.slot] = row.token
        positions[row.slot] = row.at
    slots = range(len(next_pos))
    return (
        torch.tensor(tokens, dtype=torch.int32)[:, None],
        torch.tensor(positions, dtype=torch.int32)[:, None],
        _seq_ids(slots),
        _sampling([sampling.get(slot, GREEDY) for slot in slots]),
    )


def _seq_ids(slots: Sequence[int]) -> torch.Tensor:
    return torch.tensor(list(slots), dtype=torch.int32)


def _sampling(rows: Sequence[tuple[float, float, float]]) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float32)
