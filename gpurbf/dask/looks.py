"""The look at all blocks that comes first: what they are, and what can be asked of them at once."""

from __future__ import annotations

import copy
import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from sklearn.utils import column_or_1d

from gpurbf.dask.rows import part_weights
from gpurbf.estimators._validation import check_X
from gpurbf.network.centers.sample import Distinct, Race
from gpurbf.network.gamma import SUMS

__all__ = ["Facts", "Look", "Looked"]

# Bits of a row's number in its block.
_ROW = 40


class Facts(NamedTuple):
    """What is known of a block: rows given and those of weight > 0, what must agree, labels."""

    n_given: int
    n_rows: int
    n_features: int
    names: Any
    dtype: np.dtype
    labels: Any
    counts: Any


class Looked(NamedTuple):
    """What looks found: each block's facts, all labels, gamma's `SUMS` and the rows of the `Race`.

    The first of equal rows are numbered by block and place, classes by their places in ``labels``.
    """

    facts: dict[int, Facts]
    labels: Any
    sums: Any
    distinct: Any

    @classmethod
    def joined(cls, *looks: Looked) -> Looked:
        """What all of them found; of blocks without rows only what they are."""
        facts = {i: fact for look in looks for i, fact in look.facts.items()}
        some = [look for look in looks if any(fact.n_rows for fact in look.facts.values())]
        if not some:
            return cls(facts, None, None, None)
        labels, distinct = [look.labels for look in some], [look.distinct for look in some]
        every: Any = None if labels[0] is None else np.unique(np.concatenate(labels))
        if distinct[0] is not None and distinct[0].labels is not None:
            places = [np.searchsorted(every, own) for own in labels]
            distinct = [own._replace(labels=to[own.labels]) for own, to in zip(distinct, places)]
        sums = _if_asked(operator.add, [look.sums for look in some])
        return cls(facts, every, sums, _if_asked(Distinct.merged, distinct))

    def known(self, race: Race | None, starts: np.ndarray) -> dict[Any, Any]:
        """What these tasks of `over_rows` would find, of blocks whose rows start there."""
        found: dict[Any, Any] = {} if self.sums is None else {SUMS: self.sums}
        if self.distinct is not None:
            block, place = np.divmod(self.distinct.first, 1 << _ROW)
            found[race] = self.distinct._replace(first=starts[block] + place)
        return found


@dataclass(frozen=True)
class Look:
    """Looks at some blocks, which a ``model`` not fitted validates in full.

    Weights below zero count as zero if they may be ``negative``. Whether it brings gamma's `SUMS`,
    and what a race finds, are passes that nobody has to make later.
    """

    model: Any
    negative: bool
    sums: bool
    race: Race | None

    def __call__(self, *blocks: tuple[Any, ...]) -> Looked:
        return Looked.joined(*(self._at(*block) for block in blocks))

    def _at(self, i: int, X: Any, y: Any, weights: Any) -> Looked:
        model = copy.copy(self.model)
        options: dict[str, Any] = {"ensure_min_samples": 0, "reset": True}
        if y is None:
            X = check_X(model, X, **options)
        else:
            X, y = check_X(model, X, y=column_or_1d(y, warn=True), **options)
        if sp.issparse(X):
            raise TypeError("Sparse blocks are not supported: fit on dense ones, or locally.")
        n_given, used = X.shape[0], part_weights(weights, X.shape[0], self.negative)
        if used is not None and not used.all():
            some = used > 0
            X, y, used = X[some], None if y is None else y[some], used[some]
        labels = counts = codes = None
        if y is not None:
            labels, codes, counts = np.unique(y, return_inverse=True, return_counts=True)
        names = getattr(model, "feature_names_in_", None)
        facts = Facts(n_given, X.shape[0], X.shape[1], names, X.dtype, labels, counts)
        sums = SUMS(X, None, used, 0) if self.sums else None
        distinct = None
        if self.race is not None and not (self.race.by_class and y is None):  # refused later
            distinct = self.race(X, codes, used, i << _ROW)
        return Looked({i: facts}, labels, sums, distinct)


def _if_asked(merge: Callable[[Any, Any], Any], found: list[Any]) -> Any:
    """All results as one, if they were asked for."""
    return None if found[0] is None else functools.reduce(merge, found)
