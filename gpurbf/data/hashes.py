"""Hashes of samples by their values alone: equal rows have equal hashes however stored."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp

from gpurbf.data.row_blocks import rows_of_tile
from gpurbf.runtime.lazy import lazy_module
from gpurbf.runtime.threads import parallel_rows

kernels = lazy_module("gpurbf.data._kernels")

# Maximum number of rows that a thread hashes at a time.
_ROWS = 2048


def row_hashes(X: Any, seed: int) -> np.ndarray:
    """A 64-bit hash of each row of X, dense or CSR of any dtype: the same for equal values."""
    odd = _odd_numbers(X.shape[1], seed)
    sums = np.empty(X.shape[0], np.uint64)
    # Bytes and float32 numbers become float64 numbers in the kernel.
    dtype = X.dtype if X.dtype in (np.uint8, np.float32) else np.dtype(np.float64)
    add, factors, to = kernels.sums_of(dtype).ctypes, odd.ctypes.data, sums.ctypes.data

    def tile(rows: slice) -> None:
        if sp.issparse(X):  # as the kernel does: entries that are not stored are 0 and add nothing
            some = X[rows]  # a copy
            some.sum_duplicates()
            bits = (some.data.astype(np.float64) + 0.0).view(np.uint64)
            bits ^= bits >> np.uint64(32)
            sums[rows] = sp.csr_array((bits, some.indices, some.indptr), some.shape) @ odd
            return
        own = np.ascontiguousarray(X[rows], dtype)
        add(own.ctypes.data, *own.shape, factors, to + 8 * rows.start)

    row = -(-X.size // max(1, X.shape[0]))  # the size of CSR is its entries
    parallel_rows(tile, X.shape[0], min(_ROWS, rows_of_tile(dtype.itemsize * row)))
    return mix(sums)


def finder(hashes: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Make a function that finds the places of hashes among these: the first one, -1 for none."""
    order = np.argsort(hashes, kind="stable")

    def find(wanted: np.ndarray) -> np.ndarray:
        found = order[np.searchsorted(hashes, wanted, sorter=order).clip(max=len(order) - 1)]
        return np.where(hashes[found] == wanted, found, -1)

    return find


@functools.lru_cache(maxsize=8)
def _odd_numbers(n: int, seed: int) -> np.ndarray:
    """n odd numbers; cached, as making them takes longer than hashing a hundred samples."""
    return np.random.default_rng(seed).integers(1, 2**63, n, dtype=np.uint64) | np.uint64(1)


def mix(h: np.ndarray) -> np.ndarray:
    """The finish of splitmix64 (Steele, Lea, Flood, 2014): every bit affects every other."""
    with np.errstate(over="ignore"):
        h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return h ^ (h >> np.uint64(31))
