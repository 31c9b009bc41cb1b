"""Arrays on the host (NumPy) or on a GPU: where they are, and copies between the two."""

from __future__ import annotations

from typing import Any

import numpy as np


def is_resident(A: Any) -> bool:
    """Whether an array is in a GPU's memory."""
    return hasattr(A, "__cuda_array_interface__")


def to_host(A: Any) -> Any:
    """The array as a NumPy array: itself, or a copy if it is on a device."""
    return A.get() if is_resident(A) else A


def beside(X: Any, A: Any) -> Any:
    """A on the side of X: a copy on the device if X is there and A is numeric, else A itself."""
    if is_resident(X) and not is_resident(A) and A.dtype.kind in "biuf":
        return library(X).asarray(A)
    return A


def library(A: Any) -> Any:
    """The library of an array: CuPy if it is on a device, else NumPy."""
    if is_resident(A):
        import cupy

        return cupy
    return np


def chosen(values: np.ndarray, places: Any) -> Any:
    """Values at ``places``: on the device if they are there and values are numeric."""
    values, places = beside(places, values), places.astype(np.intp, copy=False)
    return values[places if is_resident(values) else to_host(places)]
