"""The kernel of a pair as a part of a ready matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gpurbf.backends.loops_smo import part_rows, subtract_rows

if TYPE_CHECKING:
    from gpurbf.network.solvers.smo.kernel import Kernel

__all__ = ["MatrixPair", "joined"]


def joined(a: slice, b: slice) -> np.ndarray:
    """The samples of two classes; several times faster than np.r_, for small problems' sake."""
    return np.concatenate([np.arange(a.start, a.stop), np.arange(b.start, b.stop)])


class MatrixPair:
    """Kernel of a pair as a part of a ready matrix K (N, N) in the solver's order.

    What was rounded to make it is asked for in full of the ``kernel`` that it was made of, if one
    is given.
    """

    def __init__(
        self, K: np.ndarray, diagonal: np.ndarray, a: slice, b: slice, kernel: Kernel | None = None
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
