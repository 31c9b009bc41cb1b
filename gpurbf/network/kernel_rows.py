"""Kernel values between training samples, in blocks, as SVC's solver asks for them."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

import numpy as np
import scipy.sparse as sp

from gpurbf.backends import Lattice, get_backend
from gpurbf.backends.lattice import candidates, encode
from gpurbf.network.hidden import FORCED, Activation, HiddenLayer
from gpurbf.network.sparse_layer import SparseLayer, stays_sparse

__all__ = ["GivenKernel", "KernelRows", "as_integers", "compact"]

_ROWS = 1024
# Entries of a sparse matrix that are made dense to see whether a lattice is worth a try.
_SAMPLE = 1 << 20


class GivenKernel:
    """A kernel matrix (N, N) that is there already, precomputed or by a function of the user."""

    def __init__(self, K: np.ndarray, order: np.ndarray) -> None:
        # Put in the solver's order: a copy of K unless it is in that order.
        in_order = np.array_equal(order, np.arange(len(K)))
        self.matrix = np.ascontiguousarray(K if in_order else K[np.ix_(order, order)])
        self.dtype = K.dtype
        self.diagonal = self.matrix.diagonal().astype(np.float64)
        self.backend = "none"
        self.description = "a given kernel matrix"


class KernelRows:
    """K[i, j] = phi(d(x_i, x_j)) between samples in the solver's order, evaluated when asked for.

    Parameters
    ----------
    X : ndarray or CSR of shape (N, n)
        Samples in the solver's order; compact ones (see :func:`compact`) are gathered fastest.
    activation : Activation
        The kernel.
    backend, precision : str
        As of :class:`HiddenLayer`.
    """

    matrix = None

    def __init__(self, X: Any, activation: Activation, backend: str, precision: str) -> None:
        self.X = X
        self.activation, self.backend, self.precision = activation, backend, precision
        self.xp: ModuleType = np
        self.working: Callable[[], AbstractContextManager[None]] = nullcontext
        self.room: Callable[[], float] = lambda: math.inf
        self._there: Any = None
        # A layer for each class, its samples the centers; other columns are asked for once.
        self._layers: dict[tuple[int, int], HiddenLayer | SparseLayer] = {}
        self._lock = threading.Lock()
        if not sp.issparse(X):
            # What "auto" means is a setting of the caller's thread, and a matter of all samples:
            # the solver's threads get the name.
            self.backend = get_backend(backend, X.shape[0])[0].name
        probe = self._layer(X[:1])
        if isinstance(probe, HiddenLayer):
            backend_, there = probe.backend, probe.backend.xp is not np
            self.xp, self.working, self.room = backend_.xp, backend_.working, backend_.room
            if there and X.nbytes < self.room() / 4:
                # Rows are gathered where they are needed: samples cross once.
                with self.working():
                    self._there = self.xp.asarray(X)
        else:
            self.backend = "scipy"
        self.dtype = probe.dtype
        self.diagonal = self._diagonal(probe)
        self.description = probe.describe()

    def _layer(self, C: Any) -> HiddenLayer | SparseLayer:
        if sp.issparse(C):
            return SparseLayer(C, self.activation)
        return HiddenLayer(C, self.activation, backend=self.backend, precision=self.precision)

    def _diagonal(self, probe: HiddenLayer | SparseLayer) -> np.ndarray:
        """K[i, i]; constant unless the metric is the dot product."""
        X, N = self.X, self.X.shape[0]
        if self.activation.metric != "dot":
            return np.full(N, float(probe.outputs(X[:1])[0, 0]))
        squares = np.empty(N)
        for start in range(0, N, _ROWS):
            part = X[start : start + _ROWS].astype(np.float64)
            if sp.issparse(part):
                squares[start : start + _ROWS] = np.asarray(part.multiply(part).sum(axis=1)).ravel()
            else:
                squares[start : start + _ROWS] = np.einsum("ij,ij->i", part, part)
        a = self.activation
        profiles = {
            "linear": lambda t: t,
            "poly": lambda t: (a.gamma * t + a.coef0) ** a.degree,
            "sigmoid": lambda t: np.tanh(a.gamma * t + a.coef0),
        }
        return profiles[str(a.profile)](squares)

    def values(self, samples: np.ndarray, columns: slice | np.ndarray, out: np.ndarray) -> None:
        """Write K[samples, columns] into out; a slice is a class, whose layer is kept."""
        if isinstance(columns, slice):
            key = columns.start, columns.stop
            with self._lock:
                layer = self._layers.get(key)
                if layer is None:
                    layer = self._layers[key] = self._layer(self.X[columns])
        else:
            layer = self._layer(self.X[columns])
        with self.working():
            X = self.X if self._there is None else self._there
            X = X[samples if X is self.X else self.xp.asarray(samples)]
            layer.outputs(X, out)


def compact(
    X: Any, activation: Activation, precision: str
) -> tuple[Any, Activation, Lattice | None]:
    """X as 8-bit codes where it is on an integer lattice, and the kernel in units of the codes.

    Encoded once here, samples need not be looked at again for each block of kernel values. The
    lattice is None, and X and the activation are as they were, if there is none; but CSR becomes
    dense unless that takes much more memory.
    """
    sparse = sp.issparse(X)
    if precision in FORCED or 0 in X.shape:
        return (X if stays_sparse(X) or not sparse else X.toarray()), activation, None
    few = max(1, _SAMPLE // X.shape[1])
    for lattice in candidates(X[:few].toarray() if sparse else X):
        codes = _encode_sparse(X, lattice) if sparse else encode(X, lattice)
        if codes is not None:
            unit = 1 / lattice.denominator
            return as_integers(codes, lattice), _in_units(activation, unit), lattice
    return (X if stays_sparse(X) or not sparse else X.toarray()), activation, None


def as_integers(codes: np.ndarray, lattice: Lattice) -> np.ndarray:
    """The integers that the codes stand for, uint8 or int8."""
    return codes if lattice.zero == 0 else (codes ^ np.uint8(128)).view(np.int8)


def _encode_sparse(X: Any, lattice: Lattice) -> np.ndarray | None:
    """Dense codes of a CSR matrix if they take no more memory than twice the matrix does."""
    if X.shape[0] * X.shape[1] > 2 * (X.data.nbytes + X.indices.nbytes):
        return None
    codes = np.empty(X.shape, np.uint8)
    for start in range(0, X.shape[0], _ROWS):
        part = encode(X[start : start + _ROWS].toarray(), lattice)
        if part is None:
            return None
        codes[start : start + _ROWS] = part
    return codes


def _in_units(activation: Activation, unit: float) -> Activation:
    """The activation that gives for codes what the given one gives for ``unit * codes``."""
    if unit == 1:
        return activation
    if activation.profile == "linear":
        return activation._replace(profile="poly", gamma=unit**2, coef0=0.0, degree=1)
    power = 1 if activation.profile == "laplacian" else 2
    return activation._replace(gamma=activation.gamma * unit**power)
