"""Layers for CSR samples that skip zeros, with dense centers or with centers that are CSR too.

This is not a backend that can be chosen by name: every backend of the CPU leaves rows with few
entries to `SparseProductLayer`. The work for a row is its entries times those of the centers in the
same inputs, or times the centers if these are dense. Tiles of dense rows do inputs times centers
operations, forty times as fast. Rows are not shifted, because this would fill the zeros. Instead,
products and their sums are float64, entry by entry in a row's order, so that dense and CSR centers
give the same bits.

`SparseLayer` keeps SVC's support vectors as CSR where memory does not hold a dense copy.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from gpurbf.data.samples import Samples
from gpurbf.layer.activation import Activation
from gpurbf.layer.backends.blas.matmul import Gemm, MatrixProductLayer
from gpurbf.layer.distance import Coefficients, evaluate
from gpurbf.runtime.lazy import lazy_module
from gpurbf.runtime.memory import check_result
from gpurbf.runtime.stages import staged
from gpurbf.runtime.threads import parallel_rows

kernels = lazy_module("gpurbf.data._kernels")


# Inputs from which rows are wide enough, and the part of entries, 1/32 of a row, up to which sparse
# products are faster.
_WIDE, _DENSER = 1024, 32
_ROWS = 64


def sparse_rows(X: Any) -> np.ndarray | None:
    """A mask (N,) of the rows of CSR samples for sparse products; None if there are none.

    Whether a row is in it depends on that row alone.
    """
    if not sp.issparse(X) or X.shape[1] < _WIDE:
        return None
    found: np.ndarray = np.diff(X.indptr) * _DENSER <= X.shape[1]
    return found if found.any() else None


def sparse_or_dense(X: Any) -> Any:
    """X (N, n), dense or CSR, as CSR if rows are wide and almost all entries zero, else dense.

    The choice depends on the values, not on how they are stored.
    """
    N, n = X.shape
    if sp.issparse(X):
        return X if n >= _WIDE and X.count_nonzero() * _DENSER <= N * n else X.toarray()
    few = n >= _WIDE and np.count_nonzero(X) * _DENSER <= X.size
    return sp.csr_array(X) if few else X


def _read_only(array: np.ndarray) -> np.ndarray:
    """The array as the kernels take it."""
    array = array.view()
    array.flags.writeable = False
    return array


def _entries(A: Any) -> tuple[np.ndarray, ...]:
    """Indices and values of CSR or CSC as the kernels take them: of one dtype each, read-only."""
    given = (A.indptr, np.intp), (A.indices, np.intp), (A.data, np.float64)
    return tuple(_read_only(array.astype(dtype, copy=False)) for array, dtype in given)


class Columns:
    """Centers C (m, n), CSR or dense, stored by input: an entry of a sample meets a row of Cᵀ."""

    def __init__(self, C: Any) -> None:
        if sp.issparse(C):
            self._add, self._own = kernels.add_products, _entries(C.tocsc())
        else:  # on ARM SciPy's product is compiled to FMA, which rounds once, not twice
            by_inputs = _read_only(np.ascontiguousarray(C.T))
            self._add, self._own = kernels.add_dense_products, (by_inputs,)
        self.nbytes = sum(array.nbytes for array in self._own)

    def products(self, A: Any, out: np.ndarray) -> None:
        """Write A Cᵀ (N, m), for A (N, n) CSR; on the calling thread."""
        out[:] = 0
        self._add(*_entries(A), *self._own, out)


class _Manhattan:
    """CSR centers C (m, n), whose Manhattan distances take the place of products."""

    def __init__(self, C: Any) -> None:
        self._C, self.nbytes = C, C.data.nbytes + C.indices.nbytes

    def products(self, A: Any, out: np.ndarray) -> None:
        """Write the distances of the rows of A (N, n) CSR."""
        from sklearn.metrics.pairwise import manhattan_distances

        out[:] = manhattan_distances(A, self._C)


def _multiply(A: Any, B: Columns | _Manhattan, out: np.ndarray) -> None:
    parallel_rows(lambda rows: B.products(A[rows], out[rows]), A.shape[0], _ROWS)


_PRODUCT = Gemm("float64", np.float64, np.float64, np.float64, 0, 0, _multiply, centered=False)


def _squares(A: Any, power: int, dtype: Any) -> np.ndarray:
    """Squared norms of rows, which are not shifted; dense rows are not copied."""
    if sp.issparse(A):
        return np.asarray(A.power(power).sum(axis=1), dtype).ravel()
    return np.einsum("ij,ij->i", A, A, dtype=dtype)


class SparseProductLayer(MatrixProductLayer):
    """A layer for CSR samples and centers (m, n) that are CSR or dense (see `sparse_or_dense`).

    It takes numbers, not codes; with the Manhattan metric centers are CSR. Products are dense.
    """

    def __init__(self, C: Any, activation: Activation, dtype: Any) -> None:
        super().__init__(_PRODUCT, C, activation, dtype, None)
        stored = _Manhattan if activation.metric == "manhattan" else Columns
        self.distance = self.distance._replace(centers=stored(self.distance.centers))

    def moved(
        self, A: Any, shift: Any, dtype: Any, coefficients: Coefficients, terms_dtype: Any
    ) -> tuple[Any, np.ndarray]:
        """A, not shifted, in the dtype, and the terms of its rows."""
        A = A.astype(dtype, copy=False)
        return A, evaluate(coefficients, A, _squares, np.float64)


class SparseLayer:
    """H[i, j] = phi(d(x_i, c_j)) in float64 for CSR centers C (m, n), without a dense copy of them.

    It has the methods of :class:`HiddenLayer` that SVC uses. |x - c|² comes from the norms and the
    product, as in scikit-learn's and LIBSVM's sparse kernels.
    """

    dtype = np.dtype(np.float64)

    def __init__(self, C: Any, activation: Activation) -> None:
        self.centers = _csr(C)
        self._layer = SparseProductLayer(self.centers, activation, self.dtype)

    def describe(self) -> str:
        """The backend in use and the reason, its products and the arithmetic, in a line."""
        return "scipy (the data are too wide to be made dense), sparse products, float64"

    @staged("hidden layer")
    def activations(self, X: Any, out: np.ndarray | None = None) -> np.ndarray:
        """H, shape (N, m), for X dense, CSR or Samples of them."""
        if out is None:
            shape = X.shape[0], self.centers.shape[0]
            check_result(shape, self.dtype, "kernel values", "take fewer samples at a time")
            out = np.empty(shape)
        self._layer.activations(_csr(X), out)
        return out

    @staged("hidden layer")
    def matvec(self, X: Any, W: np.ndarray) -> np.ndarray:
        """H @ W, shape (N, k)."""
        shape = X.shape[0], W.shape[1]
        check_result(shape, self.dtype, "outputs", "predict fewer samples at a time", copies=2)
        return self._layer.matvec(_csr(X), self._layer.pack_weights(W))


def _csr(X: Any) -> sp.csr_array:
    """X as float64 CSR with the short indices that scikit-learn's loops take, if they suffice."""
    X = sp.csr_array(X.values if isinstance(X, Samples) else X, dtype=np.float64)
    if X.indices.dtype != np.int32 and max(X.nnz, *X.shape) < 2**31:
        indices, indptr = X.indices.astype(np.int32), X.indptr.astype(np.int32)
        X = sp.csr_array((X.data, indices, indptr), shape=X.shape)
    return X
