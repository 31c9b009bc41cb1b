"""Samples as the layers take them: 8-bit codes if they can be quantized, else numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from gpurbf.data.quantize import Quantization, candidates, encode, sample_of
from gpurbf.runtime.arrays import is_resident
from gpurbf.runtime.errors import OutOfRange
from gpurbf.runtime.stages import count, stage
from gpurbf.runtime.threads import parallel_rows

# Precisions with which data are not searched for integers.
FORCED = ("float32", "tf32", "float64")
# Rows of CSR data that are made dense at a time.
_ROWS = 1024
# Dense copies up to this size are always made.
_SMALL = 64 << 20
# Bytes that a thread copies at a time.
_COPIED = 1 << 19


@dataclass(frozen=True)
class Samples:
    """N samples of n inputs: codes quantized, or real numbers.

    ``values`` (N, n) are uint8 codes if quantized, else numbers: dense, or CSR where
    dense ones would take too much memory. ``dtype``, float32 or float64, is that of the numbers
    that codes stand for.
    """

    values: Any
    quantization: Quantization | None
    dtype: np.dtype

    @property
    def shape(self) -> tuple[int, int]:
        """(N, n)."""
        return self.values.shape

    def __len__(self) -> int:
        return self.values.shape[0]

    def __getitem__(self, rows: Any) -> Samples:
        return Samples(rows_of(self.values, rows), self.quantization, self.dtype)

    def numbers(self) -> Any:
        """The samples as numbers; codes are decoded."""
        if self.quantization is None:
            return self.values
        denominator, zero_point = map(self.dtype.type, self.quantization)
        return (self.values.astype(self.dtype) - zero_point) / denominator


def rows_of(X: Any, rows: Any, dtype: Any = None) -> Any:
    """``X[rows]``, in a dtype if given; many numbered rows are copied on all free threads."""
    dtype = np.dtype(dtype or X.dtype)
    numbered = isinstance(rows, np.ndarray) and rows.dtype.kind == "i"
    if not (numbered and isinstance(X, np.ndarray) and X.flags.c_contiguous):
        return X[rows].astype(dtype, copy=False)
    copy = np.empty((len(rows), *X.shape[1:]), dtype)

    def task(part: slice) -> None:
        copy[part] = X.take(rows[part], axis=0)

    parallel_rows(task, len(rows), max(1, _COPIED // max(1, X[:1].nbytes)))
    return copy


def _of(values: Any, quantization: Quantization | None, X: Any) -> Samples:
    return Samples(
        values, quantization, np.dtype(np.float64 if X.dtype == np.float64 else np.float32)
    )


@stage("prepare", "quantize")
def quantize_or_keep(
    X: Any, precision: str = "auto", quantizations: Sequence[Quantization] | None = None
) -> Samples:
    """Samples X (N, n), dense or CSR: codes if one quantization fits all, else numbers.

    Parameters
    ----------
    X : ndarray or CSR
    precision : str, default="auto"
        A forced arithmetic leaves numbers as they are.
    quantizations : sequence of Quantization, optional
        Quantizations to try; by default all that fit a part of the samples.
    """
    sparse = sp.issparse(X)
    searched = precision not in FORCED and 0 not in X.shape and not is_resident(X)
    if searched and not (sparse and _is_large_if_dense(X, 1)):
        if quantizations is None:
            quantizations = candidates(X)
        for quantization in quantizations:
            codes, off = (_encode_sparse if sparse else _encode)(X, quantization)
            if not off.any():
                return _of(codes, quantization, X)
    return _of(X.toarray() if sparse and not _is_large_if_dense(X, 8, _SMALL) else X, None, X)


def _is_large_if_dense(X: Any, itemsize: int, least: int = 0) -> bool:
    """Whether CSR X as dense numbers would take more than `least` bytes and twice its memory."""
    return itemsize * X.shape[0] * X.shape[1] > max(least, 2 * (X.data.nbytes + X.indices.nbytes))


def _encode(X: np.ndarray, quantization: Quantization) -> tuple[np.ndarray, np.ndarray]:
    """`encode` of all samples: a profile counts their bytes."""
    codes, off = encode(X, quantization)
    count(nbytes=0 if codes is X else X.nbytes + codes.nbytes)
    return codes, off


def _encode_sparse(X: Any, quantization: Quantization) -> tuple[np.ndarray, np.ndarray]:
    """`encode` of a CSR matrix up to the first block with rows that are not quantized."""
    codes = np.empty(X.shape, np.uint8)
    for start in range(0, X.shape[0], _ROWS):
        codes[start : start + _ROWS], off = encode(X[start : start + _ROWS].toarray(), quantization)
        if off.any():
            break
    return codes, off


@stage("prepare", "quantize")
def by_row(X: np.ndarray, quantization: Quantization) -> list[tuple[slice | np.ndarray, Samples]]:
    """Split dense rows X into quantized rows, as codes, and the others; each with their places.

    Whether a row is quantized depends on that row alone.
    """
    codes, off = _encode(X, quantization)
    if not off.any():
        return [(slice(0, len(X)), _of(codes, quantization, X))]
    if off.all():
        return [(slice(0, len(X)), _of(X, None, X))]
    on, others = np.flatnonzero(~off), np.flatnonzero(off)
    return [(on, _of(codes[on], quantization, X)), (others, _of(X[others], None, X))]


def quantizations_of(X: Any, precision: str) -> tuple[Quantization, ...] | None:
    """The quantizations that fit a sample of X, coarsest first; None with a forced precision."""
    if precision in FORCED:
        return None
    if 0 in X.shape or is_resident(X):
        return ()
    return tuple(candidates(X))


@stage("prepare", "quantize")
def shared_quantizations(C: Any, X: Any, precision: str) -> list[Quantization]:
    """The quantizations that may fit all centers C (m, n), that of most of some samples X first.

    Empty if there is none, or if none fits any of those samples: it would gain nothing.
    """
    if precision in FORCED or 0 in C.shape or 0 in X.shape or is_resident(X):
        return []
    if C.dtype == X.dtype == np.uint8:  # the samples may be on a cluster: they need not be fetched
        return candidates(C)
    sample = sample_of(X)
    on = {each: int((~encode(sample, each)[1]).sum()) for each in candidates(C)}
    return [each for each in sorted(on, key=on.__getitem__, reverse=True) if on[each]]


# Profiles whose values are finite for every finite squared distance.
BOUNDED = ("gaussian", "laplacian", "triangular", "inverse-multiquadric")


def holds_squares(dtype: Any, *arrays: Any) -> bool:
    """Whether no squared distance between rows of arrays, dense or CSR, overflows or underflows."""
    info, n = np.finfo(dtype), arrays[0].shape[1]
    low, high = float(info.tiny / info.eps), float(info.max) / (4 * n)
    peak = max(_largest(A) for A in arrays)
    return peak == 0 or low < peak * peak < high


def _largest(A: Any) -> float:
    values = A.data if hasattr(A, "indptr") else A
    return max(float(values.max()), -float(values.min())) if values.size else 0.0


def with_room(C: Any) -> Any:
    """The centers, dense or CSR; float32 becomes float64 if it does not hold their squares.

    Raises
    ------
    FloatingPointError
        If float64 does not hold them either, or the centers are not finite.
    """
    if C.dtype == np.float32 and not holds_squares(np.float32, C):
        C = C.astype(np.float64)
    if not holds_squares(np.float64, C):
        raise OutOfRange("squared distances")
    return C
