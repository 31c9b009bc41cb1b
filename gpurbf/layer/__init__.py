"""The hidden layer: H[i, j] = phi(d(x_i, c_j)), whole or consumed tile by tile.

layer.py       HiddenLayer: hands samples, as codes or numbers, to a backend
__init__.py    `Layer`: what center rules, solvers and kernel rows ask of a hidden layer
activation.py  metrics and profiles;  distance.py  distances out of products
gamma.py       the kernel's scale from the data
sparse.py      CSR samples: rows with few entries, and layers too wide to be made dense
backends/      the switch, and a folder a family: numba/ (tiles), blas/ (matrix products), cuda/
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any, Protocol

import numpy as np


class Layer(Protocol):
    """H[i, j] = phi(d(x_i, c_j)) of samples x and m centers c, whole or consumed tile by tile.

    Samples X (N, n) are whatever the layer was made for: arrays, CSR, row numbers of known
    distances. ``centers`` (m, …) are its centers, ``dtype`` is that of the activations and ``xp``
    the library of the arrays that it computes with. Inside ``allocator()`` arrays of that
    library count against its memory budget, of which ``free_bytes()`` are left. What is not said
    by a class of this base is what plain arrays of NumPy need.
    """

    centers: Any
    dtype: np.dtype

    @property
    def xp(self) -> ModuleType:
        """NumPy, or the library of a device."""
        return np

    def allocator(self) -> AbstractContextManager[None]:
        """A context for work with `xp`."""
        return nullcontext()

    def free_bytes(self) -> float:
        """Bytes of memory that are left for such work; infinite where nobody counts."""
        return math.inf

    @property
    def sparse_centers(self) -> Any:
        """The centers as samples: CSR if their rows are wide and their entries few, else dense."""
        return self.centers

    @property
    def precision(self) -> str:
        """The precision that the user chose; a forced one stays, whatever rounding does."""
        return "auto"

    @property
    def exact_sums(self) -> bool:
        """Whether `gram` takes a grid, on which its sums are exact."""
        return False

    def in_float64(self) -> Layer:
        """This layer with activations in float64."""

    def activations(self, X: Any, out: Any = None) -> Any:
        """H, shape (N, m), in `dtype`; into ``out``, an array of that shape, if given."""

    def matvec(self, X: Any, W: Any) -> Any:
        """H @ W, shape (N, k), for W (m, k); H is not stored."""

    def gram(
        self,
        X: Any,
        T: Any,
        weights: Any = None,
        mean: Any = None,
        out: tuple[Any, Any] | None = None,
        grid: Any = None,
    ) -> tuple[Any, Any]:
        """Weighted HᵀH (m, m) and HᵀT (m, k), float64, of H less ``mean``, added to ``out``.

        Where the first array of ``out`` is None, HᵀT alone is wanted; on a CPU its lower triangle
        is what is added to. On a ``grid`` (`numba.gram.Grid`) the sums are exact, of H rounded to
        it.
        """


def activations(layer: Layer, X: Any) -> Any:
    """H of some rows as an array of the layer's library, to be used where it is."""
    H = layer.xp.empty((X.shape[0], len(layer.centers)), layer.dtype)
    return layer.activations(X, H)
