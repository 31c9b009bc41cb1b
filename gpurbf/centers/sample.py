"""Centers drawn from the samples, by content: the draw sees neither order nor repetition.

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

# Rows whose hashes are compared at once, and parts whose distinct rows are merged in a step.
_BLOCK, _TOGETHER = 1 << 20, 8
# Inputs that are hashed first where few rows are wanted, and rows looked at for one that is.
_LEADING, _MARGIN = 64, 4


def random(
    X: Any, y: Any, n_centers: int, *, weights: np.ndarray | None, random_state: Any, **context: Any
) -> np.ndarray:
    """Distinct samples, drawn without replacement in proportion to their weights."""
    found = Race.drawn(random_state, by_class=False).over(X, y, weights)
    warn_if_short(n_centers, len(found.first))
    return found.first[found.order()[:n_centers]]


def stratified(
    X: Any, y: Any, n_centers: int, *, weights: np.ndarray | None, random_state: Any, **context: Any
) -> np.ndarray:
    """As `random`, with every class represented in proportion to its weight (at least once)."""
    if y is None:
        raise ValueError("centers='stratified' draws by class: pass y, or use centers='random'.")
    found = Race.drawn(random_state, by_class=True).over(X, y, weights)
    order, labels = found.order(), found.labels
    warn_if_short(n_centers, len(order))
    mass = np.bincount(labels, found.totals)
    available = np.bincount(labels, minlength=len(mass))
    quotas = shares(mass, available, n_centers)
    ranked = order[np.argsort(labels[order], kind="stable")]
    starts = np.cumsum(available) - available
    chosen = [ranked[start : start + quota] for start, quota in zip(starts, quotas, strict=True)]
    return found.first[np.concatenate(chosen)]


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

    The same row in two classes is two, unless classes do not count: ``labels`` are None then.
    ``totals`` are of weights rounded to 24 bits, so that they do not depend on the order; the last
    bits of ``mass``, of the weights themselves, do.
    """

    hashes: np.ndarray
    first: np.ndarray
    labels: Any
    totals: np.ndarray
    mass: np.ndarray

    @property
    def keys(self) -> np.ndarray:
        """The numbers that are compared."""
        if self.labels is None:
            return self.hashes
        return mix(self.hashes ^ mix(self.labels.astype(np.uint64) + np.uint64(1)))

    def order(self) -> np.ndarray:
        """The rows in the order in which they win."""
        uniform = ((self.keys >> np.uint64(11)).astype(np.float64) + 0.5) / 2.0**53
        return np.argsort(-np.log(uniform) / self.totals, kind="stable")

    def merged(self, *others: Distinct) -> Distinct:
        """The distinct rows of all."""
        found = self
        for start in range(0, len(others), _TOGETHER):
            some = found, *others[start : start + _TOGETHER]
            every = (None if own[0] is None else np.concatenate(own) for own in zip(*some))
            found = Distinct._make(every)._once()
        return found

    def at(self, some: Any) -> Distinct:
        """Some of them."""
        return Distinct._make(None if own is None else own[some] for own in self)

    def _once(self) -> Distinct:
        """Each row once, by its first index and with the sum of its weights."""
        _, index, inverse = np.unique(self.keys, return_index=True, return_inverse=True)
        first = self.first[index]
        np.minimum.at(first, inverse, self.first)  # parts come in any order
        totals, mass = (np.bincount(inverse, sums) for sums in (self.totals, self.mass))
        labels = None if self.labels is None else self.labels[index]
        return Distinct(self.hashes[index], first, labels, totals, mass)


@dataclass(frozen=True)
class Race:
    """Finds the distinct rows among some, of which centers are drawn; see `over_rows`.

    With ``most`` it keeps only so many, of weight above zero and with the smallest hashes: any
    rows as well as others, and the same ones with all their weight however rows come in parts.
    """

    seed: int
    by_class: bool
    most: int | None = None

    @classmethod
    def drawn(cls, random_state: np.random.RandomState, by_class: bool) -> Race:
        """A race by the next number of a RandomState."""
        return cls(random_state.randint(np.iinfo(np.int32).max), by_class)

    def __call__(
        self, X: Any, y: np.ndarray | None, weights: np.ndarray | None, first: int
    ) -> Distinct:
        places = np.arange(first, first + X.shape[0])
        if self.most is None:
            return self._found(y, weights, places, row_hashes(X, self.seed))
        # What some of its inputs say is enough to know that a row is not among the first.
        leads = row_hashes(X[:, :: -(-X.shape[1] // _LEADING)], self.seed) >> np.uint64(48)
        some = slice(None)
        if len(leads) > _MARGIN * self.most:
            some = leads <= np.partition(leads, _MARGIN * self.most)[_MARGIN * self.most]
        found = self._leading(X, y, weights, places, leads, some)
        if len(found.first) < self.most:  # many of them are the same, or of no weight
            found = self._leading(X, y, weights, places, leads, slice(None))
        return found

    def _leading(
        self,
        X: Any,
        y: np.ndarray | None,
        weights: np.ndarray | None,
        places: np.ndarray,
        leads: np.ndarray,
        some: Any,
    ) -> Distinct:
        """The distinct ones of some rows, in the order of their leads and then of all inputs."""
        X, places = X[some], places[some]
        y, weights = (None if own is None else own[some] for own in (y, weights))
        hashes = leads[some] << np.uint64(48) | row_hashes(X, self.seed) >> np.uint64(16)
        return self._found(y, weights, places, hashes)

    def _found(
        self,
        y: np.ndarray | None,
        weights: np.ndarray | None,
        places: np.ndarray,
        hashes: np.ndarray,
    ) -> Distinct:
        mass = totals = np.ones(len(hashes))
        if weights is not None:
            # With 24 bits each, sums are exact.
            mantissas, exponents = np.frexp(weights)
            mass, totals = weights, np.ldexp(np.rint(np.ldexp(mantissas, 24)), exponents - 24)
        labels = y if self.by_class else None
        return self._kept(Distinct(hashes, places, labels, totals, mass)._once())

    def over(self, X: Any, y: Any, weights: Any) -> Distinct:
        """The distinct rows of X."""
        own = y if self.by_class else None
        return over_rows(self, self.merged, X, own, weights, rows=_BLOCK, name="centers")

    def merged(self, *found: Distinct) -> Distinct:
        """Join what was found in two parts of the rows."""
        first, *others = found
        return self._kept(first.merged(*others))

    def _kept(self, found: Distinct) -> Distinct:
        if self.most is None:
            return found
        # Classes may be numbered anew in their order: keys change then, this order does not.
        by_class = () if found.labels is None else (found.labels,)
        order = np.lexsort((*by_class, found.hashes))
        return found.at(order[found.totals[order] > 0][: self.most])


def warn_if_short(n_centers: int, n_distinct: int) -> None:
    """Warn where more centers are asked for than there are distinct samples."""
    if n_centers > n_distinct:
        warn(
            f"n_centers={n_centers} is more than the {n_distinct} distinct samples: all of them "
            "are taken as centers. Lower n_centers to choose among them."
        )
