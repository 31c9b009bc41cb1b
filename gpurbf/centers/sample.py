"""Centers drawn from the samples, by content: order and repetition do not affect the draw.

Each row gets a number from a hash of its values and of the seed; the rows with the smallest numbers
win (an exponential race, so that the chance of a row grows with its weight; Efraimidis and
Spirakis, 2006). Therefore a sample of weight 2 and the same sample given twice lead to the same
centers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gpurbf.data.hashes import mix, row_hashes
from gpurbf.data.row_blocks import over_rows
from gpurbf.runtime.errors import warn

# Rows whose hashes are compared at once.
_ROWS_PER_BLOCK = 1 << 20
# If few rows are wanted, all are first hashed by about this many of their inputs. For each row
# wanted, so many of the smallest hashes are then hashed by all inputs.
_N_LEADING_INPUTS, _LEADING_ROWS_PER_ROW = 64, 4


def random(
    X: Any, y: Any, n_centers: int, *, weights: np.ndarray | None, random_state: Any, **context: Any
) -> np.ndarray:
    """Draw distinct samples without replacement, in proportion to their weights.

    Parameters
    ----------
    X : ndarray or CSR of shape (N, n)
    y : object
        Not used.
    n_centers : int
    weights : ndarray of shape (N,) or None
        Positive.
    random_state : RandomState
    **context
        Not used.

    Returns
    -------
    indices : ndarray of shape (m,), int64
        Rows of X, in the order of the draw; all distinct samples if there are fewer than n_centers.

    Warns
    -----
    UserWarning
        If there are fewer distinct samples than n_centers.
    """
    return stratified(X, None, n_centers, weights=weights, random_state=random_state)


def stratified(
    X: Any, y: Any, n_centers: int, *, weights: np.ndarray | None, random_state: Any, **context: Any
) -> np.ndarray:
    """Draw as `random` does, from each class in proportion to its weight, at least one sample.

    With fewer centers than classes, a continuous target for example, classes do not count.

    Parameters
    ----------
    X, n_centers, weights, random_state, **context
        See `random`.
    y : int array of shape (N,) or None
        Class numbers; without them this is `random`.

    Returns
    -------
    indices : ndarray of shape (m,), int64
        Rows of X, class after class; with fewer centers than classes in the order of the draw.
    """
    found = Race.drawn(random_state, by_class=y is not None).over(X, y, weights)
    order, labels = found.order(), found.labels
    warn_if_short(n_centers, len(order))
    if labels is None or n_centers < np.count_nonzero(available := np.bincount(labels)):
        return found.first[order[:n_centers]]
    quotas = shares(np.bincount(labels, found.totals), available, n_centers)
    few_bits = labels[order].astype(np.min_scalar_type(len(available)))  # sorted by radix
    ranked = order[np.argsort(few_bits, kind="stable")]
    starts = np.cumsum(available) - available
    chosen = [ranked[start : start + quota] for start, quota in zip(starts, quotas, strict=True)]
    return found.first[np.concatenate(chosen)]


def shares(mass: np.ndarray, available: np.ndarray, total: int) -> np.ndarray:
    """Split `total` in proportion to mass by largest remainder; no share exceeds `available`."""
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
    """Distinct rows by hash: the hash, first index, class and total weight of each.

    The same row in two classes counts as two rows, unless classes do not matter: then ``labels`` is
    None. ``totals`` sum weights rounded to 24 bits, so they do not depend on the order where
    a row's total is below 2**29 times its least weight. ``mass`` sums the weights themselves, so
    its last bits depend on the order.
    """

    hashes: np.ndarray
    first: np.ndarray
    labels: Any
    totals: np.ndarray
    mass: np.ndarray

    @property
    def keys(self) -> np.ndarray:
        """Keys (m,) that identify the rows."""
        if self.labels is None:
            return self.hashes
        return mix(self.hashes ^ mix(self.labels.astype(np.uint64) + np.uint64(1)))

    def order(self) -> np.ndarray:
        """Numbers (m,) of the rows in the order in which they win the race.

        Row i wins with the i-th smallest -log(u) / w, for u uniform in (0, 1) by its hash and w its
        weight (Efraimidis and Spirakis, 2006).
        """
        uniform = ((self.keys >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53
        return np.argsort(-np.log(uniform) / self.totals, kind="stable")

    def merged(self, *others: Distinct) -> Distinct:
        """The distinct rows of these and of others."""
        every = (None if own[0] is None else np.concatenate(own) for own in zip(self, *others))
        return Distinct._make(every)._once()

    def whole(self, wanted: int) -> int:
        """The number of first rows to take, sorted by hash, for no sample to lack one of its rows.

        A sample has a row for each of its classes. The number is the one wanted, rounded up:
        rounded down, a part of the data could drop a sample that all data together keep.
        """
        n = min(wanted, len(self.hashes))
        return int(np.searchsorted(self.hashes, self.hashes[n - 1], "right")) if n else 0

    def at(self, some: Any) -> Distinct:
        """Select some of the rows, by a mask, a slice or numbers."""
        return Distinct._make(None if own is None else own[some] for own in self)

    def _once(self) -> Distinct:
        """Each row once, by its first index and with the sum of its weights."""
        # Any one of equal rows will do: a stable sort that finds the first takes longer.
        distinct, inverse = np.unique(self.keys, return_inverse=True)
        index = np.empty(len(distinct), np.intp)
        index[inverse] = np.arange(len(inverse))
        found = self.at(index)
        np.minimum.at(found.first, inverse, self.first)  # parts come in any order
        totals, mass = (np.bincount(inverse, sums) for sums in (self.totals, self.mass))
        return found._replace(totals=totals, mass=mass)


@dataclass(frozen=True)
class Race:
    """Finds the distinct rows of data, from which centers are drawn; see `over_rows`.

    With ``wanted`` it keeps only that many rows of weight above zero, those with the smallest
    hashes, and all other classes of the last one. The choice is arbitrary, but the rows and their
    total weights are the same however the data are split into parts.
    """

    seed: int
    by_class: bool
    wanted: int | None = None

    @classmethod
    def drawn(cls, random_state: np.random.RandomState, by_class: bool) -> Race:
        """A race with the next number of a RandomState as its seed."""
        return cls(random_state.randint(np.iinfo(np.int32).max), by_class)

    def __call__(self, X: Any, y: Any, weights: Any, first: int) -> Distinct:
        """The distinct rows of X (N, n), whose first one has the number ``first``."""
        places = np.arange(first, first + X.shape[0])
        if self.wanted is None:
            return self._found(X, y, weights, places, None)
        # A few inputs are enough to know that a row is not among the first.
        leads = row_hashes(X[:, :: -(-X.shape[1] // _N_LEADING_INPUTS)], self.seed) >> np.uint64(48)
        rows, n_near = (X, y, weights, places, leads), _LEADING_ROWS_PER_ROW * self.wanted
        if len(leads) > n_near:
            near = leads <= np.partition(leads, n_near)[n_near]
            # More have the same hash, such as sparse rows that are 0 in these inputs: to copy them
            # would take memory.
            if near.sum() <= 2 * n_near:
                found = self._found(*(None if own is None else own[near] for own in rows))
                if len(found.first) >= self.wanted:  # else many are the same, or of no weight
                    return found
        return self._found(*rows)

    def _found(self, X: Any, y: Any, weights: Any, places: Any, leads: Any) -> Distinct:
        """The distinct rows; ``leads``, unless None, become the leading bits of their hashes."""
        hashes = row_hashes(X, self.seed)
        if leads is not None:
            hashes = leads << np.uint64(48) | hashes >> np.uint64(16)
        mass = totals = np.ones(len(hashes))
        if weights is not None:
            # With 24 bits each, sums are exact where `Distinct` says so.
            mantissas, exponents = np.frexp(weights)
            mass, totals = weights, np.ldexp(np.rint(np.ldexp(mantissas, 24)), exponents - 24)
        labels = y if self.by_class else None
        return self._kept(Distinct(hashes, places, labels, totals, mass)._once())

    def over(self, X: Any, y: Any, weights: Any) -> Distinct:
        """The distinct rows of X."""
        return over_rows(self, self.merged, X, y, weights, rows=_ROWS_PER_BLOCK, name="centers")

    def merged(self, *found: Distinct) -> Distinct:
        """Join what was found in two parts of the rows."""
        return self._kept(Distinct.merged(*found))

    def _kept(self, found: Distinct) -> Distinct:
        if self.wanted is None:
            return found
        # If classes are renumbered in the same order, keys change, but this order does not.
        by_class = () if found.labels is None else (found.labels,)
        order = np.lexsort((*by_class, found.hashes))
        found = found.at(order[found.totals[order] > 0])
        return found.at(slice(found.whole(self.wanted)))


def warn_if_short(n_centers: int, n_distinct: int) -> None:
    """Warn where more centers are asked for than there are distinct samples."""
    if n_centers > n_distinct:
        warn(
            f"n_centers={n_centers} is more than the {n_distinct} distinct samples: all of them "
            "are taken as centers. Lower n_centers to choose among them."
        )
