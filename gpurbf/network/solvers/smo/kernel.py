"""What SVC's solver asks of a kernel, and what it makes of it for one pair of classes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from gpurbf.backends.device_smo import Rounds
from gpurbf.network.solvers.smo.matrix import MatrixPair

__all__ = ["Kernel", "PairKernel"]


class Kernel(Protocol):
    """K[i, j] between all N samples in the solver's order: class by class.

    ``diagonal`` (N,) is float64. Where ``matrix`` is not None, it is all of K and nothing else is
    asked; otherwise values are evaluated block by block, in `dtype`, by a backend whose arrays are
    those of the library `xp` (NumPy or a device's) and count against its memory in ``working()``.

    ``cost`` is that of evaluating a value, 1 for one of no inputs; a ``linear`` kernel is weighted
    without values. ``rounding`` is the error of a value, root mean square, beside that of exact
    distances: 0 where nobody shall look after it.

    ``compiled`` tells whether values come from compiled kernels of ours, which return at once.

    ``rounds`` makes the `Rounds` that step on the device of `xp`, None where the CPU steps;
    ``description`` is told if there is no memory for them.
    """

    diagonal: np.ndarray
    dtype: np.dtype
    matrix: np.ndarray | None
    xp: ModuleType
    cost: float
    linear: bool
    rounding: float
    compiled: bool
    rounds: Callable[..., Rounds] | None
    description: str

    def over(self, samples: np.ndarray, before: Any = None, fresh: slice | None = None) -> Any:
        """Samples as columns of :meth:`values`.

        ``before`` are columns that are not needed any more, of the same samples but for a slice of
        fresh ones.
        """

    def values(
        self, samples: np.ndarray, columns: Any, out: Any, places: np.ndarray | None = None
    ) -> None:
        """Write K[samples, columns] into ``out``, or into those rows of it.

        A slice of columns is a class; any others are what :meth:`over` gave.
        """

    def gathered(self, samples: np.ndarray) -> Any:
        """The samples as :meth:`weighted` takes them."""

    def weighted(
        self, rows: Any, samples: np.ndarray, weights: np.ndarray, wide: bool = False
    ) -> np.ndarray:
        """K[rows, samples] @ weights of gathered rows, nothing stored; wide: in float64."""

    def between(self, samples: np.ndarray) -> np.ndarray:
        """K[samples][:, samples] in float64."""

    def working(self) -> AbstractContextManager[None]:
        """A context for work with `xp`."""

    def room(self) -> float:
        """Bytes of memory that are left for such work; infinite where nobody counts."""


class PairKernel(Protocol):
    """Kernel of one pair's samples: class a first, then class b."""

    diagonal: np.ndarray
    rounding: float

    def block(self, members: np.ndarray, fresh: slice, wide: bool = False) -> np.ndarray:
        """K[members][:, members], an array that may be kept until the next call.

        All but the fresh members are those of the last call, in their places. In float64 if it is
        to be wide.
        """

    def whole(self) -> MatrixPair:
        """K of all samples, evaluated."""

    def subtract(
        self, members: np.ndarray, change: np.ndarray, f: np.ndarray, wide: bool = False
    ) -> None:
        """``f -= change @ K[members]``, in float64 if it is to be wide."""
