"""Which tokens survive top-k, top-p and typical-p (TGI reference §3.2), exactly and without sorting a vocabulary.

Logits are float32 with −inf for tokens already out; results are ids in ascending order.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from workers.race import Floats, Ids

BLOCK = 128
FEW = 64
SORTABLE = 512
LOWEST = np.finfo(np.float32).min


def largest(logits: Floats, k: int) -> Ids:
    """The tokens not below the k-th largest logit: ties are kept, −inf never is."""
    ids = np.flatnonzero(logits >= max(_kth_or_less(logits, k), LOWEST))
    if len(ids) <= k:
        return ids
    values = logits[ids]
    kept: Ids = ids[values >= np.partition(values, -k)[-k]]
    return kept


def nucleus(logits: Floats, masses: Floats, total: float, share: float) -> Ids:
    """The fewest most likely tokens whose mass reaches `share` of `total`; at the border the lowest ids of equals.

    `masses` is exp(logits); `total` may exceed their sum when some tokens are not at hand.
    """
    target = _within(share * total, masses)
    border, above = _border(logits, masses, target)
    ids = np.flatnonzero(logits >= border)
    ties = np.flatnonzero(logits[ids] == border)
    n_needed = max(1, math.ceil((target - above) / float(masses[ids[ties[0]]])))
    return np.delete(ids, ties[n_needed:])


def typical(logits: Floats, masses: Floats, share: float) -> Ids:
    """The tokens whose surprise is closest to the entropy until their mass reaches `share`; ties are kept."""
    ids = np.flatnonzero(masses > 0)
    weights = masses[ids].astype(np.float64)
    total = weights.sum()
    surprise = math.log(total) - logits[ids].astype(np.float64)
    closeness = -np.abs(surprise - (weights * surprise).sum() / total).astype(np.float32)
    border, _ = _border(closeness, masses[ids], _within(share * total, masses[ids]))
    kept: Ids = ids[closeness >= border]
    return kept


def _within(target: float, masses: Floats) -> float:
    """`target`, or just less than all there is: a sum in another order must still reach it."""
    return min(target, float(masses.sum(dtype=np.float64)) * (1 - 1e-9))


def _border(keys: Floats, masses: Floats, target: float) -> tuple[np.float32, float]:
    """The key at which `masses`, added up by descending key, reach `target`, and the mass above that key.

    Halves the range of keys instead of sorting them: linear, as each round looks only at what the last one left.
    """
    above = 0.0
    pivot = _kth_or_less(keys, FEW)
    while True:
        high = keys >= pivot
        mass = float(masses[high].sum(dtype=np.float64))
        if above + mass < target:
            above += mass
            high = ~high & (masses > 0)
        keys, masses = keys[high], masses[high]
        smallest, greatest = keys.min(), keys.max()
        if len(keys) <= SORTABLE or smallest == greatest:
            break
        middle = smallest + (greatest - smallest) / 2
        pivot = middle if middle > smallest else greatest
    order = np.argsort(-keys, kind="stable")
    reached = above + np.cumsum(masses[order], dtype=np.float64)
    border = keys[order[min(int(np.searchsorted(reached, target)), len(order) - 1)]]
    return border, above + float(masses[keys > border].sum(dtype=np.float64))


def _kth_or_less(values: Floats, k: int) -> np.float32:
    """A bound that at least k values reach: the k-th largest maximum of blocks, or the k-th value itself; −inf when k is all."""
    if k >= len(values):
        return np.float32(-np.inf)
    n_blocks = len(values) // BLOCK
    maxima: npt.NDArray[np.float32] = values
    if k <= n_blocks:
        maxima = values[: n_blocks * BLOCK].reshape(n_blocks, BLOCK).max(axis=1)
    kth: np.float32 = np.partition(maxima, -k)[-k]
    return kth
