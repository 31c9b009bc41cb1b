"""KernelMatrix: the protocol of kernel values for SVC's solver, and the kernel of one pair."""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any, Protocol

import numpy as np

from gpurbf.runtime.lazy import lazy_module
from gpurbf.runtime.stages import count, stage
from gpurbf.runtime.threads import parallel_for, parallel_rows

smo_kernels = lazy_module("gpurbf.svm._smo_kernels")
working_set_kernels = lazy_module("gpurbf.svm._working_set_kernels")

# Operations of a step per sample: one to find the receiver, seven for the giver, four to update f.
OPERATIONS_PER_VALUE = 12
# Below this many products, one thread is done before a second has started.
_MIN_PRODUCTS_PER_THREAD = 1 << 19
# Rows of a block that are mirrored at a time: fewer are done before a thread has started.
_MIRRORED_ROWS = 512
# Rows that a device converts to float64 at a time.
_DEVICE_ROWS = 512


class KernelMatrix(Protocol):
    """K[i, j] between all N samples in the solver's order: class by class.

    ``diagonal`` (N,) is float64. If ``matrix`` is not None, it is all of K, and no values are asked
    for. Otherwise values are evaluated block by block, in `dtype`, by a backend. Its arrays are
    those of the library `xp` (NumPy or a device's), and in ``allocator()`` they count against its
    memory.

    ``cost`` is that of evaluating a value, 1 for a value without inputs. Weighted sums of a
    ``linear`` kernel are made without values. ``rounding`` is the root mean square error of a value
    compared with exact distances, ``kept_rounding`` that of rows that are kept in float32; 0 if the
    solver need not handle it.

    ``tiles`` are the float32 layers among all samples, if compiled code can evaluate them, else
    None; ``class_layer(columns)`` is the layer of a class.

    ``on_device`` tells whether steps are made on the device of `xp`, not on the CPU;
    ``description`` then says if there is no memory for them.
    """

    diagonal: np.ndarray
    dtype: np.dtype
    matrix: np.ndarray | None
    xp: ModuleType
    cost: float
    linear: bool
    rounding: float
    kept_rounding: float
    tiles: Any
    on_device: bool
    description: str

    def over(self, samples: np.ndarray, before: Any = None, fresh: slice | None = None) -> Any:
        """Samples as columns of :meth:`values`.

        ``before`` are columns that are not needed any more, of the same samples except a slice of
        fresh ones.
        """

    def class_layer(self, columns: slice) -> Any:
        """The layer of a class."""

    def values(
        self, samples: np.ndarray, columns: Any, out: Any, places: np.ndarray | None = None
    ) -> None:
        """Write K[samples, columns] into ``out``, or into its rows ``places``.

        A slice of columns is a class; otherwise columns are a result of :meth:`over`.
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
        """Bytes of memory that are left for such work; infinite if they are not counted."""


class MatrixPair:
    """Kernel of a pair, class a first, as a part of a ready matrix K (N, N) in the solver's order.

    If the matrix was rounded, values in float64 come from the ``kernel`` that it was made of.
    """

    rounds: Any = None  # runs compiled rounds

    def __init__(
        self,
        K: np.ndarray,
        diagonal: np.ndarray,
        a: slice,
        b: slice,
        kernel: KernelMatrix | None = None,
    ) -> None:
        self.K, self.a, self.b = K, a, b
        self.rounding = 0.0 if kernel is None else kernel.rounding
        self.kernel = kernel if self.rounding else None
        self.samples = _joined(a, b)
        self.diagonal = diagonal[self.samples]

    def block(self, members: np.ndarray, fresh: slice, wide: bool = False) -> np.ndarray:
        """K[members][:, members]; in float64 if ``wide``."""
        samples = self.samples[members]
        if wide and self.kernel is not None:
            return self.kernel.between(samples)
        return self.K[np.ix_(samples, samples)]

    @functools.cached_property
    def rows(self) -> tuple[Any, ...]:
        """See `pair_rows`."""
        return pair_rows(self.K, self.a, self.b)

    def subtract(
        self, members: np.ndarray, change: np.ndarray, f: np.ndarray, wide: bool = False
    ) -> None:
        """``f -= change @ K[members]``, if ``wide`` in float64 and without the matrix."""
        n_a, slots = self.a.stop - self.a.start, self.samples[members]
        if wide and self.kernel is not None:
            f -= self.kernel.weighted(self.kernel.gathered(self.samples), slots, change, wide)
            return
        subtract_rows(self.K, slots, change, f[:n_a], self.a.start)
        subtract_rows(self.K, slots, change, f[n_a:], self.b.start)


class EvaluatedPair:
    """Kernel of a pair, class a first, evaluated when it is asked for.

    Only sums are stored, except for the block of a working set. It is kept and changed in place:
    members that stay from one set to the next are not evaluated again. Evaluating the block is
    faster than gathering it from rows.
    """

    rounds: Any = None  # runs compiled rounds, where rows are kept

    def __init__(self, kernel: KernelMatrix, a: slice, b: slice) -> None:
        self.kernel, self.n_a = kernel, a.stop - a.start
        self.samples = _joined(a, b)
        self.diagonal = kernel.diagonal[self.samples]
        self.rounding = kernel.rounding
        self._block = np.empty((0, 0), np.float32)
        self._columns: Any = None

    @functools.cached_property
    def _gathered(self) -> Any:
        return self.kernel.gathered(self.samples)

    def block(self, members: np.ndarray, fresh: slice, wide: bool = False) -> np.ndarray:
        """K[members][:, members], valid until the next call.

        Fresh members are the first or the last ones; all others are those of the last call, in
        their places. In float64 if ``wide``; then all later calls are wide too.
        """
        n, samples = len(members), self.samples[members]
        if wide:
            return self.kernel.between(samples)
        if len(self._block) != n:
            self._block, fresh = np.empty((n, n), np.float32), slice(0, n)
        self._columns = self.kernel.over(samples, self._columns, fresh)
        self.kernel.values(samples[fresh], self._columns, self._block[fresh])
        begin, end = fresh.start, fresh.stop
        kept = 0 if begin else end  # the first row of the members that stay

        def mirror(rows: slice) -> None:
            first, last = kept + rows.start, kept + rows.stop
            working_set_kernels.mirror_rows(self._block, begin, end, first, last)

        parallel_rows(mirror, n - (end - begin), _MIRRORED_ROWS)
        return self._block

    def subtract(
        self, members: np.ndarray, change: np.ndarray, f: np.ndarray, wide: bool = False
    ) -> None:
        """``f -= change @ K[members]``, in float64 if ``wide``."""
        f -= self.kernel.weighted(self._gathered, self.samples[members], change, wide)


def _joined(a: slice, b: slice) -> np.ndarray:
    """The samples of two classes; several times faster than np.r_, for small problems."""
    return np.concatenate([np.arange(a.start, a.stop), np.arange(b.start, b.stop)])


def all_rows(K: np.ndarray) -> tuple[Any, ...]:
    """The fields of `_smo_kernels.Rows` for a matrix (n, n), whose rows are all there."""
    return K, np.empty(0, np.uint8), K, 0, 0, 0


def pair_rows(K: np.ndarray, a: slice, b: slice) -> tuple[Any, ...]:
    """The fields of `_smo_kernels.Rows` for two classes; rows of a larger K are still to be copied.

    A plain tuple, as compiled rounds make it: for a named one `solve_block` is compiled once more.
    """
    n_a = a.stop - a.start
    n = n_a + b.stop - b.start
    whole = n == len(K)
    part = K if whole else np.empty((n, n), K.dtype)
    return part, np.zeros(0 if whole else n, np.uint8), K, a.start, n_a, b.start


def subtract_rows(
    rows: Any,
    slots: np.ndarray,
    change: np.ndarray,
    f: np.ndarray,
    first: int = 0,
    xp: ModuleType = np,
) -> None:
    """``f -= change @ rows[slots, first : first + len(f)]`` on all free threads, in float64.

    If the rows are on a device, of library xp, the sums are made there, and only they are copied.
    """
    if xp is not np:
        total = xp.zeros(len(f))
        there, factors = xp.asarray(slots), xp.asarray(change)
        for start in range(0, len(slots), _DEVICE_ROWS):
            part = slice(start, start + _DEVICE_ROWS)
            total += factors[part] @ rows[there[part]].astype(np.float64)
        f -= total.get()
        return
    n = len(f)
    pairs = n * len(slots)
    n_strips = max(1, min(n // smo_kernels.COLUMNS, pairs // _MIN_PRODUCTS_PER_THREAD))

    def task(i: int) -> None:
        begin, end = n * i // n_strips, n * (i + 1) // n_strips
        smo_kernels.subtract_rows(rows, first, slots, change, f, begin, end)

    with stage("output training", "gradient"):
        if n_strips > 1:
            parallel_for(task, n_strips)
        else:
            task(0)
        count(operations=2 * pairs, kind="float64", nbytes=pairs * rows.itemsize + 2 * f.nbytes)
