"""The on-line delta rule (least mean squares), sample by sample: FSVC's output training."""

from __future__ import annotations

import math
import numbers
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import gen_batches

from gpurbf.layer import Layer
from gpurbf.runtime.checks import check_number
from gpurbf.runtime.config import bytes_to_keep, working_bytes
from gpurbf.runtime.errors import OutOfRange
from gpurbf.runtime.lazy import lazy_module
from gpurbf.runtime.stages import count, stage
from gpurbf.runtime.threads import parallel_for, thread_limit

microkernel_table = lazy_module("gpurbf.layer.backends.numba.microkernel_table")
packing = lazy_module("gpurbf.layer.backends.numba.packing")
kernels = lazy_module("gpurbf.solvers._lms_kernels")

# Rows whose activations are computed at a time.
_ROWS_PER_BLOCK = 2048
# Activations that are computed anew in every epoch should still be in cache when they are used.
_MAX_TILE_BYTES = 1 << 24
# With fewer updates of single weights than this, one thread is faster: waking another takes longer.
_MIN_UPDATES_FOR_THREADS = 4_000_000
# Weights beyond this are about to overflow, and outputs with them.
_MAX_WEIGHT = 1e18


class DivergenceError(ValueError):
    """The learning rate is too high for the activations: the weights grow without limit."""


class LMS(BaseEstimator):
    """W += learning_rate z (t - z W) for the activations z and target t of each sample in order.

    There is no bias, as published. The activations are kept if they fit half of the free memory, or
    a quarter of the `memory` that is set (:func:`gpurbf.config_context`); otherwise they are
    computed anew, tile by tile, in every epoch.

    Parameters
    ----------
    learning_rate : float, optional
        >= 0; by default 1 / max z·z over the samples, which cannot diverge on them.
    n_epochs : int, default=10
        Number of passes over all samples.
    """

    needs = "samples"

    def __init__(self, learning_rate: float | None = None, *, n_epochs: int = 10) -> None:
        self.learning_rate = learning_rate
        self.n_epochs = n_epochs

    def check(self) -> None:
        """Raise for a bad parameter."""
        if self.learning_rate is not None:
            check_number("learning_rate", self.learning_rate, numbers.Real, 0)
        check_number("n_epochs", self.n_epochs, numbers.Integral, 1)

    def train(
        self, layer: Layer, X: Any, T: np.ndarray, weights: np.ndarray | None, **context: Any
    ) -> np.ndarray:
        """The weights after the last epoch; parameters and errors are those of `epochs`.

        Returns
        -------
        W : ndarray of shape (m, k), float64
        """
        return deque(self.epochs(layer, X, T, weights, **context), maxlen=1).pop().copy()

    def epochs(
        self,
        layer: Layer,
        X: Any,
        T: np.ndarray,
        weights: np.ndarray | None,
        *,
        start: np.ndarray | None = None,
        order: np.ndarray | None = None,
    ) -> Iterator[np.ndarray]:
        """The weights after each epoch; the caller may stop after any of them.

        Parameters
        ----------
        layer : Layer
            With m centers.
        X : ndarray or CSR of shape (N, n)
        T : ndarray of shape (N, k)
            Targets.
        weights : ndarray of shape (N,) or None
            A sample of weight w is seen floor(w) times in succession, and once more with the
            learning rate times w - floor(w).
        start : ndarray of shape (m, k) or None
            W at the start; None: zeros.
        order : ndarray of shape (N',), optional
            The rows to see, in order; by default all.

        Yields
        ------
        W : ndarray of shape (m, k), float64
            The next epoch changes it in place.

        Raises
        ------
        DivergenceError
            If the learning rate was too high and the weights grow without limit.
        FloatingPointError
            If activations are not finite.
        """
        order = np.arange(X.shape[0]) if order is None else order
        weights = np.ones(X.shape[0]) if weights is None else weights
        m, k = layer.centers.shape[0], T.shape[1]
        tiles = _Tiles(layer, X, order)
        W = packing.aligned((k, tiles.H.shape[1]), np.float64)  # one row per output
        W[:] = 0
        if start is not None:
            W[:, :m] = start.T
        rate = _safe_rate(tiles) if self.learning_rate is None else float(self.learning_rate)
        for epoch in range(1, self.n_epochs + 1):
            with stage("output training"):
                for rows, H in tiles:
                    targets = np.ascontiguousarray(T[rows], np.float64)
                    with stage("output training", "LMS"):
                        lms_rows(H, targets, W, rate, weights[rows])
                        nbytes = H.nbytes + 2 * W.nbytes
                        count(operations=4 * H.size * k, kind="float64", nbytes=nbytes)
            if not np.abs(W).max() <= _MAX_WEIGHT:
                if not all(np.isfinite(H).all() for _, H in tiles):
                    raise OutOfRange("activations")
                raise DivergenceError(
                    f"The output weights exceed {_MAX_WEIGHT:g} in epoch {epoch}: "
                    f"learning_rate={rate:g} is too high for these activations. Lower it (below 2 "
                    "over the largest sum of a sample's squared activations), or use "
                    "solver='ridge'."
                )
            yield W[:, :m].T


class _Tiles:
    """Activations of samples in the order in which they are learned, a tile of rows at a time.

    They are kept if they fit half of the free memory, or a quarter of a limit that is set;
    otherwise they are computed anew each time. They are padded with zeros as `lms_rows` takes them.
    A GPU's activations come to the host.
    """

    def __init__(self, layer: Layer, X: Any, order: np.ndarray) -> None:
        self.layer, self.X, self.order = layer, X, order
        m = layer.centers.shape[0]
        budget = working_bytes() / 4
        row_bytes = m * layer.dtype.itemsize
        self.kept, self.filled = len(order) * row_bytes <= bytes_to_keep(1 / 4), False
        padded, most = microkernel_table.padded, int(min(budget, _MAX_TILE_BYTES) / row_bytes)
        # Also of activations that are kept: a tile's targets are copied.
        self.n_rows = padded(min(max(64, most), len(order)), kernels.ROWS)
        n_rows = padded(len(order), kernels.ROWS) if self.kept else self.n_rows
        self.H = packing.aligned((n_rows, padded(m, kernels.LANES)), layer.dtype)
        self.H[:, m:] = 0

    def __iter__(self) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Give the numbers of the rows of each tile, and their activations."""
        m = self.layer.centers.shape[0]
        for tile in gen_batches(len(self.order), self.n_rows):
            rows, first = self.order[tile], tile.start if self.kept else 0
            H = self.H[first : first + microkernel_table.padded(len(rows), kernels.ROWS)]
            if not self.filled:
                H[len(rows) :] = 0
                # Each block is a copy of rows: wide ones are few, as memory allows.
                fit = working_bytes() // 4 // (8 * math.prod(self.X.shape[1:]))
                for block in gen_batches(len(rows), min(max(64, fit), _ROWS_PER_BLOCK)):
                    self.layer.activations(self.X[rows[block]], out=H[block, :m])
            yield rows, H
        self.filled = self.kept


@stage("output training")
def _safe_rate(tiles: _Tiles) -> float:
    """The default of `LMS.learning_rate`."""
    largest = max(np.einsum("ij,ij->i", H, H, dtype=np.float64).max() for _, H in tiles)
    if not largest < np.inf:
        raise OutOfRange("activations")
    return 1 / max(largest, 1e-300)


def lms_rows(
    H: np.ndarray, T: np.ndarray, W: np.ndarray, learning_rate: float, weights: np.ndarray
) -> None:
    """Pass the rows of H once through the delta rule; W is updated in place.

    The outputs do not depend on each other: each thread takes some of them, and the result is the
    same for any number of threads.

    Parameters
    ----------
    H : ndarray of shape (b, m), padded with zeros, float32 or float64, C-contiguous
        Its rows are a multiple of the kernel's ``ROWS`` (4), its columns of its ``LANES`` (8).
    T : ndarray of shape (b, k), float64
        Targets.
    W : ndarray of shape (k, columns of H), float64, C-contiguous
        Weights, one row per output.
    learning_rate : float
    weights : ndarray of shape (b,), float64
        See `LMS.epochs`.
    """
    k = T.shape[1]
    threaded = T.size * H.shape[1] > _MIN_UPDATES_FOR_THREADS
    n_parts = min(k, thread_limit()) if threaded else 1

    def outputs(i: int) -> None:
        mine = slice(i * k // n_parts, (i + 1) * k // n_parts)
        kernels.rows(H, np.ascontiguousarray(T[:, mine]), W[mine], learning_rate, weights)

    parallel_for(outputs, n_parts)
