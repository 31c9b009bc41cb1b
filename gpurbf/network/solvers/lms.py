"""The on-line delta rule (least mean squares), sample by sample: FSVC's output training."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from gpurbf._config import get_config
from gpurbf.backends.arrays import activations, factorizations, namespace, to_host, working
from gpurbf.backends.loops_fsvc import aligned, lms_rows

__all__ = ["lms"]

_ROWS = 2048
# Rows whose errors are solved for at once on a device: more take more operations, fewer more calls.
_BLOCK = 256
# Activations that are computed anew in every epoch should still be in cache when they are used.
_TILE_BYTES = 1 << 24


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
    if namespace(layer) is not np:
        with working(layer):
            return _on_device(
                layer, X, T, weights, center_targets, learning_rate, n_epochs, order, after_epoch
            )
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
            lms_rows(Z, np.ascontiguousarray(T[rows], np.float64), W, learning_rate, w)
        _check_finite(W, epoch, learning_rate)
        if after_epoch is not None and after_epoch(epoch, W[:, :m].T):
            break
    return W[:, :m].T.copy()


def _check_finite(W: np.ndarray, epoch: int, learning_rate: float | None) -> None:
    if not np.isfinite(W).all():
        raise ValueError(
            f"The output weights overflowed in epoch {epoch}: learning_rate={learning_rate:g} "
            "is too high for these activations. Lower it (below 2 / max z·z), or use "
            "solver='ridge', which has none."
        )


def _on_device(
    layer: Any,
    X: Any,
    T: np.ndarray,
    weights: np.ndarray | None,
    center_targets: np.ndarray | None,
    learning_rate: float | None,
    n_epochs: int,
    order: np.ndarray,
    after_epoch: Callable[[int, np.ndarray], bool] | None,
) -> np.ndarray:
    """The same with W, targets and activations on the layer's device; see `lms`.

    The activations are kept there if they fit; X crosses once then, else in every epoch.
    """
    xp, m, k = namespace(layer), len(layer.centers), T.shape[1]
    W = xp.zeros((m, k)) if center_targets is None else xp.asarray(center_targets, np.float64)
    W = W.copy()
    targets = xp.asarray(T[order], np.float64)
    w = None if weights is None else xp.asarray(weights[order], np.float64)
    row_bytes, room = m * layer.dtype.itemsize, layer.backend.room()
    fits = len(order) * row_bytes <= room / 2
    n_rows = len(order) if fits else max(1, min(_ROWS, int(room / 8 / row_bytes)))
    H: Any = None
    for epoch in range(1, n_epochs + 1):
        for start in range(0, len(order), n_rows):
            if H is None or not fits:
                H = activations(layer, X[order[start : start + n_rows]])
            if learning_rate is None:
                parts = (H[i : i + _BLOCK] for i in range(0, len(H), _BLOCK))
                largest = max(float((Z * Z).sum(axis=1, dtype=np.float64).max()) for Z in parts)
                learning_rate = 1 / max(largest, 1e-300)
            for i in range(0, len(H), _BLOCK):
                rows = slice(start + i, start + min(i + _BLOCK, len(H)))
                part = None if w is None else w[rows]
                block_rule(xp, H[i : i + _BLOCK], targets[rows], W, learning_rate, part)
        on_host = to_host(W)
        _check_finite(on_host, epoch, learning_rate)
        if after_epoch is not None and after_epoch(epoch, on_host):
            break
    return on_host


def block_rule(
    xp: ModuleType, Z: Any, T: Any, W: Any, learning_rate: float, weights: Any | None
) -> None:
    """The delta rule for the rows of Z (b, m) in order, W (m, k) in place, by matrix products.

    The error of row i is t_i - z_i (W + Σ_j<i r_j z_j e_j): the errors E of all rows are the
    solution of a unit lower triangular system, (I + tril(Z Zᵀ, -1) diag(r)) E = T - Z W, and
    W += Zᵀ diag(r) E. A row of weight w has the rate r of its repetitions together: a step of rate
    a at z leaves 1 - a z·z of its error.
    """
    solve_triangular = factorizations(xp).solve_triangular
    Z = Z.astype(np.float64)
    gram = Z @ Z.T
    rates = xp.full(len(Z), learning_rate, np.float64)
    if weights is not None:
        squares = xp.maximum(gram.diagonal(), 1e-300)
        whole = xp.floor(weights)
        left = (1 - learning_rate * squares) ** whole
        left *= 1 - learning_rate * (weights - whole) * squares
        repeated = (1 - left) / squares
        rates = xp.where((weights == 1) | (gram.diagonal() == 0), learning_rate * weights, repeated)
    system = xp.tril(gram, -1) * rates
    xp.fill_diagonal(system, 1.0)
    E = solve_triangular(system, T - Z @ W, lower=True, unit_diagonal=True)
    W += Z.T @ (rates[:, None] * E)
