"""Rows of H kept on the host for products with a few vectors, in 16 bits or as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from gpurbf._stages import count, stage
from gpurbf.backends import cpu
from gpurbf.backends.threads import parallel_for

__all__ = ["Kept"]

# Rows, and columns, that a thread takes at a time.
_ROWS, _COLUMNS = 64, 1024


class Kept:
    """H (N, m) less a shift, in blocks of rows that are given one by one.

    Parameters
    ----------
    shift : ndarray of shape (m,)
        What every row loses before it is kept.
    step : float or None
        Rows are kept as the nearest multiples of it in 16 bits; None: in their own dtype.
    triangle : bool, default=False
        H is symmetric: of a block of rows the columns up to its last row are kept.
    """

    def __init__(self, shift: np.ndarray, step: float | None, triangle: bool = False) -> None:
        self.shift, self.step, self.triangle = shift, step, triangle
        self.blocks: list[np.ndarray] = []
        self.n_rows = 0

    @property
    def nbytes(self) -> int:
        """Memory that the rows take."""
        return sum(block.nbytes for block in self.blocks)

    def add(self, H: np.ndarray) -> bool:
        """Keep the next rows H (b, m); whether 16 bits hold them."""
        from gpurbf.kernels import kept

        width = self.n_rows + len(H) if self.triangle else H.shape[1]
        shift = self.shift[:width].astype(H.dtype)
        if self.step is None:
            Q, largest = H[:, :width] - shift, np.zeros(1)
        else:
            Q, step = np.empty((len(H), width), np.int16), self.step
            largest = np.zeros(-(-len(H) // _ROWS))

            def task(i: int) -> None:
                rows = i * _ROWS, min((i + 1) * _ROWS, len(H))
                largest[i] = kept.round_rows(*rows, H, shift, step, Q)

            parallel_for(task, len(largest))
        self.blocks.append(Q)
        self.n_rows += len(H)
        return bool(largest.max(initial=0) < kept.LARGEST + 0.5)

    def times(self, V: np.ndarray) -> np.ndarray:
        """(H - shift) V, shape (N, k), for V (m, k)."""
        from gpurbf.kernels import kept, packing, products
        from gpurbf.kernels.scores import PARTS

        (m, k), S = V.shape, np.zeros((self.n_rows, V.shape[1]))
        some, single = (
            cpu.micro_kernel("partial", np.float64),
            cpu.micro_kernel("single", np.float64),
        )
        size = products.padded(k, some.strip), products.padded(m, PARTS)
        W = packing.aligned(size, np.float64)
        W[:k, :m], W[k:], W[:, m:] = V.T, 0, 0
        pieces = [(at, Q, i) for at, Q in self._places() for i in range(0, len(Q), _ROWS)]

        def task(n: int) -> None:
            top, Q, i = pieces[n]
            own = S[top : top + len(Q)]
            kept.add_times(i, min(i + _ROWS, len(Q)), Q, W, k, some, single, own)

        self._run(task, len(pieces), k)
        return self._in_units(S)

    def transposed(self, U: np.ndarray) -> np.ndarray:
        """(H - shift)ᵀ U, shape (m, k), for U (N, k)."""
        from gpurbf.kernels import kept

        k, Z = U.shape[1], np.zeros((U.shape[1], len(self.shift)))
        kernel = cpu.micro_kernel("score", np.float64)
        places = [(at, Q, _blocks(U[at : at + len(Q)], kernel.rows)) for at, Q in self._places()]

        def task(n: int) -> None:
            left = n * _COLUMNS
            for top, Q, own in places:
                # Of a triangle the square on the diagonal has been met by its rows.
                right = min(left + _COLUMNS, top if self.triangle else Q.shape[1])
                if left < right:
                    kept.add_transposed(left, right, Q, own, k, kernel, Z)

        self._run(task, -(-Z.shape[1] // _COLUMNS), k)
        return self._in_units(Z.T)

    def symmetric(self, V: np.ndarray) -> np.ndarray:
        """(H - shift) V of the triangle of a symmetric H."""
        S = self.times(V)
        S += self.transposed(V)
        return S

    def squares(self) -> np.ndarray:
        """The sum of squares of every row of H - shift, (N,)."""
        from gpurbf.kernels import kept

        sums = np.zeros(self.n_rows)
        places = list(self._places())

        def task(n: int) -> None:
            top, Q = places[n]
            kept.add_squares(0, len(Q), Q, sums[top : top + len(Q)])

        parallel_for(task, len(places))
        return sums if self.step is None else sums * self.step**2

    def columns(self, which: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
        """Those columns of H - shift in float64, block by block."""
        for top, Q in self._places():
            yield slice(top, top + len(Q)), self._in_units(Q[:, which].astype(np.float64))

    def _places(self) -> Iterator[tuple[int, np.ndarray]]:
        top = 0
        for Q in self.blocks:
            yield top, Q
            top += len(Q)

    def _in_units(self, A: np.ndarray) -> np.ndarray:
        if self.step is not None:
            A *= self.step
        return A

    def _run(self, task: Callable[[int], None], n_tasks: int, k: int) -> None:
        with stage("output training", "products"):
            parallel_for(task, n_tasks)
            size = sum(block.size for block in self.blocks)
            count(operations=2 * size * k, kind="float64", nbytes=self.nbytes)


def _blocks(U: np.ndarray, multiple: int) -> np.ndarray:
    """U (N, k) as blocks (·, k', BLOCK) of its rows, transposed; zeros beyond N and k."""
    from gpurbf.kernels.tiles import BLOCK

    (N, k), n_blocks = U.shape, -(-len(U) // BLOCK)
    blocks = np.zeros((n_blocks, -(-k // multiple) * multiple, BLOCK))
    padded = np.zeros((n_blocks * BLOCK, k))
    padded[:N] = U
    blocks[:, :k] = padded.reshape(n_blocks, BLOCK, k).transpose(0, 2, 1)
    return blocks
