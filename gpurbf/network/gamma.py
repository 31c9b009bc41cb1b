"""The kernel's scale from the data: what gamma="scale", "auto" and "median" mean."""

from __future__ import annotations

import functools
from operator import add
from typing import Any

import numpy as np
import scipy.sparse as sp

from gpurbf.backends.profiles import OF_DISTANCE
from gpurbf.backends.threads import parallel_for
from gpurbf.network.exact import exact_sum
from gpurbf.network.over_rows import over_rows

__all__ = ["TOTAL", "resolve_gamma"]

_SAMPLE = 1000
_PARTS: dict[str, Any] = {"rows": 4096, "name": "gamma"}
_TILE = 1 << 17  # numbers that stay in cache


def resolve_gamma(
    gamma: float | str,
    X: Any,
    *,
    metric: str = "euclidean",
    profile: Any = "gaussian",
    weights: np.ndarray | None = None,
    random_state: Any = None,
) -> float:
    """The number in ``profile(gamma d²)`` or, for laplacian and triangular, ``profile(gamma d)``.

    Parameters
    ----------
    gamma : float, "scale", "auto" or "median"
        "auto" is 1 / n. "scale" is 1 / (n Var(X)), as in scikit-learn, and "median" 1 / (2 median²)
        over the distances of 1,000 samples; both are one over a squared length, so a profile of
        the distance takes the root. The Manhattan length that belongs to "scale" is n Std(X). The
        triangular profile is given twice the length, because it ends there.
    X : ndarray or CSR of shape (N, n), or what `over_rows` takes
        Any dtype; integers are not rescaled, so uint8, float32 and float64 give the same number.
    weights : ndarray of shape (N,), optional
        A sample of weight 2 counts twice in the variance.

    Returns
    -------
    gamma : float
    """
    n = X.shape[1]
    if not isinstance(gamma, str):
        return float(gamma)
    if gamma == "auto":
        return 1.0 / n
    if gamma == "scale":
        variance = _variance(X, weights)
        squared = (n * n if metric == "manhattan" else n) * variance
    else:
        squared = 2 * _median_distance(X, metric, random_state) ** 2
    if not squared > 0:
        squared = 1.0
    if profile not in OF_DISTANCE:
        return 1.0 / squared
    return (0.5 if profile == "triangular" else 1.0) / float(np.sqrt(squared))


def _variance(X: Any, weights: np.ndarray | None) -> float:
    """The weighted variance of all entries, whatever the dtype, in two passes.

    Rows are summed in float64 each by itself and added up exactly: no order or part shows.
    """
    mass = X.shape[0] if weights is None else over_rows(_mass, add, X, None, weights, **_PARTS)
    mass *= X.shape[1]

    def mean(about: float | None) -> float:
        task = TOTAL if about is None else functools.partial(_sum_of_rows, about)
        return float(over_rows(task, add, X, None, weights, **_PARTS) / mass)

    return mean(mean(None))


def _mass(X: Any, y: None, weights: np.ndarray, first: int) -> Any:
    return exact_sum(weights)


def _sum_of_rows(
    about: float | None, X: Any, y: None, weights: np.ndarray | None, first: int
) -> Any:
    """The exact sum of all rows' sums of x, or of (x - about)²."""
    sums = np.empty(X.shape[0])
    n_rows = max(
        1, _TILE // max(1, -(-X.size // max(1, X.shape[0])))
    )  # a CSR's size is its entries
    ones = np.ones(X.shape[1]) if sp.issparse(X) else None
    # Memory that is touched for the first time takes longer than what is done in it.
    spare: list[np.ndarray] = []

    def tile(i: int) -> None:
        rows = slice(i * n_rows, (i + 1) * n_rows)
        with np.errstate(over="ignore", invalid="ignore"):  # seen in the result
            if sp.issparse(X):
                part = X[rows].astype(np.float64)
                part.sum_duplicates()
                part.data, stored = _term(part.data, about), np.diff(part.indptr)
                # The entries that are not stored are zero.
                rest = (X.shape[1] - stored) * _term(np.zeros(1), about)
                sums[rows] = part @ ones + rest
                return
            try:
                kept = spare.pop()
            except IndexError:
                kept = np.empty((n_rows, X.shape[1]))
            values = kept[: len(sums[rows])]
            values[:] = X[rows]
            sums[rows] = _term(values, about).sum(axis=1)
            spare.append(kept)

    if len(sums) <= n_rows:  # over before anyone would have been asked for help
        tile(0)
    else:
        parallel_for(tile, -(-len(sums) // n_rows))
    return exact_sum(sums, weights)


# What gamma="scale" asks of all rows first, see `over_rows`.
TOTAL = functools.partial(_sum_of_rows, None)


def _term(values: np.ndarray, about: float | None) -> np.ndarray:
    """The values, or (values - about)² in their place."""
    if about is None:
        return values
    values -= about
    return np.square(values, out=values)


def _median_distance(X: Any, metric: str, random_state: np.random.RandomState) -> float:
    from sklearn.metrics import pairwise_distances

    rows = random_state.choice(X.shape[0], min(_SAMPLE, X.shape[0]), replace=False)
    sample = X[np.sort(rows)]
    sample = (sample.toarray() if sp.issparse(sample) else sample).astype(np.float64)
    distances = pairwise_distances(sample, metric=metric)
    return float(np.median(distances[np.triu_indices(len(sample), 1)])) if len(sample) > 1 else 0.0
