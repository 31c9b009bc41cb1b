"""CSR samples with few entries a row times centers: what is zero is not multiplied.

Not a backend to be asked for by name: any backend of the CPU leaves such rows to it. A row costs
its entries times those of the centers in the same inputs, or times the centers where these are
dense; tiles of dense rows cost inputs times centers, forty times as fast. Nothing is shifted, which
would fill the zeros: products and their sums are float64 instead, entry by entry in a row's order,
so that both kinds of centers give the same bits.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from gpurbf.layer.activation import Activation
from gpurbf.layer.backends.blas.matmul import Gemm, MatrixProductLayer
from gpurbf.layer.distance import Coefficients, evaluate
from gpurbf.runtime.lazy import lazy_module
from gpurbf.runtime.threads import parallel_rows

kernels = lazy_module("gpurbf.layer.backends.blas._sparse_kernels")


# Wide enough to matter, and entries so few that products of them alone are faster: 1/32 of a row.
_WIDE, _DENSER = 1024, 32
_ROWS = 64


def sparse_rows(X: Any) -> np.ndarray | None:
    """Which rows (N,) of CSR samples are left to these products; None for any other array.

    Which of the two a row is depends on that row alone.
    """
    if not sp.issparse(X) or X.shape[1] < _WIDE:
        return None
    found: np.ndarray = np.diff(X.indptr) * _DENSER <= X.shape[1]
    return found if found.any() else None


def sparse_or_dense(X: Any) -> Any:
    """X (N, n), dense or CSR, as CSR if rows are wide and almost all entries zero, else dense.

    Which of the two depends on the values, not on how they are stored.
    """
    N, n = X.shape
    if sp.issparse(X):
        return X if n >= _WIDE and X.count_nonzero() * _DENSER <= N * n else X.toarray()
    few = n >= _WIDE and np.count_nonzero(X) * _DENSER <= X.size
    return sp.csr_array(X) if few else X


def _entries(A: Any) -> tuple[np.ndarray, ...]:
    """Places and values of CSR or CSC as the kernel takes them: of one type each, read only."""
    found = []
    for array, dtype in ((A.indptr, np.intp), (A.indices, np.intp), (A.data, np.float64)):
        found.append(array.astype(dtype, copy=False).view())
        found[-1].flags.writeable = False
    return tuple(found)


class Columns:
    """Centers C (m, n), CSR, by inputs: an entry of a sample meets the few of its column."""

    def __init__(self, C: Any) -> None:
        self.shape, self._own = C.shape, _entries(C.tocsc())
        self.nbytes = sum(array.nbytes for array in self._own)

    def __len__(self) -> int:
        return self.shape[0]

    def products(self, A: Any, out: np.ndarray) -> None:
        """Write A Cᵀ (N, m), for A (N, n) CSR; on the thread that calls."""

        out[:] = 0
        kernels.add_products(*_entries(A), *self._own, out)


def _multiply(A: Any, B: Any, out: np.ndarray) -> None:
    def task(rows: slice) -> None:
        if isinstance(B, Columns):
            B.products(A[rows], out[rows])
        else:
            out[rows] = A[rows] @ B.T

    parallel_rows(task, A.shape[0], _ROWS)


def _centers(C: Any) -> Any:
    """C (m, n), in memory by inputs: an entry of a sample meets its column of all centers."""
    return np.ascontiguousarray(C.T).T


_PRODUCT = Gemm(
    "float64", np.float64, np.float64, np.float64, 0, 0, _multiply, _centers, centered=False
)


def _squares(A: Any, power: int, dtype: Any) -> np.ndarray:
    """Squared norms of rows, which nothing is taken off; dense ones are not copied."""
    if sp.issparse(A):
        return np.asarray(A.power(power).sum(axis=1), dtype).ravel()
    return np.einsum("ij,ij->i", A, A, dtype=dtype)


class SparseProductLayer(MatrixProductLayer):
    """Samples are CSR, products dense, and centers (m, n) as `sparse_or_dense` has them.

    For numbers, not codes, of any metric but Manhattan.
    """

    def __init__(self, C: Any, activation: Activation, dtype: Any) -> None:
        super().__init__(_PRODUCT, lambda H: H.T @ H, C, activation, dtype, None)
        if sp.issparse(self.distance.centers):
            self.distance = self.distance._replace(centers=Columns(self.distance.centers))

    def moved(
        self,
        product: Gemm,
        A: Any,
        shift: Any,
        dtype: Any,
        coefficients: Coefficients,
        terms_dtype: Any,
    ) -> tuple[Any, np.ndarray]:
        """A, from which nothing is taken, as the product reads it, and the terms of its rows."""
        A = A.astype(dtype, copy=False)
        terms = evaluate(coefficients, A, _squares, np.float64)
        return A if sp.issparse(A) else product.pack(A), terms
