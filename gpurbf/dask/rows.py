"""Rows of a block as the estimators take them, and what reads them of what was given."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from sklearn.utils import column_or_1d

from gpurbf.estimators._validation import check_weights, check_X
from gpurbf.network.gamma import SUMS

__all__ = ["Facts", "Reader", "Rows"]


class Facts(NamedTuple):
    """What is known of a block: rows given and those of weight > 0, what must agree, labels.

    ``sums`` are what gamma asks of the block, if it will.
    """

    n_given: int
    n_rows: int
    n_features: int
    names: Any
    dtype: np.dtype
    labels: Any
    counts: Any
    sums: Any


class Rows(NamedTuple):
    """Rows as the estimators take them; ``places`` is where they were among those given."""

    X: Any
    y: Any
    weights: Any
    places: np.ndarray

    def at(self, some: Any) -> Rows:
        """Some of them."""
        return Rows._make(None if values is None else values[some] for values in self)

    @classmethod
    def joined(cls, pieces: Iterable[Rows]) -> Rows:
        """All pieces, one after the other."""
        return cls._make(None if own[0] is None else np.concatenate(own) for own in zip(*pieces))

    @classmethod
    def in_order(cls, pieces: Iterable[Rows]) -> Rows:
        """All pieces as one, in the order in which their rows were given."""
        pieces = list(pieces)
        ends = np.cumsum([len(piece.places) for piece in pieces])
        to = np.empty(ends[-1], np.intp)
        to[np.argsort(np.concatenate([piece.places for piece in pieces]))] = np.arange(len(to))

        def spread(own: tuple[np.ndarray, ...]) -> np.ndarray:
            values = np.empty((len(to), *own[0].shape[1:]), own[0].dtype)
            for where, part in zip(np.split(to, ends[:-1]), own):
                values[where] = part
            return values

        return cls._make(None if own[0] is None else spread(own) for own in zip(*pieces))


class Reader(NamedTuple):
    """Makes what tasks work on of a block as it was given; rows of weight 0 are left out.

    ``classes`` number the labels and ``factors`` are their weights, once they are known. Weights
    below zero count as zero if they may be ``negative``. A block's look brings its `SUMS` if they
    are ``wanted``: a look less.
    """

    model: Any
    negative: bool
    wanted: bool
    classes: np.ndarray | None = None
    factors: np.ndarray | None = None

    def look(self, X: Any, y: Any, weights: Any) -> Facts:
        """The facts of a block, which is validated in full."""
        model = copy.copy(self.model)
        options: dict[str, Any] = {"ensure_min_samples": 0, "reset": True}
        if y is None:
            X = check_X(model, X, **options)
        else:
            X, y = check_X(model, X, y=column_or_1d(y, warn=True), **options)
        if sp.issparse(X):
            raise TypeError("Sparse blocks are not supported: fit on dense ones, or locally.")
        used = self._weights(weights, X.shape[0])
        labels = counts = None
        if y is not None:
            labels, counts = np.unique(y if used is None else y[used > 0], return_counts=True)
        n_rows = X.shape[0] if used is None else np.count_nonzero(used)
        sums = None
        if self.wanted:
            some = slice(None) if used is None or used.all() else used > 0
            sums = SUMS(X[some], None, None if used is None else used[some], 0)
        names = getattr(model, "feature_names_in_", None)
        return Facts(X.shape[0], int(n_rows), X.shape[1], names, X.dtype, labels, counts, sums)

    def rows(self, X: Any, y: Any, weights: Any) -> Rows:
        """The rows of a block that was looked at before."""
        X = check_X(self.model, X, ensure_min_samples=0, ensure_all_finite=False)
        weights, places = self._weights(weights, len(X)), np.arange(len(X))
        codes = None
        if self.classes is not None:
            codes = np.searchsorted(self.classes, column_or_1d(y)).astype(np.int64)
        if weights is not None and not weights.all():
            places = np.flatnonzero(weights)
            X, weights = X[places], weights[places]
            codes = None if codes is None else codes[places]
        if self.factors is not None:
            own = self.factors[codes]
            weights = own if weights is None else own * weights
        return Rows(X, codes, weights, places)

    def _weights(self, weights: Any, n_samples: int) -> np.ndarray | None:
        return check_weights(weights, n_samples, negative=self.negative, part=True)
