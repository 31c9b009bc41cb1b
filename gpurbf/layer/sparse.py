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
from gpurbf.layer.distance import Coefficients
from gpurbf.runtime.lazy import lazy_module
from gpurbf.runtime.memory import check_result
from gpurbf.runtime.stages import stage
from gpurbf.runtime.threads import parallel_rows

kernels = lazy_module("gpurbf.data._kernels")


# Sparse products are used for rows of at least so many inputs of which at most 1/32 are entries:
# there they are faster.
_WIDE, _DENSER = 1024, 32
_ROWS = 64
# The spread of centers, as a part of their squares, below which rows are shifted, so made dense.
_LEAST_SPREAD = 1e-6


def sparse_rows(X: Any) -> np.ndarray | None:
    """A mask (N,) of the rows of CSR samples for sparse products; None if there are none.

    Whether a row is in it depends on that row alone.
    """
    if not sp.issparse(X) or X.shape[1] < _WIDE:
        return None
    found: np.ndarray = np.diff(X.indptr) * _DENSER <= X.shape[1]
    return found if found.any() else None


def far_from_zero(C: Any) -> bool:
    """Whether centers C, dense or CSR, lie so far from 0 that products lose their differences."""
    C = C.astype(np.float64, copy=False)
    mean, squares = np.asarray(C.mean(axis=0)).ravel(), squared_norms(C).mean()
    return bool(squares - np.square(mean).sum() < _LEAST_SPREAD * squares)


def far_inputs(C: Any) -> sp.csr_array:
    """The mean (1, n) of CSR centers C (m, n) in inputs far from 0, other inputs without entry."""
    C, n = C.astype(np.float64, copy=False), max(1, C.shape[0])
    with np.errstate(over="ignore", invalid="ignore"):  # beyond float64 nothing is far
        mean, squares = np.asarray(C.sum(axis=0)).ravel() / n, squared_norms(C).sum() / n
        own = np.square(mean)
        spread = max(squares - own.sum(), np.finfo(np.float64).eps * squares)  # 0 if it is rounded
        far = _LEAST_SPREAD * own > spread
    return sp.csr_array(np.where(far, mean, 0)[None])


def moved_near(X: Any, shift: sp.csr_array) -> Any:
    """CSR samples X less a shift, which takes an entry a row for each of its inputs."""
    if not shift.nnz:
        return X
    return sp.csr_array(X) - sp.csr_array(np.ones((X.shape[0], 1))) @ shift


def sparse_or_dense(X: Any) -> Any:
    """X (N, n), dense or CSR, as CSR if rows are wide and almost all entries zero, else dense.

    The choice depends on the values, not on how they are stored.
    """
    N, n = X.shape
    if sp.issparse(X):
        return X if n >= _WIDE and X.count_nonzero() * _DENSER <= N * n else X.toarray()
    few = n >= _WIDE and np.count_nonzero(X) * _DENSER <= X.size
    return sp.csr_array(X) if few else X


def _entries(A: Any) -> tuple[np.ndarray, ...]:
    """Indices and values of CSR or CSC as the kernels take them: of one dtype each, read-only."""
    found = []
    for array, dtype in ((A.indptr, np.intp), (A.indices, np.intp), (A.data, np.float64)):
        found.append(array.astype(dtype, copy=False).view())
        found[-1].flags.writeable = False
    return tuple(found)


class Columns:
    """CSR centers C (m, n) stored by input: an entry of a sample meets few entries of centers."""

    def __init__(self, C: Any) -> None:
        self.entries = _entries(C.tocsc())
        self.nbytes = sum(array.nbytes for array in self.entries)


def _multiply(A: Any, B: Any, out: np.ndarray) -> None:
    """Write A Bᵀ, for CSR A and B as `Columns` or, dense, as its transpose."""
    indptr, *stored = _entries(A)  # slices of A itself would be copies

    def task(rows: slice) -> None:
        out[rows] = 0
        given = indptr[rows.start : rows.stop + 1], *stored
        if isinstance(B, Columns):
            kernels.add_products(*given, *B.entries, out[rows])
        else:  # on ARM SciPy's product is compiled to FMA, which rounds once, not twice
            kernels.add_dense_products(*given, B, out[rows])

    parallel_rows(task, A.shape[0], _ROWS)


_PRODUCT = Gemm("float64", np.float64, np.float64, 0, _multiply, centered=False)


def squared_norms(A: Any) -> np.ndarray:
    """Squared norms of rows in float64; dense rows are not copied."""
    if sp.issparse(A):
        return np.asarray(A.power(2).sum(axis=1), np.float64).ravel()
    return np.einsum("ij,ij->i", A, A, dtype=np.float64)


class SparseProductLayer(MatrixProductLayer):
    """A layer for CSR samples and centers (m, n) that are CSR or dense (see `sparse_or_dense`).

    It takes numbers, not codes. Products are dense. Manhattan distances, of CSR centers only, are
    scikit-learn's.
    """

    def __init__(self, C: Any, activation: Activation, dtype: Any) -> None:
        super().__init__(_PRODUCT, C, activation, dtype, None)
        self._centers = C
        if sp.issparse(self.centers):
            self.centers = Columns(self.centers)

    def _tile(self, X: Any, out: np.ndarray) -> None:
        if self.activation.metric == "manhattan":
            from sklearn.metrics.pairwise import laplacian_kernel

            out[:] = laplacian_kernel(X, self._centers, gamma=self.activation.gamma)
        else:
            super()._tile(X, out)

    def moved(self, A: Any, coefficients: Coefficients) -> tuple[Any, Any]:
        """A, not shifted, as the product reads it, and the terms of its rows."""
        A = A.astype(np.float64, copy=False)
        terms = squared_norms(A) if coefficients.quadratic else np.zeros(A.shape[0])
        if not sp.issparse(A):  # dense centers: an entry of a sample is multiplied by a row of Aᵀ
            A = np.ascontiguousarray(A.T).view()
            A.flags.writeable = False  # the kernel takes only read-only arrays
        return A, terms


class SparseLayer:
    """H[i, j] = phi(d(x_i, c_j)) in float64 for CSR centers C (m, n), without a dense copy of them.

    It has the methods of :class:`HiddenLayer` that SVC uses. |x - c|² comes from the norms and the
    product, as in scikit-learn's and LIBSVM's sparse kernels, but samples and centers are moved by
    a ``shift`` (see `far_inputs`), if one is given.
    """

    dtype = np.dtype(np.float64)

    def __init__(self, C: Any, activation: Activation, shift: sp.csr_array | None = None) -> None:
        self._shift = shift
        self.centers = self._moved(C)
        self._layer = SparseProductLayer(self.centers, activation, self.dtype)

    def describe(self) -> str:
        """The backend in use and the reason, its products and the arithmetic, in a line."""
        return "scipy (the data are too wide to be made dense), sparse products, float64"

    @stage("hidden layer", "sparse products")
    def activations(self, X: Any, out: np.ndarray | None = None) -> np.ndarray:
        """H, shape (N, m), for X dense, CSR or Samples of them."""
        if out is None:
            shape = X.shape[0], self.centers.shape[0]
            check_result(shape, self.dtype, "kernel values", "take fewer samples at a time")
            out = np.empty(shape)
        self._layer.activations(self._moved(X), out)
        return out

    @stage("hidden layer", "sparse products")
    def matvec(self, X: Any, W: Any) -> np.ndarray:
        """H @ W, shape (N, k), for `OutputWeights`."""
        shape = X.shape[0], W.shape[1]
        check_result(shape, self.dtype, "outputs", "predict fewer samples at a time", copies=2)
        return self._layer.matvec(self._moved(X), W.packed(self._layer))

    def _moved(self, X: Any) -> sp.csr_array:
        X = canonical_csr(X)
        return X if self._shift is None else moved_near(X, self._shift)


def canonical_csr(X: Any) -> sp.csr_array:
    """X as float64 CSR with the short indices that scikit-learn's loops take, if they suffice.

    The result shares arrays with X if the entries of X are sorted and given once. Else it is a
    copy: SciPy's ``power`` would sort some of the shared arrays in place and not the others.
    """
    X = sp.csr_array(X.values if isinstance(X, Samples) else X, dtype=np.float64)
    if X.indices.dtype != np.int32 and max(X.nnz, *X.shape) < 2**31:
        indices, indptr = X.indices.astype(np.int32), X.indptr.astype(np.int32)
        X = sp.csr_array((X.data, indices, indptr), shape=X.shape)
    if not X.has_canonical_format:
        X = X.copy()
        X.sum_duplicates()
    return X
