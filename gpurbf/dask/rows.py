"""Rows of a block as the estimators take them, and what reads them of what was given."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils import column_or_1d

from gpurbf.estimators._validation import check_weights, check_X


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
    def in_order(cls, pieces: Iterable[Rows], *, by_class: bool = False) -> Rows:
        """All pieces as one, by class or not, in the order in which their rows were given."""
        pieces = list(pieces)
        ends = np.cumsum([len(piece.places) for piece in pieces])
        keys = [np.concatenate([piece.places for piece in pieces])]
        if by_class:
            keys.append(np.concatenate([piece.y for piece in pieces]))
        to = np.empty(ends[-1], np.intp)
        to[np.lexsort(keys)] = np.arange(len(to))

        def spread(own: tuple[np.ndarray, ...]) -> np.ndarray:
            values = np.empty((len(to), *own[0].shape[1:]), own[0].dtype)
            for where, part in zip(np.split(to, ends[:-1]), own):
                values[where] = part
            return values

        return cls._make(None if own[0] is None else spread(own) for own in zip(*pieces))


class Reader(NamedTuple):
    """Makes what tasks work on of a block as it was given; rows of weight 0 are left out.

    ``classes`` number the labels and ``factors`` are their weights, once they are known. Weights
    below zero count as zero if they may be ``negative``.
    """

    model: Any
    negative: bool
    classes: np.ndarray | None = None
    factors: np.ndarray | None = None

    def __call__(self, X: Any, y: Any, weights: Any) -> Rows:
        """The rows of a block that was looked at before."""
        X = check_X(self.model, X, ensure_min_samples=0, ensure_all_finite=False)
        weights, places = part_weights(weights, len(X), self.negative), np.arange(len(X))
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


def part_weights(weights: Any, n_samples: int, negative: bool) -> np.ndarray | None:
    """The weights of a block, validated."""
    return check_weights(weights, n_samples, negative=negative, part=True)
