"""The hidden layer: H[i, j] = phi(d(x_i, c_j)), whole or consumed tile by tile.

layer.py       HiddenLayer: hands samples, as quantization codes or numbers, to a backend
__init__.py    `Layer`: the interface of a hidden layer for center rules, solvers and kernel rows
activation.py  metrics and profiles;  distance.py  distances from products
gamma.py       the kernel's scale from the data
sparse.py      CSR samples: rows with few entries, and layers too wide to be made dense
backends/      choosing one, and a folder per family: numba/ (tiles), blas/ (matrix products), cuda/
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any, Protocol

import numpy as np


class Layer(Protocol):
    """H[i, j] = phi(d(x_i, c_j)) of samples x and m centers c, whole or consumed tile by tile.

    Samples X (N, n) are of the kind that the layer was made for: arrays, CSR, or row numbers of
    known distances. ``centers`` (m, …) are its centers, ``dtype`` is the dtype of the activations
    and ``xp`` the library of the arrays that it computes with. Inside ``allocator()`` arrays of
    that library count against its memory budget. The defaults of this base class are right for
    plain NumPy arrays.
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

    @property
    def sparse_centers(self) -> Any:
        """The centers as samples: CSR if their rows are wide and their entries few, else dense."""
        return self.centers

    @property
    def precision(self) -> str:
        """The precision that the user chose; a forced one is kept whatever rounding does."""
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
        self, X: Any, T: Any, weights: Any, mean: Any, out: tuple[Any, Any], grid: Any = None
    ) -> None:
        """Weighted HᵀH (m, m) and HᵀT (m, k), float64, of H less ``mean``, added to ``out``.

        If the first array of ``out`` is None, only HᵀT is computed. On a CPU only the lower
        triangle of the first is updated. On a ``grid`` (`numba.gram.Grid`) H is rounded to the
        grid, and the sums are exact.
        """


def activations(layer: Layer, X: Any) -> Any:
    """H of some rows as an array of the layer's library, which stays on its device."""
    return layer.activations(X, layer.xp.empty((X.shape[0], layer.centers.shape[0]), layer.dtype))
