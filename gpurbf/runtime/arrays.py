"""Arrays of NumPy or of a GPU: where they are, and how they are brought to the host."""

from __future__ import annotations

from typing import Any

import numpy as np


def is_resident(A: Any) -> bool:
    """Whether an array is in a GPU's memory."""
    return hasattr(A, "__cuda_array_interface__")


def to_host(A: Any) -> Any:
    """The array as NumPy's: itself, or a copy of what is on a device."""
    return A.get() if is_resident(A) else A


def beside(X: Any, A: Any) -> Any:
    """A where X is: a device's array of numbers if X is on one; what is no number stays NumPy's."""
    if is_resident(X) and not is_resident(A) and A.dtype.kind in "biuf":
        return library(X).asarray(A)
    return A


def library(A: Any) -> Any:
    """The library of an array's kind: CuPy, or NumPy for all that is on the host."""
    if is_resident(A):
        import cupy

        return cupy
    return np


def chosen(values: np.ndarray, places: Any) -> Any:
    """NumPy's values at some places, where these are; values that are no numbers stay NumPy's."""
    values, places = beside(places, values), places.astype(np.intp, copy=False)
    return values[places if is_resident(values) else to_host(places)]


def rows_on_host(X: Any, rows: np.ndarray) -> Any:
    """Some rows of X as NumPy's or CSR: of a device's array only they are copied."""
    return to_host(X[beside(X, rows)])
