"""Centers by scikit-learn's MiniBatchKMeans, over all samples or class by class."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpurbf.centers.sample import shares


def kmeans(
    X: Any, y: Any, n_centers: int, *, weights: np.ndarray | None, random_state: Any, **context: Any
) -> np.ndarray:
    """Cluster means of all samples, labels ignored."""
    from sklearn.cluster import MiniBatchKMeans

    if n_centers > X.shape[0]:
        raise ValueError(
            f"n_centers={n_centers} clusters need as many samples, got {X.shape[0]}: "
            "lower n_centers."
        )
    # The clusters' batches are of float64 or float32: small integers are widened without loss.
    X = X if X.dtype in (np.float32, np.float64) else X.astype(np.float32)
    means = MiniBatchKMeans(
        n_centers,
        random_state=random_state,
        n_init=1,
        batch_size=max(1024, 2 * n_centers),
        max_iter=20,
    )
    return means.fit(X, sample_weight=weights).cluster_centers_


def kmeans_class(
    X: Any, y: Any, n_centers: int, *, weights: np.ndarray | None, random_state: Any, **context: Any
) -> np.ndarray:
    """Cluster means within each class, as many as its weight deserves."""
    if y is None:
        raise ValueError("centers='kmeans-class' clusters by class: pass y, or use 'kmeans'.")
    if n_centers > X.shape[0]:
        raise ValueError(
            f"n_centers={n_centers} clusters need as many samples, got {X.shape[0]}: "
            "lower n_centers."
        )
    quotas = shares(np.bincount(y, weights), np.bincount(y), n_centers)
    return np.concatenate(
        [
            kmeans(
                X[y == label],
                None,
                int(quota),
                weights=None if weights is None else weights[y == label],
                random_state=random_state,
            )
            for label, quota in enumerate(quotas)
            if quota
        ]
    )
