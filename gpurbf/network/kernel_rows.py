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

from gpurbf._stages import staged
from gpurbf.backends import get_backend
from gpurbf.backends.profiles import PROFILES
from gpurbf.network.hidden import Activation, HiddenLayer
from gpurbf.network.rounding import arithmetic
from gpurbf.network.samples import FORCED, Samples
from gpurbf.network.sparse_layer import SparseLayer

__all__ = ["GivenKernel", "KernelRows"]

_ROWS = 1024


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
    X : Samples
        In the solver's order.
    activation : Activation
        The kernel.
    backend, precision : str
        As of :class:`HiddenLayer`.
    size, largest, tol : float
        What the rounding of kernel values meets, see :func:`gpurbf.network.rounding.arithmetic`.
    """

    matrix = None

    def __init__(
        self,
        X: Samples,
        activation: Activation,
        backend: str,
        precision: str,
        *,
        size: float,
        largest: float,
        tol: float,
    ) -> None:
        self.X, self.activation, self.precision = X, activation, precision
        self.xp: ModuleType = np
        self.working: Callable[[], AbstractContextManager[None]] = nullcontext
        self.room: Callable[[], float] = lambda: math.inf
        # A layer for each class, its samples the centers; other columns are asked for once.
        self._layers: dict[tuple[int, int], HiddenLayer | SparseLayer] = {}
        self._lock = threading.Lock()
        self._sparse = sp.issparse(X.values)
        self._there = X
        self._dtype: Any = None
        reason = ""
        if not self._sparse:
            # What "auto" means depends on the number of all samples.
            self._chosen = get_backend(backend, len(X))
            chosen = self._chosen[0]
            self.xp, self.working, self.room = chosen.xp, chosen.working, chosen.room
            if self.xp is not np and X.values.nbytes < self.room() / 4:
                # Rows are gathered where they are needed: samples cross once.
                with self.working():
                    self._there = Samples(self.xp.asarray(X.values), X.lattice, X.dtype)
            if X.lattice is not None:
                # Rows are kept in float32: exact distances deserve no wider activations.
                self._dtype = np.float32
            elif precision not in FORCED:
                self._dtype, reason = arithmetic(
                    X, activation, self._chosen, size=size, largest=largest, tol=tol
                )
        probe = self._layer(X[:1])
        self.backend = "scipy" if self._sparse else chosen.name
        self.dtype = probe.dtype
        self.diagonal = self._diagonal()
        self.description = probe.describe() + (reason and f"; {reason}")

    def _layer(self, C: Samples) -> HiddenLayer | SparseLayer:
        if self._sparse:
            return SparseLayer(C, self.activation)
        return HiddenLayer(
            C,
            self.activation,
            backend=self._chosen,
            precision=self.precision,
            dtype=self._dtype,
        )

    def _diagonal(self) -> np.ndarray:
        """K[i, i]: 1 where a sample has distance 0 to itself, else of its squared norm."""
        N = len(self.X)
        if self.activation.metric != "dot":
            return np.ones(N)
        squares = np.empty(N)
        for start in range(0, N, _ROWS):
            part = self.X[start : start + _ROWS].numbers().astype(np.float64)
            if self._sparse:
                squares[start : start + _ROWS] = np.asarray(part.multiply(part).sum(axis=1)).ravel()
            else:
                squares[start : start + _ROWS] = np.einsum("ij,ij->i", part, part)
        return PROFILES[str(self.activation.profile)](squares, self.activation)

    @staged("prepare", "samples gathered")
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
            there = self._there
            X = there[samples if there is self.X else self.xp.asarray(samples)]
            layer.outputs(X, out)
