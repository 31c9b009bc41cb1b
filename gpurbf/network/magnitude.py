"""Magnitudes of data: whether a dtype holds the squares that distances are made of."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["BOUNDED", "holds_squares", "with_room"]

# Profiles that are finite wherever the squared distance is.
BOUNDED = ("gaussian", "laplacian", "triangular", "inverse-multiquadric")


def holds_squares(dtype: Any, *arrays: Any) -> bool:
    """Whether no squared distance between rows of arrays, dense or CSR, overflows or is lost."""
    info, n = np.finfo(dtype), arrays[0].shape[1]
    low, high = float(info.tiny / info.eps), float(info.max) / (4 * n)
    peak = max(_largest(A) for A in arrays)
    return peak == 0 or low < peak * peak < high


def _largest(A: Any) -> float:
    values = A.data if hasattr(A, "indptr") else A
    return max(float(values.max()), -float(values.min())) if values.size else 0.0


def with_room(C: Any) -> Any:
    """The centers, dense or CSR, float32 ones as float64 if float32 does not hold their squares.

    Raises
    ------
    FloatingPointError
        If float64 does not either, or the centers are no numbers.
    """
    if C.dtype == np.float32 and not holds_squares(np.float32, C):
        C = C.astype(np.float64)
    if not holds_squares(np.float64, C):
        raise FloatingPointError("squared distances")
    return C
