"""The on-line delta rule (least mean squares), sample by sample: FSVC's output training."""

from __future__ import annotations

import numbers
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from gpurbf.layer.protocol import Layer
from gpurbf.runtime.arrays import to_host
from gpurbf.runtime.checks import check_number
from gpurbf.runtime.config import get_config
from gpurbf.runtime.lazy import lazy_module
from gpurbf.runtime.stages import count, stage
from gpurbf.runtime.threads import parallel_for, thread_limit

packing = lazy_module("gpurbf.layer.backends.numba.packing")
lms_kernels = lazy_module("gpurbf.solvers._lms_kernels")


_ROWS = 2048
# Activations that are computed anew in every epoch should still be in cache when they are used.
_TILE_BYTES = 1 << 24


class DivergenceError(ValueError):
    """The learning rate is too high for the activations: the weights grew beyond all numbers."""


class LMS(BaseEstimator):
    """W += learning_rate z (t - z W) for the activations z and target t of each sample in order.

    No bias, as published. The activations are kept if they fit a quarter of the memory budget and
    computed anew, tile by tile, in every epoch if not.

    Parameters
    ----------
    learning_rate : float, optional
        >= 0; by default 1 / max z·z over a tile of samples, which cannot diverge on them.
    n_epochs : int, default=10
        How often all samples are seen.
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
        self,
        layer: Layer,
        X: Any,
        T: np.ndarray,
        weights: np.ndarray | None,
        *,
        start: np.ndarray | None = None,
        order: np.ndarray | None = None,
    ) -> np.ndarray:
        """The weights after the last epoch, see `epochs`.

        Returns
        -------
        W : ndarray of shape (m, k), float64
        """
        W = deque(self.epochs(layer, X, T, weights, start=start, order=order), maxlen=1).pop()
        return W.copy()

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
        """The weights after each epoch; whoever has seen enough takes no more.

        Parameters
        ----------
        layer : Layer
            With m centers.
        X : ndarray or CSR of shape (N, n)
        T : ndarray of shape (N, k)
            Targets.
        weights : ndarray of shape (N,) or None
            A sample of weight w is seen floor(w) times in succession, and once more with the
            learning rate times what is left of w.
        start : ndarray of shape (m, k) or None
            W at the start; None: zeros.
        order : ndarray of shape (N',), optional
            The rows to see, in order; by default all.

        Yields
        ------
        W : ndarray of shape (m, k), float64
            Changed by the next epoch.

        Raises
        ------
        DivergenceError
            If the learning rate was too high and the weights are not finite.
        """
        order = np.arange(X.shape[0]) if order is None else order
        rule = _Rule(layer, X, T, weights, start, order)
        rate = self.learning_rate
        for epoch in range(1, self.n_epochs + 1):
            with stage("output training"), layer.allocator():
                W, rate = rule.epoch(rate)
            if not np.isfinite(W).all():
                raise DivergenceError(
                    f"The output weights overflowed in epoch {epoch}: learning_rate={rate:g} is "
                    "too high for these activations. Lower it (below 2 / max z·z), or use "
                    "solver='ridge', which has none."
                )
            yield W


class _Rule:
    """The rule by rows of a tile, see `LMS.epochs`; a GPU's activations come to the host."""

    def __init__(
        self,
        layer: Layer,
        X: Any,
        T: np.ndarray,
        weights: np.ndarray | None,
        start: np.ndarray | None,
        order: np.ndarray,
    ) -> None:
        self.layer, self.X, self.T, self.weights, self.order = layer, X, T, weights, order
        m, k = len(layer.centers), T.shape[1]
        # A row an output, its length a multiple of the vectors'; activations that are kept too.
        padded = -(-m // 8) * 8
        self.W = aligned((k, padded), np.float64)
        self.W[:] = 0
        if start is not None:
            self.W[:, :m] = start.T
        budget = get_config()["memory"] * 2**20 / 4
        row_bytes = m * layer.dtype.itemsize
        self.kept = len(order) * row_bytes <= budget
        self.n_rows = max(64, int(min(budget, _TILE_BYTES) / row_bytes))
        if self.kept:
            self.n_rows = len(order)
        shape = min(self.n_rows, len(order)), padded if self.kept else m
        self.H = aligned(shape, layer.dtype)
        self.H[:, m:] = 0
        self.known = False

    def epoch(self, rate: float | None) -> tuple[np.ndarray, float]:
        """W (m, k) after one more look at all rows, and the rate."""
        for start in range(0, len(self.order), self.n_rows):
            rows = self.order[start : start + self.n_rows]
            Z = self.H[: len(rows)]
            if not self.known:
                self._activate(rows, Z)
            if rate is None:
                rate = 1 / max(np.einsum("ij,ij->i", Z, Z, dtype=np.float64).max(), 1e-300)
            w = None if self.weights is None else self.weights[rows]
            with stage("output training", "LMS"):
                lms_rows(Z, np.ascontiguousarray(self.T[rows], np.float64), self.W, rate, w)
                k = len(self.W)
                nbytes = Z.nbytes + 2 * self.W.nbytes
                count(operations=4 * Z.size * k, kind="float64", nbytes=nbytes)
        self.known = self.kept
        assert rate is not None  # there are rows
        return self.W[:, : len(self.layer.centers)].T, rate

    def _activate(self, rows: np.ndarray, Z: np.ndarray) -> None:
        m = len(self.layer.centers)
        for part in range(0, len(rows), _ROWS):
            piece = slice(part, part + _ROWS)
            if Z.shape[1] == m:
                self.layer.activations(self.X[rows[piece]], out=Z[piece])
            else:  # a backend writes whole rows only
                Z[piece, :m] = to_host(self.layer.activations(self.X[rows[piece]]))


# Updates of one weight that take longer than it takes to wake a thread.
_WORTH_A_THREAD = 4_000_000


def aligned(shape: tuple[int, int], dtype: Any) -> np.ndarray:
    """See :func:`gpurbf.layer.backends.numba.packing.aligned`."""

    return packing.aligned(shape, dtype)


def lms_rows(
    H: np.ndarray, T: np.ndarray, W: np.ndarray, learning_rate: float, weights: np.ndarray | None
) -> None:
    """Pass the rows of H (b, m) once through the delta rule; W (k, m) is updated in place.

    The outputs do not depend on each other: each thread takes some of them, and the result is the
    same for any number of threads.
    """

    k = T.shape[1]
    repeats = np.empty(0) if weights is None else weights
    n_parts = min(k, thread_limit()) if T.size * H.shape[1] > _WORTH_A_THREAD else 1

    def outputs(i: int) -> None:
        mine = slice(i * k // n_parts, (i + 1) * k // n_parts)
        lms_kernels.rows(H, np.ascontiguousarray(T[:, mine]), W[mine], learning_rate, repeats)

    parallel_for(outputs, n_parts)
