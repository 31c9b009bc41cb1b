"""Quantization: detects data that are scaled small integers, and gives their 8-bit codes."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from gpurbf.data.row_blocks import rows_of_tile
from gpurbf.runtime.lazy import lazy_module
from gpurbf.runtime.threads import parallel_rows

kernels = lazy_module("gpurbf.data._kernels")


class Quantization(NamedTuple):
    """Quantized data are ``(code - zero_point) / denominator``, codes 0..255 kept as uint8."""

    denominator: float
    zero_point: int


# Pixels come as integers, or divided by 255, by 256 or by a smaller power of two.
DENOMINATORS = (1.0, 255.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
# The zero points of bytes, whose denominator is 1.
_ZERO_POINTS = {np.dtype(np.uint8): 0, np.dtype(np.int8): 128}
# Maximum error of a multiple, as a fraction of a step: more than rounding of the largest one.
_NEAR = 1e-3
_SAMPLE = 16384


def encode(X: np.ndarray, quantization: Quantization) -> tuple[np.ndarray, np.ndarray]:
    """The uint8 codes of X (N, n), and which rows (N,) are not quantized.

    A row is quantized if each of its values is that of its code, ``k / q`` or ``k * (1 / q)`` (the
    two usual ways to rescale pixels), rounded to X's dtype; or to float32 for all of
    them, as in float32 data that have been converted to float64. The codes of other rows have no
    meaning.
    """
    if quantization == (1.0, _ZERO_POINTS.get(X.dtype)):
        codes = X if X.dtype == np.uint8 else X.view(np.uint8) ^ np.uint8(128)
        return codes, np.zeros(len(X), bool)

    if X.dtype not in (np.float32, np.float64):
        X = X.astype(np.float64)
    # One block of memory, and cached scales: asking NumPy for an address takes as long as encoding
    # a small row.
    (N, n), memory = X.shape, np.ones(X.size + len(X), np.uint8)
    codes, off, address = memory[: X.size].reshape(N, n), memory[X.size :], memory.ctypes.data

    def tile(part: slice) -> None:
        rows, i = np.ascontiguousarray(X[part]), part.start
        to = address + i * n, address + N * n + i
        for kind in dict.fromkeys((X.dtype, np.dtype(np.float32))):
            write, scale, _held = _encoding(quantization, X.dtype, kind)
            write(rows.ctypes.data, len(rows), n, scale, *to)
            if not np.count_nonzero(off[part]):  # a quarter of the time of `any`, for a row
                break

    parallel_rows(tile, N, rows_of_tile(X.itemsize * n))
    return codes, off.view(bool)


@functools.lru_cache
def _encoding(quantization: Quantization, dtype: np.dtype, kind: np.dtype) -> tuple[Any, ...]:
    """The function that encodes rows of a dtype, the address of its scale, and the scale."""
    q, zero = quantization
    scale = np.array([q, 1 / q, zero], kind)
    return kernels.encoding_of(dtype, kind).ctypes, scale.ctypes.data, scale


def sample_of(X: Any) -> np.ndarray:
    """Some rows of X (N, n), dense or CSR, evenly spaced: they tell which quantizations to try."""
    rows = max(1, _SAMPLE // max(1, X.shape[1]))
    some = X[:: max(1, X.shape[0] // rows)][:rows]
    return np.ascontiguousarray(some.toarray() if sp.issparse(some) else some)


def candidates(X: Any) -> list[Quantization]:
    """The quantizations that a sample of X allows, coarsest first; not checked on all of X."""
    if X.dtype in _ZERO_POINTS:
        return [Quantization(1.0, _ZERO_POINTS[X.dtype])]
    sample = sample_of(X)
    # Most are told apart by the first row, which has to be multiples of 1 / q.
    with np.errstate(over="ignore", invalid="ignore"):
        multiples = np.multiply.outer(DENOMINATORS, sample[:1].astype(np.float64))
        near = (np.abs(multiples - np.rint(multiples)) <= _NEAR).all(axis=(1, 2))
        ends = np.rint(np.outer(DENOMINATORS, (sample.min(initial=0), sample.max(initial=0))))
    # The kernel for rows that were float32 is compiled only for data that fit into bytes.
    likely = (
        Quantization(q, zero)
        for q, close, (low, high) in zip(DENOMINATORS, near, ends)
        for zero in (0, 128)
        if close and -zero <= low and high <= 255 - zero
    )
    return [quantization for quantization in likely if not encode(sample, quantization)[1].any()]
