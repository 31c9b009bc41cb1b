"""The kernel of a pair of which nothing is kept: values are weighted and summed in their tile."""

from __future__ import annotations

import numpy as np

from gpurbf.svm.binary import working_set_size
from gpurbf.svm.pair_kernel import KernelMatrix, MatrixPair, WorkingBlock, joined

# Beside a kernel value of no inputs: to read one from memory, to write one there.
_READ, _WRITE = 0.25, 0.5
# The part of a set's rows that the last set left in memory, if one and a half fit; and what is
# found besides where a third of all rows fits, as many as there are support vectors.
_FROM_LAST_SET, _SETS = 0.5, 1.5
_FROM_ALL, _SUPPORT = 0.35, 1 / 3


def recompute(cost: float, n: int, cache_bytes: float) -> bool:
    """Whether evaluating every row again takes less time than keeping rows within a budget.

    Parameters
    ----------
    cost : float
        Of evaluating a value, see :class:`Kernel`.
    n : int
        Samples of the pair, and values of a row.
    cache_bytes : float
    """
    rows = cache_bytes / (4 * n)
    found = _FROM_LAST_SET * min(1.0, rows / (_SETS * working_set_size(n)))
    found += _FROM_ALL * min(1.0, rows / (_SUPPORT * n))
    return cost < _READ + (1 - found) * (cost + _WRITE)


class FusedPair:
    """Kernel of a pair evaluated whenever it is asked for; only sums are stored."""

    def __init__(self, kernel: KernelMatrix, a: slice, b: slice) -> None:
        self.kernel = kernel
        self.samples = joined(a, b)
        self.diagonal = kernel.diagonal[self.samples]
        self.rounding = kernel.rounding
        self._rows = kernel.gathered(self.samples)
        self._block = WorkingBlock(kernel, self.samples)

    def block(self, members: np.ndarray, fresh: slice, wide: bool = False) -> np.ndarray:
        """K[members][:, members]."""
        return self._block.of(members, fresh, wide)

    def whole(self) -> MatrixPair:
        """K of all samples, float32."""
        n = len(self.samples)
        K = np.empty((n, n), np.float32)
        self.kernel.values(self.samples, self.kernel.over(self.samples), K)
        return MatrixPair(K, self.diagonal, slice(0, n), slice(n, n))

    def subtract(
        self, members: np.ndarray, change: np.ndarray, f: np.ndarray, wide: bool = False
    ) -> None:
        """``f -= change @ K[members]``, in float64 if it is to be wide."""
        f -= self.kernel.weighted(self._rows, self.samples[members], change, wide)
