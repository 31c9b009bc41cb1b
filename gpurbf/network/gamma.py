"""The kernel's scale from the data: what gamma="scale", "auto" and "median" mean."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from gpurbf.backends.profiles import OF_DISTANCE
from gpurbf.backends.threads import parallel_for

__all__ = ["resolve_gamma"]

_SAMPLE = 1000
_ROWS = 4096
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
    X : ndarray or CSR of shape (N, n)
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
    """The weighted variance of all entries, in float64 whatever the dtype, two passes by parts."""
    if sp.issparse(X):
        return _sparse_variance(X, weights)
    mass = (X.shape[0] if weights is None else weights.sum()) * X.shape[1]
    n_rows = max(1, _TILE // max(1, X.shape[1]))

    def mean(f: Any) -> float:
        total = 0.0
        for start in range(0, X.shape[0], _ROWS):
            part = X[start : start + _ROWS]
            w = np.ones(len(part)) if weights is None else weights[start : start + _ROWS]
            sums = np.empty(len(part))

            def tile(i: int, part: Any = part, sums: np.ndarray = sums) -> None:
                rows = slice(i * n_rows, (i + 1) * n_rows)
                with np.errstate(over="ignore", invalid="ignore"):  # seen in the result
                    sums[rows] = f(part[rows].astype(np.float64)).sum(axis=1)

            if len(part) <= n_rows:  # over before anyone would have been asked for help
                tile(0)
            else:
                parallel_for(tile, -(-len(part) // n_rows))
            total += float(w @ sums)
        return float(total / mass)

    centre = mean(lambda part: part)
    return mean(lambda part: np.square(part - centre))


def _sparse_variance(X: Any, weights: np.ndarray | None) -> float:
    """The same from the stored entries of CSR data; the others are zero."""
    counts = np.diff(X.indptr)
    w = np.ones(X.shape[0]) if weights is None else weights
    entry_weights = np.repeat(w, counts)
    mass = w.sum() * X.shape[1]
    values = X.data.astype(np.float64)
    centre = float(entry_weights @ values) / mass
    rest = mass - entry_weights.sum()
    with np.errstate(over="ignore", invalid="ignore"):  # seen in the result
        return float(entry_weights @ np.square(values - centre) + rest * centre**2) / float(mass)


def _median_distance(X: Any, metric: str, random_state: np.random.RandomState) -> float:
    from sklearn.metrics import pairwise_distances

    rows = random_state.choice(X.shape[0], min(_SAMPLE, X.shape[0]), replace=False)
    sample = X[np.sort(rows)]
    sample = (sample.toarray() if sp.issparse(sample) else sample).astype(np.float64)
    distances = pairwise_distances(sample, metric=metric)
    return float(np.median(distances[np.triu_indices(len(sample), 1)])) if len(sample) > 1 else 0.0
