"""Kernel rows in memory, and the kernel of a pair made of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpurbf.backends.arrays import to_host
from gpurbf.backends.loops_smo import subtract_rows
from gpurbf.network.solvers.smo import slots
from gpurbf.network.solvers.smo.block import WorkingBlock
from gpurbf.network.solvers.smo.kernel import Kernel
from gpurbf.network.solvers.smo.matrix import MatrixPair, joined

__all__ = ["CachedPair", "RowCache"]


class RowCache:
    """Rows of K over the samples of one class, as many as the budget allows.

    A row belongs to a sample of the class itself and is kept for its other pairs, or to one of
    the class that it is paired with now. float32 like LIBSVM's: on a lattice distances are exact
    before, sums are float64 after. Rows stay where they are evaluated, on the host or a device.

    Parameters
    ----------
    kernel : Kernel
    columns : slice
        The class, as a range of samples.
    budget : Budget
    memory : ndarray
        Of the budget's size.
    """

    _samples: np.ndarray

    def __init__(self, kernel: Kernel, columns: slice, budget: slots.Budget, memory: Any) -> None:
        self.kernel, self.columns = kernel, columns
        n = columns.stop - columns.start
        self.slots = slots.Slots(n, budget)
        self.rows = memory[: len(memory) // n * n].reshape(-1, n)

    @property
    def pieces(self) -> list[int]:
        """What it has taken of the budget."""
        return self.slots.pieces

    def pair_with(self, samples: np.ndarray, first: bool) -> None:
        """Members are a pair's samples from now on, the class's first or not; forgets the others.

        Rows of the class's own samples stay.
        """
        self._samples = samples
        self.slots.pair_with(len(samples) - self.slots.n, first)

    def subtract(self, members: np.ndarray, change: np.ndarray, f: np.ndarray) -> None:
        """``f -= change @ K[members]``."""
        start = 0
        while start < len(members):
            places = self._places(members[start:])
            if start + len(places) < len(members):  # sums are of four rows at a time
                places = places[: max(1, len(places) // 4 * 4)]
            part = change[start : start + len(places)]
            subtract_rows(self.rows, places, part, f, xp=self.kernel.xp)
            start += len(places)

    def read(self, members: np.ndarray, out: np.ndarray) -> None:
        """Write K[members] into out."""
        start = 0
        while start < len(members):
            places = self._places(members[start:])
            out[start : start + len(places)] = to_host(self.rows[self.kernel.xp.asarray(places)])
            start += len(places)

    def _places(self, members: np.ndarray) -> np.ndarray:
        """Where the rows of as many of the members, from the first on, as fit are now."""
        places, missing, where = self.slots.place(members)
        if len(missing):
            samples = self._samples[missing]
            if (np.diff(where) == 1).all():
                self.kernel.values(samples, self.columns, self.rows[where[0] : where[-1] + 1])
            else:
                self.kernel.values(samples, self.columns, self.rows, where)
        return places


class CachedPair:
    """Kernel of a pair out of the row caches of its classes."""

    def __init__(self, kernel: Kernel, over_a: RowCache, over_b: RowCache) -> None:
        a, b = over_a.columns, over_b.columns
        self.kernel, self.over_a, self.over_b = kernel, over_a, over_b
        self.n_a, self.n_b = a.stop - a.start, b.stop - b.start
        self.samples = joined(a, b)
        self.diagonal = kernel.diagonal[self.samples]
        self.rounding = kernel.rounding
        over_a.pair_with(self.samples, True)
        over_b.pair_with(self.samples, False)
        self._block = WorkingBlock(kernel, self.samples)

    def block(self, members: np.ndarray, fresh: slice, wide: bool = False) -> np.ndarray:
        """K[members][:, members]."""
        return self._block.of(members, fresh, wide)

    def whole(self) -> MatrixPair:
        """K of all samples, float32."""
        n_a, n = self.n_a, self.n_a + self.n_b
        K = np.empty((n, n), np.float32)
        self.over_a.read(np.arange(n_a), K[:n_a, :n_a])
        self.over_b.read(np.arange(n_a, n), K[n_a:, n_a:])
        across = np.empty((n_a, self.n_b), np.float32)
        self.kernel.values(self.samples[:n_a], self.over_b.columns, across)
        K[:n_a, n_a:] = across
        K[n_a:, :n_a] = across.T
        return MatrixPair(K, self.diagonal, slice(0, n_a), slice(n_a, n))

    def subtract(
        self, members: np.ndarray, change: np.ndarray, f: np.ndarray, wide: bool = False
    ) -> None:
        """``f -= change @ K[members]``, in float64 and past the rows if it is to be wide."""
        if wide:
            rows = self.kernel.gathered(self.samples)
            f -= self.kernel.weighted(rows, self.samples[members], change, wide)
            return
        self.over_a.subtract(members, change, f[: self.n_a])
        self.over_b.subtract(members, change, f[self.n_a :])
