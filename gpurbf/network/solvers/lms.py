"""The on-line delta rule (least mean squares), sample by sample: FSVC's output training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpurbf._config import get_config
from gpurbf._stages import count, stage, staged
from gpurbf.backends.loops_fsvc import aligned, lms_rows

__all__ = ["lms"]

_ROWS = 2048
# Activations that are computed anew in every epoch should still be in cache when they are used.
_TILE_BYTES = 1 << 24


@staged("output training")
def lms(
    layer: Any,
    X: Any,
    T: np.ndarray,
    weights: np.ndarray | None,
    *,
    center_targets: np.ndarray | None,
    learning_rate: float | None = None,
    n_epochs: int = 10,
    order: np.ndarray | None = None,
    after_epoch: Callable[[int, np.ndarray], bool] | None = None,
) -> np.ndarray:
    """W += learning_rate z (t - z W) for the activations z and target t of each sample in order.

    No bias, as published. The activations are kept if they fit a quarter of the memory budget and
    computed anew, tile by tile, in every epoch if not.

    Parameters
    ----------
    layer : HiddenLayer
        With m centers.
    X : ndarray or CSR of shape (N, n)
    T : ndarray of shape (N, k)
        Targets.
    weights : ndarray of shape (N,) or None
        A sample of weight w is seen floor(w) times in succession, and once more with the learning
        rate times what is left of w.
    center_targets : ndarray of shape (m, k) or None
        W at the start; None: zeros.
    learning_rate : float, optional
        By default 1 / max z·z over a tile of samples, which cannot diverge on them.
    n_epochs : int, default=10
    order : ndarray of shape (N',), optional
        The rows to see, in order; by default all.
    after_epoch : callable, optional
        ``after_epoch(epoch, W)``, W (m, k), called with 1, 2, …; True ends the training.

    Returns
    -------
    W : ndarray of shape (m, k), float64

    Raises
    ------
    ValueError
        If the learning rate was too high and the weights are not finite.
    """
    order = np.arange(X.shape[0]) if order is None else order
    m, k = len(layer.centers), T.shape[1]
    # A row an output, its length a multiple of the vectors'; activations that are kept likewise.
    padded = -(-m // 8) * 8
    W = aligned((k, padded), np.float64)
    W[:] = 0
    if center_targets is not None:
        W[:, :m] = center_targets.T
    budget = get_config()["memory"] * 2**20 / 4
    row_bytes = m * layer.dtype.itemsize
    fits = len(order) * row_bytes <= budget
    n_rows = len(order) if fits else max(64, int(min(budget, _TILE_BYTES) / row_bytes))
    H = aligned((min(n_rows, len(order)), padded if fits else m), layer.dtype)
    H[:, m:] = 0
    for epoch in range(1, n_epochs + 1):
        for start in range(0, len(order), n_rows):
            rows = order[start : start + n_rows]
            Z = H[: len(rows)]
            if epoch == 1 or not fits:
                for part in range(0, len(rows), _ROWS):
                    piece = slice(part, part + _ROWS)
                    if padded == m or not fits:
                        layer.outputs(X[rows[piece]], out=Z[piece])
                    else:  # a backend writes whole rows only
                        Z[piece, :m] = layer.outputs(X[rows[piece]])
            if learning_rate is None:
                learning_rate = 1 / max(np.einsum("ij,ij->i", Z, Z, dtype=np.float64).max(), 1e-300)
            w = None if weights is None else weights[rows]
            with stage("output training", "LMS"):
                lms_rows(Z, np.ascontiguousarray(T[rows], np.float64), W, learning_rate, w)
                count(operations=4 * Z.size * k, kind="float64", nbytes=Z.nbytes + 2 * W.nbytes)
        if not np.isfinite(W).all():
            raise ValueError(
                f"The output weights overflowed in epoch {epoch}: learning_rate={learning_rate:g} "
                "is too high for these activations. Lower it (below 2 / max z·z), or use "
                "solver='ridge', which has none."
            )
        if after_epoch is not None and after_epoch(epoch, W[:, :m].T):
            break
    return W[:, :m].T.copy()
