"""The kernel's scale from the data: what gamma="scale", "auto" and "median" mean."""

from __future__ import annotations

import functools
from fractions import Fraction
from operator import add
from typing import Any

import numpy as np
import scipy.sparse as sp

from gpurbf.data.exact_sums import exact_sum
from gpurbf.data.row_blocks import over_rows
from gpurbf.layer.activation import OF_DISTANCE, Activation
from gpurbf.layer.sparse import far_from_zero, sparse_or_dense
from gpurbf.runtime.errors import warn
from gpurbf.runtime.lazy import lazy_module
from gpurbf.runtime.threads import parallel_rows

kernels = lazy_module("gpurbf.data._kernels")


_SAMPLE = 1000
# Number of samples to estimate the rounding of distances, and the allowed error of a kernel value.
_FEW, _MAX_ERROR_OF_ITSELF = 64, 0.1
_ROWS = 1 << 16  # whose sums are in memory at a time
_TILE = 1 << 17  # numbers that stay in cache
_BYTES_OF_A_TASK = 1 << 20  # tens of microseconds
# The variance may be a difference of two sums if it is at least 1 / 16 of the first: this loses at
# most four bits.
_DIGITS = 16
# Larger weights (SVC's have no limit) overflow in sums.
_MOST_SUMMED = 1e100


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
        over the distances of 1,000 samples. Both are one over a squared length, so profiles of the
        distance use the square root. With the Manhattan distance, the length of "scale" is
        n Std(X). The triangular profile uses twice the length, because it is 0 from there on.
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
        if isinstance(weights, np.ndarray) and weights.max(initial=0) > _MOST_SUMMED:
            weights = weights * 2.0**-512  # only their ratios count
        squared = (n * n if metric == "manhattan" else n) * _variance(X, weights)
    else:
        median = _median_distance(X, metric, random_state)
        squared = 2 * median * median  # a power would raise an OverflowError
    if not squared > 0:
        squared = 1.0
    if profile not in OF_DISTANCE:
        return 1.0 / squared
    return (0.5 if profile == "triangular" else 1.0) / float(np.sqrt(squared))


def warn_if_rounding_decides(X: Any, activation: Activation, dtype: Any) -> None:
    """Warn if rounding distances to the dtype changes the kernel value of a sample and itself.

    The error of d² is about eps |x - mean|², estimated on the first samples.
    """
    if activation.metric != "euclidean" or not isinstance(activation.profile, str):
        return
    sample = X[:_FEW]
    if sp.issparse(sample):  # inputs that are 0 in all of them add nothing
        sample = sample[:, np.unique(sample.indices)].toarray()
    sample = sample.astype(np.float64)
    sample -= sample.mean(axis=0)
    off = float(np.finfo(dtype).eps * np.einsum("ij,ij->", sample, sample) / len(sample))
    error = activation.gamma * (off if activation.profile not in OF_DISTANCE else off**0.5)
    if error > _MAX_ERROR_OF_ITSELF:
        warn(
            f"gamma={activation.gamma:g} is so large that the kernel of a sample and itself is off "
            f"by {min(error, 1.0):.1g}, as distances are rounded to {np.dtype(dtype)}: take a "
            "smaller gamma; gamma='scale' is the usual size."
        )


def _variance(X: Any, weights: np.ndarray | None) -> float:
    """The weighted variance of all entries, whatever the dtype.

    Each row is summed in float64, and the sums of rows are added exactly, so the result does not
    depend on the order or division of the rows. A first pass computes the sums of x and of x². If
    most of the mean of x² is the squared mean, so that subtracting it would lose digits, a second
    pass computes the sum of (x - mean)².
    """

    def found(task: Any) -> tuple[float, float, float]:
        mass, total, squares = over_rows(task, add, X, None, weights, rows=_ROWS, name="gamma")
        mean, square = total / (mass * X.shape[1]), squares / (mass * X.shape[1])
        exact = isinstance(square, Fraction)
        return float(mean), float(square), float(square - mean**2 if exact else square)

    mean, square, variance = found(SUMS)
    if _DIGITS * variance < square or not np.isfinite(square):
        return found(functools.partial(_sums_of_rows, mean))[2]
    return variance


def _sums_of_rows(
    about: float, X: Any, y: Any, weights: np.ndarray | None, first: int
) -> np.ndarray:
    """The exact sums over all rows of weights, of x - about and of its square."""
    of_bytes = X.dtype == np.uint8 and not about and not sp.issparse(X)
    sums = np.empty((2, X.shape[0]), np.uint64 if of_bytes else np.float64)
    row = -(-X.size // max(1, X.shape[0]))  # the size of CSR is its entries
    n_rows = max(1, (_BYTES_OF_A_TASK if of_bytes else _TILE) // max(1, row))
    ones = np.ones(X.shape[1]) if sp.issparse(X) else None
    spare: list[np.ndarray] = []  # memory that no thread uses just now

    def tile(rows: slice) -> None:
        own = sums[:, rows]
        if of_bytes:
            numbers = np.ascontiguousarray(X[rows])
            numbers.flags.writeable = False  # the kernel takes only read-only arrays
            kernels.byte_moments(numbers, own)
            return
        with np.errstate(over="ignore", invalid="ignore"):  # seen in the result
            if sp.issparse(X):
                part = X[rows].astype(np.float64)
                part.sum_duplicates()
                part.data -= about
                # The entries that are not stored are zero.
                zeros = X.shape[1] - np.diff(part.indptr)
                own[0] = part @ ones - zeros * about
                part.data *= part.data
                own[1] = part @ ones + zeros * about * about
                return
            # Touching memory for the first time takes longer than the computation in it. `scratch`
            # will not do: a signal's handler that comes between these lines may use it, too.
            try:
                memory = spare.pop()
            except IndexError:
                memory = np.empty((min(n_rows, X.shape[0]), X.shape[1]))
            values = memory[: own.shape[1]]
            values[:] = X[rows]  # twice as fast as to subtract from integers
            if about:
                values -= about
            values.sum(axis=1, out=own[0])
            np.square(values, out=values).sum(axis=1, out=own[1])
            spare.append(memory)

    parallel_rows(tile, X.shape[0], n_rows)
    mass = X.shape[0] if weights is None else exact_sum(weights)
    return np.array([mass, *(exact_sum(own, weights) for own in sums)], object)


# The first pass of gamma="scale" over all rows, see `over_rows`.
SUMS = functools.partial(_sums_of_rows, 0.0)


def _median_distance(X: Any, metric: str, random_state: np.random.RandomState) -> float:
    from sklearn.metrics import pairwise_distances

    rows = random_state.choice(X.shape[0], min(_SAMPLE, X.shape[0]), replace=False)
    sample = sparse_or_dense(X[np.sort(rows)]).astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):  # seen in the result
        # scikit-learn's Euclidean distances are products, which lose digits far from the origin.
        # A few samples far from all others would move the mean, but not the median. That of some 64
        # samples takes no longer.
        if metric == "euclidean" and sp.issparse(sample) and far_from_zero(sample):
            sample = sample[:, np.unique(sample.indices)].toarray()  # the other inputs are 0
        if metric == "euclidean" and not sp.issparse(sample):
            sample -= np.median(sample[:: 1 + len(sample) // 64], axis=0)
            if not np.isfinite(sample).all():
                return np.inf
        distances = pairwise_distances(sample, metric=metric)
    n = len(distances)
    return float(np.median(distances[np.triu_indices(n, 1)])) if n > 1 else 0.0
