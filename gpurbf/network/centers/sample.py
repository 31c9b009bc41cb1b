"""Centers drawn from the samples, by content: the draw sees neither order nor repetition.

Each row gets a number from a hash of its values and of the seed; the rows with the smallest numbers
win (an exponential race, so that the chance of a row grows with its weight; Efraimidis and
Spirakis, 2006). Therefore a sample of weight 2 and the same sample given twice lead to the same
centers.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from gpurbf._warnings import warn
from gpurbf.backends.hashes import mix, row_hashes
from gpurbf.network.over_rows import over_rows

# Rows whose hashes are compared at once.
_BLOCK = 1 << 20


def random(
    X: Any, y: Any, n_centers: int, *, weights: np.ndarray | None, random_state: Any, **context: Any
) -> np.ndarray:
    """Distinct samples, drawn without replacement in proportion to their weights."""
    race = _race(X, None, weights, random_state)
    _tell_if_short(n_centers, len(race.first))
    return race.first[race.order()[:n_centers]]


def stratified(
    X: Any, y: Any, n_centers: int, *, weights: np.ndarray | None, random_state: Any, **context: Any
) -> np.ndarray:
    """As `random`, with every class represented in proportion to its weight (at least once)."""
    if y is None:
        raise ValueError("centers='stratified' draws by class: pass y, or use centers='random'.")
    race = _race(X, y, weights, random_state)
    order, labels = race.order(), race.labels
    _tell_if_short(n_centers, len(order))
    mass = np.bincount(labels, race.totals)
    available = np.bincount(labels, minlength=len(mass))
    quotas = shares(mass, available, n_centers)
    ranked = order[np.argsort(labels[order], kind="stable")]
    starts = np.cumsum(available) - available
    chosen = [ranked[start : start + quota] for start, quota in zip(starts, quotas, strict=True)]
    return race.first[np.concatenate(chosen)]


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


class Distinct(NamedTuple):
    """Distinct rows by hash: of each the hash, its first index, its class, its weight in all.

    ``totals`` are of weights rounded to 24 bits, so that they do not depend on the order; the last
    bits of ``mass``, of the weights themselves, do.
    """

    hashes: np.ndarray
    first: np.ndarray
    labels: np.ndarray
    totals: np.ndarray
    mass: np.ndarray

    def order(self) -> np.ndarray:
        """The rows in the order in which they win."""
        uniform = ((self.hashes >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53
        return np.argsort(-np.log(uniform) / self.totals, kind="stable")


def _race(X: Any, y: Any, weights: Any, random_state: Any) -> Distinct:
    return distinct(X, y, weights, random_state.randint(np.iinfo(np.int32).max))


def distinct(X: Any, y: Any, weights: Any, seed: int) -> Distinct:
    """The distinct rows of X; the same row in two classes is two of them."""
    task = functools.partial(_candidates, seed)
    return over_rows(task, _merged, X, y, weights, rows=_BLOCK, name="centers")


def _candidates(
    seed: int, X: Any, y: np.ndarray | None, weights: np.ndarray | None, first: int
) -> Distinct:
    hashes = row_hashes(X, seed)
    labels = np.zeros(len(hashes), np.int64)
    if y is not None:
        labels = y
        hashes = mix(hashes ^ mix(y.astype(np.uint64) + np.uint64(1)))
    mass = totals = np.ones(len(hashes))
    if weights is not None:
        # With 24 bits each, sums are exact.
        mantissas, exponents = np.frexp(weights)
        mass, totals = weights, np.ldexp(np.rint(np.ldexp(mantissas, 24)), exponents - 24)
    places = np.arange(first, first + len(hashes))
    return _once(Distinct(hashes, places, labels, totals, mass))


def _merged(a: Distinct, b: Distinct) -> Distinct:
    return _once(Distinct(*map(np.concatenate, zip(a, b))))


def _once(race: Distinct) -> Distinct:
    """Each row once, by its first index and with the sum of its weights."""
    hashes, index, inverse = np.unique(race.hashes, return_index=True, return_inverse=True)
    first = race.first[index]
    np.minimum.at(first, inverse, race.first)  # parts come in any order
    totals, mass = (np.bincount(inverse, sums) for sums in (race.totals, race.mass))
    return Distinct(hashes, first, race.labels[index], totals, mass)


def _tell_if_short(n_centers: int, n_distinct: int) -> None:
    if n_centers > n_distinct:
        warn(
            f"n_centers={n_centers} is more than the {n_distinct} distinct samples: all of them "
            "are taken as centers. Lower n_centers to choose among them."
        )
