"""KernelMatrix: the protocol of kernel values for SVC's solver, and its part for one pair."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from gpurbf.svm.cuda_rounds import Rounds
from gpurbf.svm.smo import mirror_rows, part_rows, pick, subtract_rows


class KernelMatrix(Protocol):
    """K[i, j] between all N samples in the solver's order: class by class.

    ``diagonal`` (N,) is float64. Where ``matrix`` is not None, it is all of K and nothing else is
    asked; otherwise values are evaluated block by block, in `dtype`, by a backend whose arrays are
    those of the library `xp` (NumPy or a device's) and count against its memory in ``allocator()``.

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

    def allocator(self) -> AbstractContextManager[None]:
        """A context for work with `xp`."""

    def free_bytes(self) -> float:
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


def joined(a: slice, b: slice) -> np.ndarray:
    """The samples of two classes; several times faster than np.r_, for small problems' sake."""
    return np.concatenate([np.arange(a.start, a.stop), np.arange(b.start, b.stop)])


class MatrixPair:
    """Kernel of a pair as a part of a ready matrix K (N, N) in the solver's order.

    What was rounded to make it is asked for in full of the ``kernel`` that it was made of, if one
    is given.
    """

    def __init__(
        self,
        K: np.ndarray,
        diagonal: np.ndarray,
        a: slice,
        b: slice,
        kernel: KernelMatrix | None = None,
    ) -> None:
        self.K, self.a, self.b, self.kernel = K, a, b, kernel
        self.rounding = 0.0 if kernel is None else kernel.rounding
        self.samples = joined(a, b)
        self.diagonal = diagonal[self.samples]

    def block(self, members: np.ndarray, fresh: slice, wide: bool = False) -> np.ndarray:
        """K[members][:, members]."""
        samples = self.samples[members]
        if wide and self.kernel is not None:
            return self.kernel.between(samples)
        return self.K[np.ix_(samples, samples)]

    def whole(self) -> MatrixPair:
        """The same, for it is ready."""
        return self

    def rows(self) -> Any:
        """Its rows as :func:`solve_block` takes them."""
        return part_rows(self.K, self.a, self.b)

    def subtract(
        self, members: np.ndarray, change: np.ndarray, f: np.ndarray, wide: bool = False
    ) -> None:
        """``f -= change @ K[members]``, in float64 past the matrix if it is to be wide."""
        n_a, slots = self.a.stop - self.a.start, self.samples[members]
        if wide and self.kernel is not None:
            f -= self.kernel.weighted(self.kernel.gathered(self.samples), slots, change, wide)
            return
        subtract_rows(self.K, slots, change, f[:n_a], self.a.start)
        subtract_rows(self.K, slots, change, f[n_a:], self.b.start)


class WorkingBlock:
    """K between the members of a working set, float32; evaluated, which is faster than gathering.

    It changes in place: members that stay from one set to the next are not evaluated again.
    """

    def __init__(self, kernel: KernelMatrix, samples: np.ndarray) -> None:
        self.kernel, self.samples = kernel, samples
        self._K = np.empty((0, 0), np.float32)
        self._columns: Any = None

    def of(self, members: np.ndarray, fresh: slice, wide: bool = False) -> np.ndarray:
        """K[members][:, members], valid until the next call, of whose members all but some stay.

        In float64 if it is to be wide, and so are the next ones then.
        """
        n, samples = len(members), pick(self.samples, members)
        if wide:
            return self.kernel.between(samples)
        if len(self._K) != n:
            self._K, fresh = np.empty((n, n), np.float32), slice(0, n)
        self._columns = self.kernel.over(samples, self._columns, fresh)
        self.kernel.values(samples[fresh], self._columns, self._K[fresh])
        mirror_rows(self._K, fresh)
        return self._K
