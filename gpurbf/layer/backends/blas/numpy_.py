"""The `numpy` backend: NumPy's own BLAS for the products, one Numba pass for the rest."""

from __future__ import annotations

import numpy as np

from gpurbf.layer.backends import Backend
from gpurbf.layer.backends.blas.matmul import Gemm, backend_by_products

# float32 holds every integer up to 2²⁴, so up to here sums of products are exact in any order.
FLOAT32_FEATURES = 2**24 // 128**2


def _multiply(A: np.ndarray, B: np.ndarray, out: np.ndarray) -> None:
    np.matmul(A, B.T, out=out)


FLOAT32 = Gemm("float32", np.float32, np.float32, 128, _multiply)
FLOAT64 = Gemm("float64", np.float64, np.float64, 128, _multiply)


def products(dtype: np.dtype, n: int, quantization: bool) -> Gemm:
    """sgemm if it is exact or float32 is requested, dgemm otherwise."""
    if quantization:
        return FLOAT32 if n <= FLOAT32_FEATURES else FLOAT64
    return FLOAT32 if dtype == np.float32 else FLOAT64


def load() -> Backend:
    """The backend; it is always available."""
    return backend_by_products("numpy", "sgemm/dgemm of NumPy's BLAS", products)
