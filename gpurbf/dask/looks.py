"""The look at all blocks that comes first: what they are, and what can be asked of them at once."""

from __future__ import annotations

import copy
import functools
import operator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from sklearn.utils import column_or_1d

from gpurbf.centers import most_centers
from gpurbf.centers.sample import Distinct, Race
from gpurbf.dask.rows import part_weights
from gpurbf.estimators._validation import check_X
from gpurbf.layer.gamma import SUMS

# What looks have of races.
_RACES = "distinct", "sample"
# Bits of a row's number in its block.
_ROW = 40


class Facts(NamedTuple):
    """Facts of a block: its rows, those of weight > 0, what must agree, labels."""

    n_given: int
    n_rows: int
    n_features: int
    names: Any
    dtype: np.dtype
    labels: Any
    counts: Any


class Looked(NamedTuple):
    """What looks found: each block's facts, all labels, gamma's `SUMS` and the rows of two `Race`s.

    The first of equal rows are numbered by block and place, classes by their places in ``labels``.
    ``sample`` are of the race that keeps some. ``ahead`` are rows that may win, by blocks: their
    numbers and values.
    """

    facts: dict[int, Facts]
    labels: Any
    sums: Any
    distinct: Any
    sample: Any
    ahead: tuple[tuple[np.ndarray, np.ndarray], ...] = ()

    @classmethod
    def joined(cls, *looks: Looked) -> Looked:
        """Join what several blocks found; blocks without rows only say what they are."""
        facts = {i: fact for look in looks for i, fact in look.facts.items()}
        some = [look for look in looks if any(fact.n_rows for fact in look.facts.values())]
        if not some:
            return cls(facts, None, None, None, None)
        labels = [look.labels for look in some]
        every: Any = None if labels[0] is None else np.unique(np.concatenate(labels))
        places: Any = [None if own is None else np.searchsorted(every, own) for own in labels]

        def merged(distinct: list[Any]) -> Any:
            if distinct[0] is None:
                return None
            if distinct[0].labels is not None:
                each = zip(distinct, places)
                distinct = [own._replace(labels=np.take(to, own.labels)) for own, to in each]
            return Distinct.merged(*distinct)

        sums = None
        if some[0].sums is not None:
            sums = functools.reduce(operator.add, (look.sums for look in some))
        distinct, sample = (merged([getattr(look, of) for look in some]) for of in _RACES)
        ahead = tuple(own for look in some for own in look.ahead)
        return cls(facts, every, sums, distinct, sample, ahead)

    def first_of(self, share: float) -> np.ndarray:
        """Rows that may be among the winners, who are that share of all.

        Of each class those that are first here, up to four standard deviations more than its share.
        """
        order, labels = self.distinct.order(), self.distinct.labels
        classes = np.zeros(len(order), np.intp) if labels is None else labels[order]
        sizes = np.bincount(classes)
        most = share * sizes + 4 * np.sqrt(share * sizes) + 1
        by_class = np.argsort(classes, kind="stable")
        ranks = np.arange(len(order)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        return np.sort(self.distinct.first[order[by_class[ranks < most[classes[by_class]]]]])

    def known(self, race: Race | None, sample: Race | None, starts: np.ndarray) -> dict[Any, Any]:
        """What these tasks of `over_rows` would find, of blocks whose rows start there."""
        found: dict[Any, Any] = {} if self.sums is None else {SUMS: self.sums}
        for each, rows in ((race, self.distinct), (sample, self.sample)):
            if each is not None and rows is not None:
                found[each] = each.merged(rows._replace(first=_numbers(rows.first, starts)))
        return found

    def rows_ahead(self, starts: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """Numbers, in their order, and values of rows that may win; see `known`."""
        if not self.ahead:
            return None
        first, values = (np.concatenate(own) for own in zip(*self.ahead))
        order = np.argsort(first)
        return _numbers(first[order], starts), values[order]


@dataclass(frozen=True)
class Look:
    """Looks at some blocks, which a ``model`` not fitted validates in full.

    Weights below zero count as zero if they may be ``negative``. Whether it brings gamma's `SUMS`,
    what a race finds, and the rows that may be among so many ``winners`` of ``n_blocks`` of about
    as many rows, are passes that nobody has to make later. So is a race that keeps a ``sample``.
    """

    model: Any
    negative: bool
    sums: bool
    race: Race | None
    winners: int | str
    n_blocks: int
    sample: Race | None = None

    def __call__(self, *blocks: tuple[Any, ...]) -> Looked:
        looks, read = zip(*(self._at(*block) for block in blocks))
        joined = Looked.joined(*looks)
        if not self.winners or joined.distinct is None:
            return joined
        own_rows = sum(fact.n_rows for fact in joined.facts.values())
        n_rows = own_rows * self.n_blocks // len(blocks)
        share = min(1.0, most_centers(self.winners, n_rows) / n_rows)
        block, place = np.divmod(joined.first_of(share), 1 << _ROW)
        ahead = []
        for i, X in zip((number for number, *_ in blocks), read):
            own = place[block == i]
            ahead.append(((i << _ROW) + own, X[own]))
        return joined._replace(ahead=tuple(ahead))

    def _at(self, i: int, X: Any, y: Any, weights: Any) -> tuple[Looked, Any]:
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
        distinct, sample = (
            None
            if race is None or (race.by_class and y is None)  # refused later
            else race(X, codes, used, i << _ROW)
            for race in (self.race, self.sample)
        )
        return Looked({i: facts}, labels, sums, distinct, sample), X


def _numbers(first: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Of rows known by block and place, where blocks start there."""
    block, place = np.divmod(first, 1 << _ROW)
    return starts[block] + place
