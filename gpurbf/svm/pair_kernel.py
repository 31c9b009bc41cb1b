"""The kernel of one pair of classes, as SVC's solver asks for it, from that of all samples."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from gpurbf.runtime.lazy import lazy_module
from gpurbf.runtime.threads import parallel_rows
from gpurbf.svm.kernel_matrix import KernelRows, subtract_rows

working_set_kernels = lazy_module("gpurbf.svm._working_set_kernels")

# Operations of a step per sample: one to find the receiver, seven for the giver, four to update f.
OPERATIONS_PER_VALUE = 12
# Rows of a block that a thread mirrors at a time.
_MIRRORED_ROWS = 64


class EvaluatedPair:
    """Kernel of a pair, class a first, evaluated when it is asked for.

    Only sums are stored, except for the block of a working set. It is kept and changed in place:
    members that stay from one set to the next are not evaluated again. Evaluating the block is
    faster than gathering it from rows. A ``wide`` pair is float64: its blocks are evaluated whole.
    """

    rounds: Any = None  # runs compiled rounds, where rows are kept
    keeping = False

    def __init__(self, kernel: KernelRows, a: slice, b: slice, wide: bool = False) -> None:
        self.kernel, self.a, self.b, self.n_a = kernel, a, b, a.stop - a.start
        self._wide, self.rounding = wide, 0.0 if wide else kernel.rounding
        self.samples = np.concatenate([np.arange(own.start, own.stop) for own in (a, b)])
        self._block = np.empty((0, 0), np.float32)
        self._columns: Any = None

    @functools.cached_property
    def _gathered(self) -> Any:
        return self.kernel.gathered(self.samples)

    @functools.cached_property
    def wide(self) -> EvaluatedPair:
        """This pair's kernel in float64."""
        return EvaluatedPair(self.kernel, self.a, self.b, wide=True)

    def block(self, members: np.ndarray, fresh: slice) -> np.ndarray:
        """K[members][:, members], valid until the next call.

        Fresh members are the first or the last ones; all others are those of the last call, in
        their places.
        """
        n, samples = len(members), self.samples[members]
        if self._wide:
            return self.kernel.between(samples)
        if len(self._block) != n:
            # Steps on rounded values may lead nowhere if nothing looks after the rounding.
            dtype = np.float32 if self.rounding else self.kernel.dtype
            self._block, fresh = np.empty((n, n), dtype), slice(0, n)
        self._columns = self.kernel.over(samples, self._columns, fresh)
        self.kernel.values(samples[fresh], self._columns, self._block[fresh])
        first, last = (fresh.stop, n) if fresh.start == 0 else (0, fresh.start)

        def mirror(rows: slice) -> None:
            ends = first + rows.start, first + rows.stop
            working_set_kernels.mirror_rows(self._block, fresh.start, fresh.stop, *ends)

        parallel_rows(mirror, last - first, _MIRRORED_ROWS)
        return self._block

    def subtract(self, members: np.ndarray, change: np.ndarray, f: np.ndarray) -> None:
        """``f -= change @ K[members]``."""
        f -= self.kernel.weighted(self._gathered, self.samples[members], change, self._wide)


class MatrixPair(EvaluatedPair):
    """Kernel of a pair, class a first, as a part of a ready matrix K of some samples.

    The matrix was made of the ``kernel``. There, class a is from ``first`` and class b from
    ``second`` on.
    """

    def __init__(
        self, K: np.ndarray, first: int, second: int, kernel: Any, a: slice, b: slice
    ) -> None:
        super().__init__(kernel, a, b)
        self.K, self.first, self.second = K, first, second

    def _places(self, members: np.ndarray) -> np.ndarray:
        return members + np.where(members < self.n_a, self.first, self.second - self.n_a)

    def block(self, members: np.ndarray, fresh: slice) -> np.ndarray:
        """K[members][:, members]."""
        places = self._places(members)
        return self.K[np.ix_(places, places)]

    @functools.cached_property
    def rows(self) -> tuple[Any, ...]:
        """The pair's rows; those of a larger K are still to be copied."""
        n, K = len(self.samples), self.K
        if n == len(K):
            return rows_of(K, K)
        return rows_of(np.empty((n, n), K.dtype), K, len(K), self.first, self.n_a, self.second)

    def subtract(self, members: np.ndarray, change: np.ndarray, f: np.ndarray) -> None:
        """``f -= change @ K[members]``."""
        n_a, slots = self.n_a, self._places(members)
        subtract_rows(self.K, slots, change, f[:n_a], self.first)
        subtract_rows(self.K, slots, change, f[n_a:], self.second)


def rows_of(K: np.ndarray, source: np.ndarray, *places: int) -> tuple[Any, ...]:
    """A matrix (n, n) as steps take it, its `_smo_kernels.RowWords`, and arrays to be kept alive.

    It is read-only, so that no kernel is compiled for two types of arrays. By default all its rows
    are there.
    """
    there, K = np.zeros(len(K), np.uint8), K.view()
    K.flags.writeable = False
    words = there.ctypes.data, source.ctypes.data, *(places or (0,) * 4), len(K)
    return K, np.array(words, np.intp), (there, source)
