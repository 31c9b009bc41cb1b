"""H for products with a few vectors: kept if the memory budget has room for it, else made anew."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from gpurbf.layer.backends.numba import cpu_kernel
from gpurbf.layer.protocol import Layer
from gpurbf.runtime.arrays import to_host
from gpurbf.runtime.config import get_config
from gpurbf.runtime.lazy import lazy_module
from gpurbf.runtime.stages import count, stage
from gpurbf.runtime.threads import parallel_for

matvec_kernels = lazy_module("gpurbf.layer.backends.numba.matvec_kernels")
microkernel_table = lazy_module("gpurbf.layer.backends.numba.microkernel_table")
microkernels = lazy_module("gpurbf.layer.backends.numba.microkernels")
packing = lazy_module("gpurbf.layer.backends.numba.packing")
kernels = lazy_module("gpurbf.solvers.cg._stored_h_kernels")

_MAX_TILE_ROWS = 1024
# Parts of the memory budget that H may take, and a tile of it.
_KEPT_SHARE, _TILE_SHARE = 3 / 4, 1 / 16
# Rows, and columns, that a thread takes at a time.
_ROWS_PER_TASK, _COLUMNS_PER_TASK = 64, 1024


class RecomputedH:
    """H less a shift, computed for every product; see `StoredH`."""

    def __init__(self, layer: Layer, X: Any, shift: np.ndarray) -> None:
        self.layer, self.X, self.shift = layer, X, shift

    def matvec(self, V: np.ndarray) -> np.ndarray:
        """(H - shift) V, shape (N, k), for V (m, k)."""
        return to_host(self.layer.matvec(self.X, V)) - self.shift @ V

    symmetric = matvec

    def rmatvec(self, U: np.ndarray) -> np.ndarray:
        """(H - shift)ᵀ U, shape (m, k), for U (N, k)."""
        layer = self.layer
        with layer.allocator():
            Z = layer.xp.zeros((len(self.shift), U.shape[1]))
            layer.gram(self.X, U, None, self.shift, out=(None, Z))
            return to_host(Z)

    def squares(self) -> np.ndarray:
        """The sum of squares of every row of H - shift, (N,)."""
        shift = self.shift.astype(self.layer.dtype)
        parts = []
        for _, H in tiles(self.layer, self.X):
            H -= shift
            parts.append(np.einsum("ij,ij->i", H, H, dtype=np.float64))
        return np.concatenate(parts)

    def columns(self, which: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
        """Those columns of H - shift in float64, part by part."""
        for rows, H in tiles(self.layer, self.X):
            yield rows, H[:, which].astype(np.float64) - self.shift[which]


def tiles(layer: Layer, X: Any) -> Iterator[tuple[slice, np.ndarray]]:
    """Rows of H on the host, each tile in the memory of the one before."""
    N, m = X.shape[0], len(layer.centers)
    budget = _TILE_SHARE * get_config()["memory"] * 2**20
    n_rows = max(16, min(_MAX_TILE_ROWS, N, budget // (m * layer.dtype.itemsize)))
    H = np.empty((int(n_rows), m), layer.dtype)
    for start in range(0, N, len(H)):
        rows = slice(start, min(start + len(H), N))
        part = H[: rows.stop - start]
        if layer.xp is np:
            layer.activations(X[rows], out=part)
        else:
            part[:] = to_host(layer.activations(X[rows]))
        yield rows, part


def rows_of(
    layer: Layer, X: Any, shift: np.ndarray, step: float | None, *, triangle: bool = False
) -> tuple[StoredH | RecomputedH, str]:
    """H less the shift for X (N, n), in multiples of the step where there is one; and how.

    On a device, which computes H faster than a host reads it, it is made anew.
    """
    N, m = X.shape[0], len(layer.centers)
    size = (2 if step else layer.dtype.itemsize) * N * m / (2 if triangle else 1) / 2**20
    kind = "16 bits" if step else str(layer.dtype)
    if layer.xp is not np:
        return RecomputedH(layer, X, shift), "H made anew in every iteration"
    if size > _KEPT_SHARE * get_config()["memory"]:
        advice = f"config_context(memory={size / _KEPT_SHARE:.0f}) keeps it in {kind}"
        return RecomputedH(layer, X, shift), f"H made anew in every iteration: {advice}"
    kept = StoredH(shift, step, triangle)
    if all(kept.add(H) for _, H in tiles(layer, X)):
        return kept, f"H kept in {kind}"
    return rows_of(layer, X, shift, None, triangle=triangle)  # beyond 16 bits


class StoredH:
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
        width = self.n_rows + len(H) if self.triangle else H.shape[1]
        shift = self.shift[:width].astype(H.dtype)
        if self.step is None:
            Q, largest = H[:, :width] - shift, np.zeros(1)
        else:
            Q, step = np.empty((len(H), width), np.int16), self.step
            largest = np.zeros(-(-len(H) // _ROWS_PER_TASK))

            def task(i: int) -> None:
                rows = i * _ROWS_PER_TASK, min((i + 1) * _ROWS_PER_TASK, len(H))
                largest[i] = kernels.round_rows(*rows, H, shift, step, Q)

            parallel_for(task, len(largest))
        self.blocks.append(Q)
        self.n_rows += len(H)
        return bool(largest.max(initial=0) < kernels.LARGEST + 0.5)

    def matvec(self, V: np.ndarray) -> np.ndarray:
        """(H - shift) V, shape (N, k), for V (m, k)."""
        (m, k), S = V.shape, np.zeros((self.n_rows, V.shape[1]))
        some = cpu_kernel.micro_kernel("partial", np.float64)
        single = cpu_kernel.micro_kernel("single", np.float64)
        padded = microkernel_table.padded
        size = padded(k, some.strip), padded(m, matvec_kernels.PARTS)
        W = packing.aligned(size, np.float64)
        W[:k, :m], W[k:], W[:, m:] = V.T, 0, 0
        pieces = [(at, Q, i) for at, Q in self._places() for i in range(0, len(Q), _ROWS_PER_TASK)]

        def task(n: int) -> None:
            top, Q, i = pieces[n]
            own = S[top : top + len(Q)]
            kernels.add_times(i, min(i + _ROWS_PER_TASK, len(Q)), Q, W, k, some, single, own)

        self._run(task, len(pieces), k)
        return self._in_units(S)

    def rmatvec(self, U: np.ndarray) -> np.ndarray:
        """(H - shift)ᵀ U, shape (m, k), for U (N, k)."""
        k, Z = U.shape[1], np.zeros((U.shape[1], len(self.shift)))
        kernel = cpu_kernel.micro_kernel("score", np.float64)
        places = [(at, Q, _blocks(U[at : at + len(Q)], kernel.rows)) for at, Q in self._places()]

        def task(n: int) -> None:
            left = n * _COLUMNS_PER_TASK
            for top, Q, own in places:
                # Of a triangle the square on the diagonal has been met by its rows.
                right = min(left + _COLUMNS_PER_TASK, top if self.triangle else Q.shape[1])
                if left < right:
                    kernels.add_transposed(left, right, Q, own, k, kernel, Z)

        self._run(task, -(-Z.shape[1] // _COLUMNS_PER_TASK), k)
        return self._in_units(Z.T)

    def symmetric(self, V: np.ndarray) -> np.ndarray:
        """(H - shift) V of the triangle of a symmetric H."""
        S = self.matvec(V)
        S += self.rmatvec(V)
        return S

    def squares(self) -> np.ndarray:
        """The sum of squares of every row of H - shift, (N,)."""
        sums = np.zeros(self.n_rows)
        places = list(self._places())

        def task(n: int) -> None:
            top, Q = places[n]
            kernels.add_squares(0, len(Q), Q, sums[top : top + len(Q)])

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
    (N, k), n_blocks = U.shape, -(-len(U) // microkernels.BLOCK)
    blocks = np.zeros((n_blocks, -(-k // multiple) * multiple, microkernels.BLOCK))
    padded = np.zeros((n_blocks * microkernels.BLOCK, k))
    padded[:N] = U
    blocks[:, :k] = padded.reshape(n_blocks, microkernels.BLOCK, k).transpose(0, 2, 1)
    return blocks
