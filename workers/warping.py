"""Which tokens survive top-k, top-p and typical-p (TGI reference §3.2), exactly and without sorting a vocabulary.

Logits are float32 and at most 0; masses are exp(logits), or 0 for tokens already out.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from workers.race import Floats, Ids

BLOCK = 128
FEW = 64
LOWEST = np.finfo(np.float32).min
MASSLESS = -104.0
"""exp of this, and of all below, is 0 in float32."""
REACHABLE = 1 - 1e-6
"""Share of all mass that a sum in any order reaches."""

Mask = npt.NDArray[np.bool_]


def largest(logits: Floats, k: int) -> Ids:
    """The tokens not below the k-th largest logit, ascending: ties are kept, −inf never is. Any logits will do."""
    ids = np.flatnonzero(logits >= max(_kth_or_less(logits, k), LOWEST))
    if len(ids) <= k:
        return ids
    values = logits[ids]
    kept: Ids = ids[values >= np.partition(values, -k)[-k]]
    return kept


def nucleus(logits: Floats, masses: Floats, share: float, total: float | None = None) -> Mask:
    """True for the fewest most likely tokens whose mass reaches `share` of `total`; at the border the lowest ids of equals.

    `total` is the sum of the masses, or more when some tokens are not at hand.
    """
    available = float(masses.sum())
    target = min(share * (total or available), available * REACHABLE)
    border, above = _border(logits, masses, target)
    kept = logits > border
    ties = np.flatnonzero(logits == border)
    n_ties = max(1, math.ceil((target - above) / float(masses[ties[0]])))
    kept[ties[:n_ties]] = True
    return kept


def typical(logits: Floats, masses: Floats, share: float) -> Mask:
    """True for the tokens whose surprise is closest to the entropy until their mass reaches `share`; ties are kept."""
    available = float(masses.sum())
    expected = float((np.maximum(logits, MASSLESS) * masses).sum()) / available
    closeness = -np.abs(logits - np.float32(expected))
    border, _ = _border(closeness, masses, min(share, REACHABLE) * available)
    kept: Mask = closeness >= border
    return kept


def _border(keys: Floats, masses: Floats, target: float) -> tuple[np.float32, float]:
    """The key at which `masses`, added up by descending key, reach `target`, and the mass above that key. Keys are ≤ 0.

    Tries the few greatest keys, else selects by radix: floats of one sign are ordered as their bits, so the mass under each
    upper half shows in which of them the target is reached, and the lower halves are 16-bit integers, sorted in linear time.
    """
    if target <= FEW:  # no token's mass exceeds 1
        few = np.flatnonzero(keys >= _kth_or_less(keys, FEW))
        if float(masses[few].sum(dtype=np.float64)) >= target:
            return _border_by_order(keys[few], masses[few], np.argsort(-keys[few], kind="stable"), 0.0, target)
    lower, upper = np.abs(keys).view(np.uint16).reshape(-1, 2).T
    each = np.bincount(upper, masses)
    reached = np.cumsum(each)
    half = min(int(np.searchsorted(reached, target)), len(reached) - 1)
    inside = np.flatnonzero(upper == half)
    order = np.argsort(lower[inside], kind="stable")
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
