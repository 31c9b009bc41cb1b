"""The kernel of a pair as a part of a ready matrix."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpurbf.backends.loops_smo import part_rows, subtract_rows

__all__ = ["MatrixPair", "joined"]


def joined(a: slice, b: slice) -> np.ndarray:
    """The samples of two classes; several times faster than np.r_, for small problems' sake."""
    return np.concatenate([np.arange(a.start, a.stop), np.arange(b.start, b.stop)])


class MatrixPair:
    """Kernel of a pair as a part of a ready matrix K (N, N) in the solver's order."""

    rounding = 0.0

    def __init__(self, K: np.ndarray, diagonal: np.ndarray, a: slice, b: slice) -> None:
        self.K, self.a, self.b = K, a, b
        self.samples = joined(a, b)
        self.diagonal = diagonal[self.samples]

    def block(self, members: np.ndarray, fresh: slice) -> np.ndarray:
        """K[members][:, members]."""
        samples = self.samples[members]
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
        """``f -= change @ K[members]``."""
        n_a, slots = self.a.stop - self.a.start, self.samples[members]
        subtract_rows(self.K, slots, change, f[:n_a], self.a.start)
        subtract_rows(self.K, slots, change, f[n_a:], self.b.start)
