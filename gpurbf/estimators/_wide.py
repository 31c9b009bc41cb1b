"""A warning before sparse data make a fit take minutes that no progress would explain."""

from __future__ import annotations

import os
import warnings
from typing import Any

import numpy as np
import scipy.sparse as sp

from gpurbf.network.hidden import HiddenLayer

__all__ = ["warn_if_dense_takes_long", "warn_if_sparse_takes_long"]

# Rough rates, only to tell seconds from minutes: operations a second of a core on dense tiles, and
# multiplications a second of SciPy's product of two sparse matrices.
_DENSE, _SPARSE = 5e10, 1.5e8
_LONG = 60.0


def warn_if_dense_takes_long(X: Any, layer: HiddenLayer) -> None:
    """For sparse X whose rows are made dense, part by part, to meet dense centers."""
    if sp.issparse(X):
        thin, n, n_centers = layer.thin(X), X.shape[1], len(layer.centers)
        N = X.shape[0] - (0 if thin is None else int(thin.sum()))
        seconds = 2.0 * N * n * n_centers / (_DENSE * (os.cpu_count() or 1))
        if seconds > _LONG:
            warnings.warn(
                f"X is sparse with {n:,} features, and its distances to {n_centers:,} centers are "
                f"computed dense: {_minutes(seconds)}. sklearn.decomposition.TruncatedSVD "
                "to some hundred features before, or a linear classifier, takes seconds.",
                UserWarning,
                stacklevel=2,
            )


def warn_if_sparse_takes_long(X: Any) -> None:
    """For sparse X whose kernel is made of sparse products."""
    if sp.issparse(X):
        # A feature that k samples have costs k² multiplications in the whole kernel.
        counts = np.bincount(X.indices, minlength=X.shape[1]).astype(float)
        seconds = float(counts @ counts) / _SPARSE
        if seconds > _LONG:
            warnings.warn(
                f"X is sparse with {X.shape[1]:,} features, too many to be made dense, and the "
                f"kernel of its {X.shape[0]:,} samples takes {_minutes(seconds)} of sparse "
                "products. sklearn.decomposition.TruncatedSVD to some hundred features before, or "
                "sklearn.svm.LinearSVC, takes seconds.",
                UserWarning,
                stacklevel=2,
            )


def _minutes(seconds: float) -> str:
    return f"about {max(1, round(seconds / 60)):,} min"
