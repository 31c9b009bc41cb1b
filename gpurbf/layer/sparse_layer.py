"""The hidden layer of CSR data that would not fit into memory dense: sparse products on the CPU."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

import numpy as np
import scipy.sparse as sp

from gpurbf.data.samples import Samples
from gpurbf.layer.activation import Activation
from gpurbf.layer.backends.blas.sparse import SparseProductLayer
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
        layer = _ManhattanLayer if activation.metric == "manhattan" else SparseProductLayer
        self._prepared = layer(self.centers, activation, self.dtype)

    def allocator(self) -> AbstractContextManager[None]:
        """See :class:`gpurbf.layer.protocol.Layer`."""
        return nullcontext()

    def free_bytes(self) -> float:
        """See :class:`gpurbf.layer.protocol.Layer`."""
        return math.inf

    def describe(self) -> str:
        """Backend and arithmetic in use, and the reason."""
        return "SciPy [sparse products], float64 (the data are too wide to be made dense)"

    @staged("hidden layer", "sparse products")
    def activations(self, X: Any, out: np.ndarray | None = None) -> np.ndarray:
        """H, shape (N, m), for X dense, CSR or Samples of them."""
        X = _csr(X)
        H = out
        if H is None:
            shape = X.shape[0], self.centers.shape[0]
            check_result(shape, self.dtype, "kernel values", "take fewer samples at a time")
            H = np.empty(shape)
        self._prepared.activations(X, H)
        return H

    @staged("hidden layer", "sparse products")
    def matvec(self, X: Any, W: np.ndarray) -> np.ndarray:
        """H @ W, shape (N, k)."""
        cure = "predict fewer samples at a time"
        check_result((X.shape[0], W.shape[1]), self.dtype, "outputs", cure, copies=2)
        return self._prepared.matvec(_csr(X), self._prepared.pack_weights(W))


class _ManhattanLayer(SparseProductLayer):
    """Distances by scikit-learn, which are no products."""

    def __init__(self, C: Any, activation: Activation, dtype: Any) -> None:
        super().__init__(C, activation, dtype)
        self._C = C

    def activations(self, X: Any, out: np.ndarray) -> None:
        """Write H (N, m) into ``out``."""
        from sklearn.metrics.pairwise import laplacian_kernel

        rows = max(16, _BYTES // (8 * max(1, self.m)))

        def part(some: slice) -> None:
            out[some] = laplacian_kernel(X[some], self._C, gamma=self.activation.gamma)

        parallel_rows(part, X.shape[0], rows)


def _csr(X: Any) -> sp.csr_array:
    """X as float64 CSR with the short indices that scikit-learn's loops take, if they suffice."""
    X = sp.csr_array(X.values if isinstance(X, Samples) else X, dtype=np.float64)
    if X.indices.dtype != np.int32 and max(X.nnz, *X.shape) < 2**31:
        indices, indptr = X.indices.astype(np.int32), X.indptr.astype(np.int32)
        X = sp.csr_array((X.data, indices, indptr), shape=X.shape)
    return X
