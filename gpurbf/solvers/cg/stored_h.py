"""H for products with a few vectors: kept if there is memory for it, else made anew."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from sklearn.utils import gen_batches

from gpurbf.layer import Layer
from gpurbf.layer.backends.numba import cpu_kernel
from gpurbf.runtime.arrays import to_host
from gpurbf.runtime.config import bytes_to_keep, working_bytes
from gpurbf.runtime.lazy import lazy_module
from gpurbf.runtime.linalg import dot
from gpurbf.runtime.stages import count, stage
from gpurbf.runtime.threads import parallel_for, parallel_rows

microkernel_table = lazy_module("gpurbf.layer.backends.numba.microkernel_table")
microkernels = lazy_module("gpurbf.layer.backends.numba.microkernels")
packing = lazy_module("gpurbf.layer.backends.numba.packing")
kernels = lazy_module("gpurbf.solvers.cg._stored_h_kernels")

_MAX_TILE_ROWS = 1024
# Maximum fractions of the configured memory for H, and for a tile of H.
_KEPT_SHARE, _TILE_SHARE = 3 / 4, 1 / 16
# Rows that a thread rounds at a time, rows that it multiplies, and columns.
_ROWS_ROUNDED, _ROWS_PER_TASK, _COLUMNS_PER_TASK = 64, 128, 512
# The number of a block's first row, and the block.
_Place = tuple[int, np.ndarray]


def tiles(layer: Layer, X: Any) -> Iterator[tuple[slice, np.ndarray]]:
    """Rows of H on the host, tile by tile; each tile overwrites the one before."""
    N, m = X.shape[0], layer.centers.shape[0]
    budget = _TILE_SHARE * working_bytes()
    n_rows = max(16, min(_MAX_TILE_ROWS, N, budget // (m * layer.dtype.itemsize)))
    H = np.empty((int(n_rows), m), layer.dtype)
    for rows in gen_batches(N, len(H)):
        yield rows, layer.activations(X[rows], out=H[: rows.stop - rows.start])


def rows_of(
    layer: Layer, X: Any, shift: np.ndarray, step: float | None, *, triangle: bool = False
) -> tuple[StoredH, str]:
    """H minus the shift for X (N, n), in multiples of the step if given; and how H is kept.

    On a device H is made anew: a device computes H faster than a host reads it.
    """
    if layer.xp is not np:
        return DeviceH(layer, X, shift), "H made anew in every iteration"
    N, m = X.shape[0], layer.centers.shape[0]
    size = (2 if step else layer.dtype.itemsize) * N * m / (2 if triangle else 1)
    keeps, kind = size <= bytes_to_keep(_KEPT_SHARE), "16 bits" if step else str(layer.dtype)
    every = partial(tiles, layer, X)
    rows = StoredH(N, shift, step, triangle, None if keeps else every)
    if (keeps or step) and not all(rows.add(H, part.start) for part, H in every()):
        return rows_of(layer, X, shift, None, triangle=triangle)  # H does not fit into 16 bits
    if keeps:
        return rows, f"H kept in {kind}"
    memory = f"config_context(memory={math.ceil(size / _KEPT_SHARE / 2**20)})"
    return rows, f"H made anew in every iteration: {memory} keeps it in {kind}"


class StoredH:
    """H (N, m) minus a shift, in blocks of rows, which are kept or made anew for every product.

    Parameters
    ----------
    n_rows : int
        N.
    shift : ndarray of shape (m,)
        Subtracted from every row before it is kept.
    step : float or None
        Rows are kept as the nearest multiples of it in 16 bits; None: in their own dtype.
    triangle : bool, default=False
        H is symmetric: a block of rows keeps only the columns up to its last row.
    anew : callable, optional
        Makes an iterator over `tiles` of H; by default all rows are added, and kept.
    """

    def __init__(
        self, n_rows: int, shift: np.ndarray, step: float | None, triangle: bool, anew: Any = None
    ) -> None:
        self.n_rows, self.shift, self.step, self.triangle = n_rows, shift, step, triangle
        self.unit = 1.0 if step is None else step
        self.anew, self.blocks = anew, list[_Place]()

    def add(self, H: np.ndarray, top: int) -> bool:
        """Keep rows H (b, m) from number ``top`` on; returns whether 16 bits hold them."""
        Q, fits = self._rounded(H, top)
        if self.anew is None:
            self.blocks.append((top, Q))
        return fits

    def _rounded(self, H: np.ndarray, top: int) -> tuple[np.ndarray, bool]:
        """Rows H from number ``top`` on as they are kept, and whether 16 bits hold them."""
        width = top + len(H) if self.triangle else H.shape[1]
        shift, step = self.shift[:width].astype(H.dtype), self.step
        size = len(H), microkernel_table.padded(width, microkernels.LANES)
        Q = np.zeros(size, H.dtype if step is None else np.int16)
        if step is None:
            np.subtract(H[:, :width], shift, out=Q[:, :width])
            return Q, True
        largest: list[float] = []

        def task(rows: slice) -> None:
            largest.append(kernels.round_rows(rows.start, rows.stop, H, shift, step, Q))

        parallel_rows(task, len(H), _ROWS_ROUNDED)
        return Q, max(largest) < kernels.LARGEST + 0.5

    def matvec(self, V: np.ndarray) -> np.ndarray:
        """(H - shift) V, shape (N, k), for V (m, k); of a triangle in one pass over its rows."""
        S, Z = np.zeros((self.n_rows, V.shape[1])), np.zeros(V.shape[::-1])
        for places in self._passes():
            self._add_times(places, V, S)
            if self.triangle:
                self._add_transposed(places, V, Z)
        return self.unit * S + self.unit * Z.T if self.triangle else self.unit * S

    def rmatvec(self, U: np.ndarray) -> np.ndarray:
        """(H - shift)ᵀ U, shape (m, k), for U (N, k)."""
        Z = np.zeros((U.shape[1], len(self.shift)))
        for places in self._passes():
            self._add_transposed(places, U, Z)
        return self.unit * Z.T

    @stage("output training", "products")
    def _add_times(self, places: list[_Place], V: np.ndarray, S: np.ndarray) -> None:
        """Add the products of some rows with V to S."""
        m, k = V.shape
        some = cpu_kernel.micro_kernel("partial", np.float64)
        single = cpu_kernel.micro_kernel("single", np.float64)
        padded = microkernel_table.padded
        size = padded(k, some.strip), padded(m, microkernels.LANES)
        W = packing.aligned(size, np.float64)
        W[:], W[:k, :m] = 0, V.T
        pieces = [(at, Q, i) for at, Q in places for i in range(0, len(Q), _ROWS_PER_TASK)]

        def task(n: int) -> None:
            top, Q, i = pieces[n]
            own = S[top : top + len(Q)]
            kernels.add_times(i, min(i + _ROWS_PER_TASK, len(Q)), Q, W, k, some, single, own)

        parallel_for(task, len(pieces))
        _count_products(places, k)

    @stage("output training", "products")
    def _add_transposed(self, places: list[_Place], U: np.ndarray, Z: np.ndarray) -> None:
        """Add the transposed products of some rows with U to Z (k, m)."""
        kernel = cpu_kernel.micro_kernel("score", np.float64)
        k, m = Z.shape
        owns = [_blocks(U[at : at + len(Q)], kernel.rows) for at, Q in places]

        def task(columns: slice) -> None:
            for (top, Q), own in zip(places, owns, strict=True):
                # In a triangle, the products of rows include the square on the diagonal.
                left, right = columns.start, min(columns.stop, top if self.triangle else m)
                if left < right:
                    kernels.add_transposed(left, right, Q, own, k, kernel, Z)

        parallel_rows(task, m, _COLUMNS_PER_TASK)
        _count_products(places, k)

    def squares(self) -> np.ndarray:
        """The sum of squares of every row of H - shift, (N,)."""
        sums = np.zeros(self.n_rows)
        for places in self._passes():

            def task(n: int, places: list[_Place] = places) -> None:
                top, Q = places[n]
                np.einsum("ij,ij->i", Q, Q, dtype=np.float64, out=sums[top : top + len(Q)])

            parallel_for(task, len(places))
        return sums * self.unit**2

    def columns(self, which: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
        """The columns ``which`` of H - shift in float64, block by block."""
        for places in self._passes():
            for top, Q in places:
                yield slice(top, top + len(Q)), self.unit * Q[:, which].astype(np.float64)

    def _passes(self) -> Iterator[list[_Place]]:
        """All rows, in lists of blocks that exist at the same time, each with its first row."""
        if self.anew is None:
            yield self.blocks
        else:
            for rows, H in self.anew():
                yield [(rows.start, self._rounded(H, rows.start)[0])]


class DeviceH(StoredH):
    """H minus a shift, made anew on a device, which makes its products."""

    def __init__(self, layer: Layer, X: Any, shift: np.ndarray) -> None:
        super().__init__(X.shape[0], shift, None, False, partial(tiles, layer, X))
        self.layer, self.X = layer, X

    def matvec(self, V: np.ndarray) -> np.ndarray:
        """(H - shift) V, shape (N, k), for V (m, k)."""
        return self.layer.matvec(self.X, V) - dot(self.shift, V)

    def rmatvec(self, U: np.ndarray) -> np.ndarray:
        """(H - shift)ᵀ U, shape (m, k), for U (N, k)."""
        layer = self.layer
        with layer.allocator():
            Z = layer.xp.zeros((len(self.shift), U.shape[1]))
            layer.gram(self.X, U, None, self.shift, out=(None, Z))
            return to_host(Z)


def _count_products(places: list[_Place], k: int) -> None:
    size, nbytes = sum(Q.size for _, Q in places), sum(Q.nbytes for _, Q in places)
    count(operations=2 * size * k, kind="float64", nbytes=nbytes)


def _blocks(U: np.ndarray, multiple: int) -> np.ndarray:
    """U (N, k) as blocks (·, k', BLOCK) of its rows, transposed; zeros beyond N and k."""
    (N, k), size = U.shape, microkernels.BLOCK
    columns = np.zeros((microkernel_table.padded(k, multiple), microkernel_table.padded(N, size)))
    columns[:k, :N] = U.T
    return np.ascontiguousarray(columns.reshape(len(columns), -1, size).transpose(1, 0, 2))
