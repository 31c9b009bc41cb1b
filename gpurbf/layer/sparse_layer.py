"""The hidden layer of CSR data that would not fit into memory dense: sparse products on the CPU."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

import numpy as np
import scipy.sparse as sp

from gpurbf.data.samples import Samples
from gpurbf.layer.activation import FORMULAS, Activation
from gpurbf.layer.backends.blas.sparse import Columns
from gpurbf.layer.backends.numba.matvec import row_products
from gpurbf.runtime.checks import check_result
from gpurbf.runtime.stages import staged
from gpurbf.runtime.threads import parallel_rows

# Of a part of H.
_BYTES = 8 << 20


class SparseLayer:
    """H[i, j] = phi(d(x_i, c_j)) in float64 for CSR centers C (m, n), without a dense copy of them.

    It has of :class:`HiddenLayer` what SVC asks for. |x - c|² comes from the norms and the product,
    as in scikit-learn's and LIBSVM's sparse kernels.
    """

    dtype = np.dtype(np.float64)
    xp: ModuleType = np

    def __init__(self, C: Any, activation: Activation) -> None:
        self.centers = _csr(C)
        self.activation = activation
        self._columns = Columns(self.centers)
        self._norms = _norms(self.centers)

    def allocator(self) -> AbstractContextManager[None]:
        """See :class:`gpurbf.layer.protocol.Layer`."""
        return nullcontext()

    def free_bytes(self) -> float:
        """See :class:`gpurbf.layer.protocol.Layer`."""
        return math.inf

    def describe(self) -> str:
        """The backend in use and the reason, its products and the arithmetic, in a line."""
        return "scipy (the data are too wide to be made dense), sparse products, float64"

    @staged("hidden layer", "sparse products")
    def activations(self, X: Any, out: np.ndarray | None = None) -> np.ndarray:
        """H, shape (N, m), for X dense, CSR or Samples of them."""
        X = _csr(X)
        shape = X.shape[0], self.centers.shape[0]
        if out is None:
            check_result(shape, self.dtype, "kernel values", "take fewer samples at a time")
        H = np.empty(shape) if out is None else out

        def part(rows: slice) -> None:
            H[rows] = self._values(X[rows])

        self._by_parts(part, X.shape[0])
        return H

    @staged("hidden layer", "sparse products")
    def matvec(self, X: Any, W: np.ndarray) -> np.ndarray:
        """H @ W, shape (N, k)."""
        shape = X.shape[0], W.shape[1]
        check_result(shape, self.dtype, "outputs", "predict fewer samples at a time", copies=2)
        X, S = _csr(X), np.empty(shape)

        def part(rows: slice) -> None:
            S[rows] = row_products(self._values(X[rows]), W)

        self._by_parts(part, X.shape[0])
        return S

    def _by_parts(self, work: Callable[[slice], None], N: int) -> None:
        """Some rows after the other, on all free threads: SciPy's products let others work."""
        rows = max(16, _BYTES // (8 * max(1, self.centers.shape[0])))
        parallel_rows(work, N, rows)

    def _values(self, X: Any) -> np.ndarray:
        if self.activation.metric == "manhattan":
            from sklearn.metrics.pairwise import laplacian_kernel

            return laplacian_kernel(X, self.centers, gamma=self.activation.gamma)
        value = np.empty((X.shape[0], self.centers.shape[0]))
        self._columns.products(X, value)
        if self.activation.metric == "euclidean":
            value *= -2
            value += _norms(X)[:, None]
            value += self._norms
            np.maximum(value, 0, out=value)
        return FORMULAS[str(self.activation.profile)](value, self.activation)


def _csr(X: Any) -> sp.csr_array:
    """X as float64 CSR with the short indices that scikit-learn's loops take, if they suffice."""
    X = sp.csr_array(X.values if isinstance(X, Samples) else X, dtype=np.float64)
    if X.indices.dtype != np.int32 and max(X.nnz, *X.shape) < 2**31:
        indices, indptr = X.indices.astype(np.int32), X.indptr.astype(np.int32)
        X = sp.csr_array((X.data, indices, indptr), shape=X.shape)
    return X


def _norms(X: Any) -> np.ndarray:
    """Squared norms of the rows of a CSR array."""
    return np.asarray(X.multiply(X).sum(axis=1)).ravel()
