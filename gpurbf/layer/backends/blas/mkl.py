"""The `mkl` backend: Intel's products called through ctypes, one Numba pass for the rest.

MKL comes as a wheel (``libmkl_rt``), in conda's prefix or from the system. For quantized data, its
8-bit (u8·s8 → s32) and bf16 products may be several times faster than float32, or slower, depending
on the processor. So they are timed against each other once per process.
"""

from __future__ import annotations

import ctypes.util
import functools
import importlib.metadata
import os
import sys
import timeit
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from gpurbf.layer.backends import Backend
from gpurbf.layer.backends.blas.matmul import Gemm, backend_by_products, shifted
from gpurbf.layer.backends.blas.numpy_ import FLOAT32, FLOAT32_FEATURES, FLOAT64
from gpurbf.runtime.blas_threads import look_again
from gpurbf.runtime.errors import BackendUnavailable

_ROW_MAJOR, _NO_TRANSPOSE, _TRANSPOSE, _LOWER, _OFFSET_FIX = 101, 111, 112, 122, 173
# Sums of n products of at most 255 * 128 must stay below 2³¹.
_INT32_FEATURES = 65_793


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
        "no MKL found: pip install mkl (x86-64 Linux and Windows), or use backend='numpy'"
    )


def _call(symbol: str, *arguments: Any) -> None:
    """Call a function of MKL: integers have 64 bits, and arrays are given by their addresses."""

    def word(a: Any) -> Any:
        if isinstance(a, np.ndarray):
            return ctypes.c_void_p(a.ctypes.data)
        return ctypes.c_int64(a) if isinstance(a, int) else a

    getattr(_library(), symbol)(*map(word, arguments))


def _gemm(
    symbol: str, scalar: Any, fix: Any = (), zero: Any = (), offset: Any = ()
) -> Callable[[Any, Any, Any], None]:
    """cblas_?gemm for A Bᵀ, all three C-contiguous.

    A product of integers takes a flag, and the offsets of A, B and the result, too.
    """

    def multiply(A: np.ndarray, B: np.ndarray, out: np.ndarray) -> None:
        (N, n), m = A.shape, len(B)
        if not (N and m and n):
            out[:] = 0
            return
        _call(
            symbol, _ROW_MAJOR, _NO_TRANSPOSE, _TRANSPOSE, *fix, N, m, n,
            scalar(1), A, n, *zero, B, n, *zero, scalar(0), out, m, *offset,
        )  # fmt: skip

    return multiply


def _gram(H: np.ndarray) -> np.ndarray:
    """The lower triangle of HᵀH, by cblas_?syrk, and zeros."""
    N, m = H.shape
    single = H.dtype == np.float32
    scalar: Any = ctypes.c_float if single else ctypes.c_double
    G = np.zeros((m, m), H.dtype)
    if N and m:
        symbol = "cblas_ssyrk_64" if single else "cblas_dsyrk_64"
        order = _ROW_MAJOR, _LOWER, _TRANSPOSE
        _call(symbol, *order, m, N, scalar(1), H, m, scalar(0), G, m)
    return G


def _bf16(A: np.ndarray) -> np.ndarray:
    """The upper half of float32: exact for integers up to 256."""
    return (A.view(np.uint32) >> 16).astype(np.uint16)


def _bf16_products() -> Callable[[Any, Any, Any], None]:
    """The product of bf16 operands; after a fork it uses float32, with the same integer results.

    With MKL's threads set to one (threads.py), all other products work in a forked child. This one
    asks OpenMP for as many threads as there were in the parent, and waits.
    """
    process = os.getpid()
    narrow = _gemm("cblas_gemm_bf16bf16f32_64", ctypes.c_float)
    wide = _gemm("cblas_sgemm_64", ctypes.c_float)

    def multiply(A: np.ndarray, B: np.ndarray, out: np.ndarray) -> None:
        if os.getpid() == process:
            narrow(A, B, out)
        else:
            A, B = ((half.astype(np.uint32) << 16).view(np.float32) for half in (A, B))
            wide(A, B, out)

    return multiply


_OFFSETS = [_OFFSET_FIX], [ctypes.c_int8(0)], [np.zeros(1, np.int32)]
integer_products = _gemm("cblas_gemm_s8u8s32_64", ctypes.c_float, *_OFFSETS)


@functools.cache
def _products() -> dict[str, Gemm]:
    sgemm, dgemm = _gemm("cblas_sgemm_64", ctypes.c_float), _gemm("cblas_dgemm_64", ctypes.c_double)
    single = FLOAT32._replace(multiply=sgemm)
    products = {
        "sgemm": single,
        "dgemm": FLOAT64._replace(multiply=dgemm),
        "bf16": single._replace(arithmetic="bfloat16", multiply=_bf16_products(), pack=_bf16),
        "u8s8": Gemm("8-bit products", np.uint8, np.int8, np.int32, 0, 128, integer_products),
    }
    return {name: product._replace(square=_gram) for name, product in products.items()}


@functools.cache
def quantization_rates() -> dict[str, float]:
    """Operations a second of the products that can be exact on codes; takes 0.05 s per process."""
    rng = np.random.default_rng(0)
    X, C = (rng.integers(0, 256, (512, 768)).astype(np.uint8) for _ in range(2))
    rates = {}
    for name in ("sgemm", "bf16", "u8s8"):
        product = _products()[name]
        A = product.pack(shifted(X, product.x_shift, product.x_dtype))
        B = product.pack(shifted(C, product.c_shift, product.c_dtype))
        out = np.empty((len(X), len(C)), product.out_dtype)
        multiply = functools.partial(product.multiply, A, B, out)
        rates[name] = 2 * X.size * len(C) / min(timeit.repeat(multiply, number=1, repeat=4))
    return rates


def products(dtype: np.dtype, n: int, quantization: bool) -> Gemm:
    """The fastest product on this machine that loses no digits of such data."""
    table = _products()
    if not quantization:
        return table["sgemm" if dtype == np.float32 else "dgemm"]
    exact = {"u8s8"} if n <= _INT32_FEATURES else set()
    if n <= FLOAT32_FEATURES:
        exact |= {"sgemm", "bf16"}
    rates = quantization_rates()
    return table[max(exact, key=rates.__getitem__)] if exact else table["dgemm"]


def load() -> Backend:
    """The backend, or BackendUnavailable with the install line."""
    _library()
    look_again()
    rates = quantization_rates()
    said = ", ".join(f"{name} {rate / 1e12:.2f}" for name, rate in sorted(rates.items()))
    best = max(rates, key=rates.__getitem__)
    kernel = f"MKL: {best} for quantized data (measured TOPS: {said}), else sgemm/dgemm"
    return backend_by_products("mkl", kernel, products)
