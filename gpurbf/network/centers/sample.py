"""Centers drawn from the samples, by content: the draw sees neither order nor repetition.

Each row gets a number from a hash of its values and of the seed; the rows with the smallest numbers
win (an exponential race, so that the chance of a row grows with its weight; Efraimidis and
Spirakis, 2006). Therefore a sample of weight 2 and the same sample given twice lead to the same
centers.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpurbf._warnings import warn
from gpurbf.backends.hashes import mix, row_hashes

# Rows whose hashes are compared at once.
_BLOCK = 1 << 20


def random(
    X: Any, y: Any, n_centers: int, *, weights: np.ndarray | None, random_state: Any, **context: Any
) -> np.ndarray:
    """Distinct samples, drawn without replacement in proportion to their weights."""
    order, first, _ = _race(X, None, weights, random_state)
    _tell_if_short(n_centers, len(order))
    return first[order[:n_centers]]


def stratified(
    X: Any, y: Any, n_centers: int, *, weights: np.ndarray | None, random_state: Any, **context: Any
) -> np.ndarray:
    """As `random`, with every class represented in proportion to its weight (at least once)."""
    if y is None:
        raise ValueError("centers='stratified' draws by class: pass y, or use centers='random'.")
    order, first, totals = _race(X, y, weights, random_state)
    _tell_if_short(n_centers, len(order))
    labels = y[first]
    mass = np.bincount(labels, totals)
    available = np.bincount(labels, minlength=len(mass))
    quotas = shares(mass, available, n_centers)
    ranked = order[np.argsort(labels[order], kind="stable")]
    starts = np.cumsum(available) - available
    chosen = [ranked[start : start + quota] for start, quota in zip(starts, quotas, strict=True)]
    return first[np.concatenate(chosen)]


def shares(mass: np.ndarray, available: np.ndarray, total: int) -> np.ndarray:
    """Split `total` in proportion to mass by largest remainder, none beyond what is available."""
    quotas = np.minimum((mass > 0) & (total >= np.count_nonzero(mass)), available).astype(np.int64)
    while (left := min(total, available.sum()) - quotas.sum()) > 0:
        open_ = quotas < available
        ideal = np.where(open_, mass, 0) / mass[open_].sum() * min(total, available.sum())
        lacking = np.where(open_, np.maximum(ideal - quotas, 0), 0)
        if lacking.sum() == 0:
            lacking = open_.astype(float)
        grant = np.floor(lacking * min(1, left / lacking.sum())).astype(np.int64)
        if grant.sum() == 0:
            grant[np.argsort(-lacking, kind="stable")[:left]] = 1
        quotas = np.minimum(quotas + grant, available)
    return quotas


def _race(
    X: Any, y: np.ndarray | None, weights: np.ndarray | None, random_state: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Distinct rows in order of winning, the first index and the total weight of each."""
    seed = random_state.randint(np.iinfo(np.int32).max)
    unique, first, totals = distinct(X, y, weights, seed)
    uniform = ((unique >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53
    return np.argsort(-np.log(uniform) / totals, kind="stable"), first, totals


def distinct(
    X: Any, y: np.ndarray | None, weights: np.ndarray | None, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Hashes of the distinct rows, rising, the first index and the total weight of each."""
    unique, first = np.empty(0, np.uint64), np.empty(0, np.int64)
    totals: np.ndarray = np.empty(0)
    for start in range(0, X.shape[0], _BLOCK):
        # What was found so far stands before the new rows: one of them each, with its weight.
        rows = np.arange(start, min(start + _BLOCK, X.shape[0]))
        hashes = row_hashes(X[start : start + _BLOCK], seed)
        if y is not None:
            # The same row in two classes is two candidates.
            hashes = mix(hashes ^ mix(y[rows].astype(np.uint64) + np.uint64(1)))
        w = np.ones(len(rows)) if weights is None else weights[rows]
        candidates = np.concatenate([unique, hashes])
        unique, index, inverse = np.unique(candidates, return_index=True, return_inverse=True)
        first = np.concatenate([first, rows])[index]
        totals = np.bincount(inverse, np.concatenate([totals, w]))
    return unique, first, totals


def _tell_if_short(n_centers: int, n_distinct: int) -> None:
    if n_centers > n_distinct:
        warn(
            f"n_centers={n_centers} is more than the {n_distinct} distinct samples: all of them "
            "are taken as centers. Lower n_centers to choose among them."
        )
