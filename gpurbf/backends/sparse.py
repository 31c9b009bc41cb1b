"""CSR samples with few entries a row times dense centers: what is zero is not multiplied.

Not a backend to be asked for by name: any backend of the CPU leaves such rows to it. SciPy's
product of a CSR and a dense matrix adds a center's column at a time, so that a row costs entries
times centers; tiles of dense rows cost inputs times centers, forty times as fast. Nothing is
shifted, which would fill the zeros: products and their sums are float64 instead.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from gpurbf.backends import Backend
from gpurbf.backends.epilogue import epilogue
from gpurbf.backends.matmul import Gemm, MatrixProduct
from gpurbf.backends.terms import Coefficients, evaluate
from gpurbf.backends.threads import parallel_for
from gpurbf.backends.weighted import times

__all__ = ["few_entries", "load", "thin"]

# Wide enough to matter, and entries so few that products of them alone are faster: 1/32 of a row.
_WIDE, _DENSER = 1024, 32
_ROWS = 64


def thin(X: Any) -> np.ndarray | None:
    """Which rows (N,) of CSR samples are left to these products; None for any other array.

    Which of the two a row is depends on that row alone.
    """
    if not sp.issparse(X) or X.shape[1] < _WIDE:
        return None
    found: np.ndarray = np.diff(X.indptr) * _DENSER <= X.shape[1]
    return found if found.any() else None


def few_entries(X: Any) -> Any:
    """X (N, n), as CSR if it is a dense array of wide rows whose entries are almost all zero."""
    if not isinstance(X, np.ndarray) or X.shape[1] < _WIDE:
        return X
    return sp.csr_array(X) if np.count_nonzero(X) * _DENSER <= X.size else X


def _multiply(A: Any, B: np.ndarray, out: np.ndarray) -> None:
    def task(i: int) -> None:
        rows = slice(i * _ROWS, (i + 1) * _ROWS)
        out[rows] = A[rows] @ B.T

    parallel_for(task, -(-A.shape[0] // _ROWS))


def _centers(C: np.ndarray) -> np.ndarray:
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


@dataclass(frozen=True)
class _SparseProduct(MatrixProduct):
    """Samples are CSR; centers and all that comes after the product are dense."""

    def _moved(
        self,
        product: Gemm,
        A: Any,
        shift: Any,
        dtype: Any,
        coefficients: Coefficients,
        terms_dtype: Any,
    ) -> tuple[Any, Any]:
        A = A.astype(dtype, copy=False)
        terms = evaluate(np, coefficients, A, _squares, np.float64)
        return A if sp.issparse(A) else product.pack(A), terms


@functools.cache
def load() -> Backend:
    """These products in a backend's form, for operands off the lattice."""
    by_product = _SparseProduct(
        "sparse", np, lambda dtype, n, lattice: _PRODUCT, lambda H: H.T @ H, epilogue, times
    )
    return by_product.backend("SciPy's sparse products")
