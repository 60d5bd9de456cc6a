"""Which tokens survive top-k, top-p and typical-p (TGI reference §3.2), exactly and without sorting a vocabulary.

Logits are float32 with −inf for tokens already out; results are ids in ascending order.
"""

from __future__ import annotations

import math

import numpy as np

from workers.race import Floats, Ids

BLOCK = 128
FEW = 64
LOWEST = np.finfo(np.float32).min
MASSLESS = -104.0
"""exp of this, and of all below, is 0 in float32."""


def largest(logits: Floats, k: int) -> Ids:
    """The tokens not below the k-th largest logit: ties are kept, −inf never is."""
    ids = np.flatnonzero(logits >= max(_kth_or_less(logits, k), LOWEST))
    if len(ids) <= k:
        return ids
    values = logits[ids]
    kept: Ids = ids[values >= np.partition(values, -k)[-k]]
    return kept


def nucleus(logits: Floats, masses: Floats, share: float, total: float | None = None) -> Ids:
    """The fewest most likely tokens whose mass reaches `share` of `total`; at the border the lowest ids of equals.

    `masses` is exp(logits); `total` is their sum, or more when some tokens are not at hand.
    """
    available = float(masses.sum(dtype=np.float64))
    target = _reachable(share * (total or available), available)
    border, above = _border(logits, masses, target)
    kept = logits > border
    ties = np.flatnonzero(logits == border)
    n_ties = max(1, math.ceil((target - above) / float(masses[ties[0]])))
    kept[ties[:n_ties]] = True
    return np.flatnonzero(kept)


def typical(logits: Floats, masses: Floats, share: float) -> Ids:
    """The tokens whose surprise is closest to the entropy until their mass reaches `share`; ties are kept."""
    available = float(masses.sum(dtype=np.float64))
    expected = float((np.maximum(logits, MASSLESS) * masses).sum(dtype=np.float64)) / available
    closeness = -np.abs(logits - np.float32(expected))
    border, _ = _border(closeness, masses, _reachable(share * available, available))
    return np.flatnonzero(closeness >= border)


def _reachable(target: float, available: float) -> float:
    """`target`, or just less than all there is: a sum in another order must still reach it."""
    return min(target, available * (1 - 1e-9))


def _border(keys: Floats, masses: Floats, target: float) -> tuple[np.float32, float]:
    """The key at which `masses`, added up by descending key, reach `target`, and the mass above that key. Keys are ≤ 0.

    Tries the few greatest keys, else selects by radix: floats of one sign are ordered as their bits, so the mass under each
    upper half shows in which of them the target is reached, and the lower halves are 16-bit integers, sorted in linear time.
    """
    few = np.flatnonzero(keys >= _kth_or_less(keys, FEW))
    mass = float(masses[few].sum(dtype=np.float64))
    if mass >= target:
        return _border_by_order(keys[few], masses[few], np.argsort(-keys[few], kind="stable"), 0.0, target)
    bits = np.abs(keys).view(np.uint32)
    halves = (bits >> np.uint32(16)).astype(np.intp)
    each = np.bincount(halves, masses)
    reached = np.cumsum(each)
    half = min(int(np.searchsorted(reached, target)), len(reached) - 1)
    inside = np.flatnonzero(halves == half)
    order = np.argsort(bits[inside].astype(np.uint16), kind="stable")
    return _border_by_order(keys[inside], masses[inside], order, float(reached[half] - each[half]), target)


def _border_by_order(keys: Floats, masses: Floats, order: Ids, above: float, target: float) -> tuple[np.float32, float]:
    reached = above + np.cumsum(masses[order], dtype=np.float64)
    border: np.float32 = keys[order[min(int(np.searchsorted(reached, target)), len(order) - 1)]]
    return border, above + float(masses[keys > border].sum(dtype=np.float64))


def _kth_or_less(values: Floats, k: int) -> np.float32:
    """A bound that at least k values reach: the k-th largest maximum of columns, or the k-th value itself; −inf when k is all."""
    if k >= len(values):
        return np.float32(-np.inf)
    n_columns = len(values) // BLOCK
    maxima = values
    if k <= n_columns:
        maxima = values[: n_columns * BLOCK].reshape(BLOCK, n_columns).max(axis=0)
    kth: np.float32 = np.partition(maxima, -k)[-k]
    return kth
