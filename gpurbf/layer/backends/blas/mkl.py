"""The `mkl` backend: Intel's products called through ctypes, one Numba pass for the rest.

MKL comes as a wheel (``libmkl_rt``), in conda's prefix or from the system. It is for CPUs that are
too old for the package's own kernels; these have no fast products of 8-bit integers or bfloat16.
"""

from __future__ import annotations

import ctypes.util
import functools
import importlib.metadata
import sys
from contextlib import suppress
from ctypes import c_double, c_float
from pathlib import Path
from typing import Any

import numpy as np

from gpurbf.layer.backends import Backend
from gpurbf.layer.backends.blas import numpy_
from gpurbf.layer.backends.blas.matmul import Gemm, backend_by_products
from gpurbf.runtime.blas_threads import look_again
from gpurbf.runtime.errors import BackendUnavailable

_ROW_MAJOR, _NO_TRANSPOSE, _TRANSPOSE, _LOWER = 101, 111, 112, 122


def _library_paths() -> list[str]:
    """Where libmkl_rt may be: the wheel, conda's prefix, the system."""
    found = []
    with suppress(importlib.metadata.PackageNotFoundError):
        files = importlib.metadata.files("mkl") or []
        found += [str(f.locate()) for f in files if f.name.startswith(("libmkl_rt", "mkl_rt"))]
    for folder in (Path(sys.prefix, "lib"), Path(sys.prefix, "Library", "bin")):
        found += sorted(str(path) for path in folder.glob("*mkl_rt*"))
    if system := ctypes.util.find_library("mkl_rt"):
        found.append(system)
    return found


@functools.cache
def _library() -> ctypes.CDLL:
    for path in _library_paths():
        with suppress(OSError):
            library = ctypes.CDLL(path)
            # The _64 symbols take 64-bit integers whatever MKL_INTERFACE_LAYER says.
            if hasattr(library, "cblas_sgemm_64"):
                return library
    raise BackendUnavailable(
        'no MKL: in a copy of gpurbf, pip install ".[mkl]" (x86-64 Linux, Windows), or use "numpy"'
    )


def _call(symbol: str, *arguments: Any) -> None:
    """Call a function of MKL: integers have 64 bits, and arrays are given by their addresses."""

    def word(a: Any) -> Any:
        if isinstance(a, np.ndarray):
            return ctypes.c_void_p(a.ctypes.data)
        return ctypes.c_int64(a) if isinstance(a, int) else a

    getattr(_library(), symbol)(*map(word, arguments))


def _typed(name: str, dtype: np.dtype) -> tuple[str, Any]:
    """The function of CBLAS for a dtype, and the type of its scalars."""
    letter, scalar = ("s", c_float) if dtype == np.float32 else ("d", c_double)
    return f"cblas_{letter}{name}_64", scalar


def _multiply(A: np.ndarray, B: np.ndarray, out: np.ndarray) -> None:
    """Write A Bᵀ, all three C-contiguous, by cblas_?gemm."""
    (N, n), m = A.shape, len(B)
    if not (N and m and n):
        out[:] = 0
        return
    symbol, scalar = _typed("gemm", out.dtype)
    order = _ROW_MAJOR, _NO_TRANSPOSE, _TRANSPOSE
    _call(symbol, *order, N, m, n, scalar(1), A, n, B, n, scalar(0), out, m)


def _gram(H: np.ndarray) -> np.ndarray:
    """The lower triangle of HᵀH, by cblas_?syrk, and zeros."""
    N, m = H.shape
    G = np.zeros((m, m), H.dtype)
    if N and m:
        symbol, scalar = _typed("syrk", H.dtype)
        order = _ROW_MAJOR, _LOWER, _TRANSPOSE
        _call(symbol, *order, m, N, scalar(1), H, m, scalar(0), G, m)
    return G


def products(dtype: np.dtype, n: int, quantization: bool) -> Gemm:
    """The product that `numpy` takes, by MKL."""
    return numpy_.products(dtype, n, quantization)._replace(multiply=_multiply, square=_gram)


def load() -> Backend:
    """The backend, or BackendUnavailable with the install line."""
    _library()
    look_again()
    return backend_by_products("mkl", "sgemm/dgemm of MKL", products)
