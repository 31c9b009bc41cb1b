"""Centers by scikit-learn's MiniBatchKMeans, over all samples or class by class."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from threadpoolctl import threadpool_limits

from gpurbf.centers.sample import shares
from gpurbf.data.samples import holds_squares
from gpurbf.layer.sparse import canonical_csr
from gpurbf.runtime.threads import single_threaded_blas, thread_limit

# Samples to estimate how far they are from the origin; squared distance from it, in terms of that
# between samples, above which float32 loses a hundredth of the latter or more.
_SAMPLE, _FAR = 100, 1e5


def kmeans(
    X: Any, y: Any, n_centers: int, *, weights: np.ndarray | None, random_state: Any, **context: Any
) -> np.ndarray:
    """Take the cluster means of all samples, labels ignored.

    Parameters
    ----------
    X : ndarray or CSR of shape (N, n)
    y : object
        Not used.
    n_centers : int
        No more than N.
    weights : ndarray of shape (N,) or None
        Positive.
    random_state : RandomState
    **context
        Not used.

    Returns
    -------
    centers : ndarray of shape (n_centers, n)
        float64 for float64 samples and where float32 is too coarse, else float32.

    Raises
    ------
    ValueError
        If there are fewer samples than centers.
    """
    from sklearn.cluster import MiniBatchKMeans

    _check_enough_samples(X, n_centers)
    # MiniBatchKMeans takes float64 or float32: small integers are converted without loss.
    dtype = np.float64 if X.dtype == np.float64 or _are_too_coarse(X) else np.float32
    # Its loops take entries that are given once, with short indices.
    X = (canonical_csr(X) if sp.issparse(X) else X).astype(dtype, copy=False)
    size = max(1024, 2 * n_centers)
    means = MiniBatchKMeans(
        n_centers, random_state=random_state, n_init=1, batch_size=size, max_iter=20
    )
    # The products are small: more threads only take longer. Its own limits of BLAS threads, in
    # several threads at a time, would leave the process with one; within one of ours they do not.
    # Its loops run on threads of OpenMP, whose number is set for this thread alone.
    with single_threaded_blas(), threadpool_limits(thread_limit(), user_api="openmp"):
        return means.fit(X, sample_weight=weights).cluster_centers_


def kmeans_class(
    X: Any, y: Any, n_centers: int, *, weights: np.ndarray | None, random_state: Any, **context: Any
) -> np.ndarray:
    """Take cluster means within each class, in proportion to its weight.

    With fewer centers than classes this is `kmeans`.

    Parameters
    ----------
    X, n_centers, weights, random_state, **context
        See `kmeans`.
    y : int array of shape (N,)
        Class numbers.

    Returns
    -------
    centers : ndarray of shape (n_centers, n)
        Class after class.

    Raises
    ------
    ValueError
        If there is no y, or there are fewer samples than centers.
    """
    if y is None:
        raise ValueError("centers='kmeans-class' clusters by class: pass y, or use 'kmeans'.")
    _check_enough_samples(X, n_centers)
    available = np.bincount(y)
    if n_centers < np.count_nonzero(available):
        return kmeans(X, y, n_centers, weights=weights, random_state=random_state)
    quotas = shares(np.bincount(y, weights), available, n_centers)
    found = []
    for label in np.flatnonzero(quotas):
        own, n = y == label, int(quotas[label])
        w = None if weights is None else weights[own]
        found.append(kmeans(X[own], None, n, weights=w, random_state=random_state))
    return np.concatenate(found)


def _are_too_coarse(X: Any) -> bool:
    """Whether float32 does not hold squares, or loses their differences far from the origin."""
    if not holds_squares(np.float32, X):
        return True
    if sp.issparse(X):  # most numbers are 0
        return False
    some = X[:: -(-X.shape[0] // _SAMPLE)].astype(np.float64)
    return bool(np.square(some.mean(axis=0)).sum() > _FAR * some.var(axis=0).sum() > 0)


def _check_enough_samples(X: Any, n_centers: int) -> None:
    if n_centers > X.shape[0]:
        raise ValueError(
            f"n_centers={n_centers} needs at least as many samples, got {X.shape[0]}: lower it."
        )
