"""HᵀH and HᵀT on CPU threads: of rows as they are, or of rows rounded to a grid, and then exact.

On a grid, √w (H - mean) is rounded to a multiple q of a step, a 16-bit integer. √w T is rounded to
a multiple τ of another step, kept as two halves of 11 bits. Products are summed as 32-bit integers
in runs, and the sums of runs in float64, which holds integers below 2⁵³: at least 10⁷ rows. So the
sums do not depend on order, tiles, batches and number of threads, and HᵀH is a Gram matrix without
negative eigenvalues. A row with a number that does not fit in 16 bits is summed apart, in float64
on the same grid, with the same properties. All parts of a sum use one grid, so they can be added.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpurbf.layer.backends.numba import cpu_kernel
from gpurbf.layer.backends.numba.matvec import values
from gpurbf.runtime.config import working_bytes
from gpurbf.runtime.lazy import lazy_module
from gpurbf.runtime.memory import scratch
from gpurbf.runtime.stages import count, stage
from gpurbf.runtime.threads import parallel_for, parallel_rows, thread_limit

if TYPE_CHECKING:
    from gpurbf.layer.backends.numba.microkernel_table import Kernel

consumers = lazy_module("gpurbf.layer.backends.numba.consumers")
gram_kernels = lazy_module("gpurbf.layer.backends.numba.gram_kernels")
microkernels = lazy_module("gpurbf.layer.backends.numba.microkernels")
packing = lazy_module("gpurbf.layer.backends.numba.packing")


# Below so many centers HᵀH is summed in float64: that is little work and the most accurate.
FEW = 256
# Targets become integers of at most this magnitude, kept as two halves; bits of the lower one.
_TARGET, _HALF = 1 << 21, 11
# Rows at a time: of those that do not fit in 16 bits, of those that a thread rounds, and of targets
# that it splits into halves.
_BEYOND, _ROWS, _ROWS_SPLIT = 512, 64, 2048
# The most steps in a panel, see `_panels`: few stay in cache while they are multiplied. Exact sums
# do not depend on it, so more than a few threads take longer panels, and wait less for each other.
_STEPS, _MORE_STEPS, _FEW_THREADS = 2304, 4352, 4


class Grid(NamedTuple):
    """The steps, powers of two, of √w (H - mean) and of √w T in fixed point."""

    step: float
    target_step: float

    @classmethod
    def of(cls, largest: float, weight: float = 1.0) -> Grid:
        """The grid for |H - mean| <= ``largest`` (15 bits), |T| <= 1 and w <= ``weight``.

        Somewhat larger values fit: up to four times as large if the weights are equal. 0 is taken
        as 1.
        """
        h, root = (math.log2(value or 1.0) for value in (largest, math.sqrt(weight)))
        return cls(2.0 ** (math.ceil(h) + math.floor(root) - 14), 2.0 ** math.ceil(root) / _TARGET)

    def nearest(
        self, H: np.ndarray, mean: np.ndarray, roots: np.ndarray | None = None
    ) -> np.ndarray:
        """H (N, m) in float64, rounded as in sums with weights of 1 or with these ``roots``."""
        factors = np.ones(len(H)) if roots is None else np.where(roots > 0, roots, 1.0)
        factors = factors[:, None] / self.step
        less, rounded = mean.astype(H.dtype), np.empty(H.shape)

        def task(rows: slice) -> None:
            steps = np.rint((H[rows] - less) * factors[rows].astype(H.dtype))
            np.add(mean, steps / factors[rows], out=rounded[rows])

        parallel_rows(task, len(H), _ROWS)
        return rounded


class Sums(NamedTuple):
    """Sums that rows of H are added to, in float64.

    ``G`` is HᵀH (m, m), whose upper triangle may stay unchanged, or None if only HᵀT is wanted;
    ``B`` is HᵀT (m, k). ``mean`` (m,) is subtracted from H, so that the sums lose fewer digits.
    """

    G: Any
    B: Any
    mean: np.ndarray


def kind_for(dtype: np.dtype, m: int) -> np.dtype:
    """Dtype of sums over m centers without a grid, for activations of ``dtype``."""
    return np.dtype(np.float64) if m < FEW else dtype


def fast() -> bool:
    """Whether 16-bit products have an instruction here that is faster than floats."""
    return cpu_kernel.choose_kernel()[0] != "generic"


def add(pack: Callable[[slice, np.ndarray], None], T: np.ndarray, dtype: Any, sums: Sums) -> None:
    """Add HᵀH to the lower triangle of G, unless that is None, and HᵀT to B.

    ``pack(rows, panels)`` writes rows of H (N, m), which is weighted as T (N, k) is, to the top of
    panels of 16 columns in ``dtype``. Up to 256 rows are summed in that dtype, more in float64.
    """
    G, B, _ = sums
    N, (m, k), dtype = len(T), B.shape, np.dtype(dtype)
    panels, h_panels, depth = _panels(m, k, dtype, _STEPS)
    kernel = cpu_kernel.micro_kernel("gram", dtype)
    for start in range(0, N, depth):
        part = slice(start, min(start + depth, N))
        n = part.stop - start
        pack(part, panels[:h_panels])
        with stage("output training", "HᵀH"):
            packing.fill_panels(panels[h_panels:, :n], T[part])
            ends = np.append(np.arange(0, n, gram_kernels.DEPTH), n)
            products = np.zeros((k, m))
            _add_blocks(panels, ends, kernel, 1.0, G, products)
            B += products.T
            _counted(n, m, k, dtype.itemsize, dtype.name, G)


def add_rounded(
    layer: Any, X: Any, T: np.ndarray, weights: np.ndarray | None, sums: Sums, grid: Grid
) -> None:
    """Add the exact sums of √w (H - mean) and √w T rounded to the grid, on a CPU.

    The method ``hand_over(X, consumer)`` of the prepared layer hands H of some rows to a consumer.
    """
    G, B, mean = sums
    N, (m, k) = len(T), B.shape
    roots = np.ones(N) if weights is None else np.sqrt(weights)
    factors, target_factors = roots / grid.step, (roots / grid.target_step)[:, None]
    halves, late = _halves(T, target_factors)
    products = np.zeros((halves.shape[1], m))
    steps = _MORE_STEPS if thread_limit() > _FEW_THREADS else _STEPS
    panels, h_panels, depth = _panels(m, halves.shape[1], np.int32, steps)
    energies = np.empty((h_panels, -(-depth // gram_kernels.UNIT), microkernels.LANES), np.float32)
    whole = np.zeros(h_panels * microkernels.LANES, layer.dtype)  # the mean, in whole panels
    whole[:m] = mean
    kernel = cpu_kernel.micro_kernel("gram", np.int16)
    for start in range(0, N, 2 * depth):
        part = slice(start, min(start + 2 * depth, N))
        n, n_pairs = part.stop - start, -(-(part.stop - start) // 2)
        beyond = late[part].astype(np.uint8)
        energies[:] = 0
        # It rounds the rows to pairs, adds their squares to the energies, and marks in `beyond` the
        # rows with numbers that do not fit in 16 bits.
        consumer = consumers.consumer(
            "pairs", layer.dtype, pairs=panels, panel_bytes=panels.strides[0], energies=energies,
            energy_bytes=energies.strides[0], weights=factors[part].astype(layer.dtype), mean=whole,
            beyond=beyond, together=2 * gram_kernels.UNIT,
        )  # fmt: skip
        layer.hand_over(X[part], consumer)
        late[part] = beyond
        with stage("output training", "HᵀH"):
            _fill_pairs(panels[h_panels:, :n_pairs], halves[part])
            for row in np.flatnonzero(beyond):
                panels[:, row // 2] &= np.int32(0xFFFF if row % 2 else -0x10000)
            # Within a run sums of products fit into 32 bits.
            ends, total = np.empty(n_pairs + 1, np.intp), np.empty(energies.shape[::2])
            ends = ends[: gram_kernels.find_runs(energies, n_pairs, total, ends)]
            _add_blocks(panels, ends, kernel, grid.step**2, G, products)
            _counted(n, m, k, 2, "16-bit products", G)
    unit = grid.step * grid.target_step
    B += unit * (1 << _HALF) * products[:k].T
    if halves.shape[1] > k:
        B += unit * products[k:].T
    outside = np.flatnonzero(late)
    for start in range(0, len(outside), _BEYOND):
        rows = outside[start : start + _BEYOND]
        H = values(layer, X[rows])
        factor = factors[rows, None].astype(H.dtype)
        Q = np.rint((H - mean.astype(H.dtype)) * factor) * np.float64(grid.step)
        targets = np.rint(T[rows] * target_factors[rows]) * grid.target_step

        def fill(some: slice, panels: np.ndarray, Q: np.ndarray = Q) -> None:
            packing.fill_panels(panels[:, : some.stop - some.start], Q[some])

        add(fill, targets, np.float64, sums)


def _panels(m: int, k: int, dtype: Any, most: int) -> tuple[np.ndarray, int, int]:
    """Memory for panels of H and T, the number of panels of H, and the steps in a panel.

    A step is a row, or a pair of rows in 32 bits; there are at most so many.
    """

    h_panels = gram_kernels.padded_panels(m)
    n_panels = h_panels + gram_kernels.padded_panels(k)
    # Panels 256 rows off a multiple of 64 KiB do not map to the same lines of the cache.
    budget = working_bytes() // 2 // (n_panels * microkernels.LANES * np.dtype(dtype).itemsize)
    depth = min(256 + max(0, budget - 256) // 1024 * 1024, most)
    panels = packing.aligned((n_panels, depth, microkernels.LANES), dtype)
    panels[m // microkernels.LANES :] = 0
    return panels, h_panels, depth


def _halves(T: np.ndarray, factors: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """round(T factors) in [upper | lower] halves, the upper alone if the lower are all 0.

    Also returns which rows (N,) have a number that is too large; they are 0 in the halves.
    """
    N, k = T.shape
    halves, late = np.empty((N, 2 * k), np.int32), np.empty(N, bool)

    def task(rows: slice) -> None:
        whole = np.rint(T[rows] * factors[rows])
        late[rows] = (np.abs(whole) > _TARGET).any(axis=1)
        whole[late[rows]] = 0
        upper = np.floor(whole / (1 << _HALF) + 0.5)
        halves[rows, :k], halves[rows, k:] = upper, whole - upper * (1 << _HALF)

    parallel_rows(task, N, _ROWS_SPLIT)
    return (halves if halves[:, k:].any() else halves[:, :k]), late


def _fill_pairs(pairs: np.ndarray, A: np.ndarray) -> None:
    """Copy integers A (rows, columns) to pairs, as `packing.fill_panels` does."""
    words = A[::2] & 0xFFFF
    words[: len(A) // 2] |= A[1::2] << 16
    packing.fill_panels(pairs, words)


def _add_blocks(
    panels: np.ndarray,
    ends: np.ndarray,
    kernel: Kernel,
    scale: float,
    G: np.ndarray | None,
    products: np.ndarray,
) -> None:
    """G += scale HᵀH and products += TᵀH (k, m) for packed rows, on all threads."""
    k, m = products.shape
    h_panels = gram_kernels.padded_panels(m)
    blocks = gram_kernels.blocks_of(h_panels, len(panels), G is not None)
    gram_words = gram_kernels.GramWords(
        panels=panels.ctypes.data,
        panel_bytes=panels.strides[0],
        itemsize=panels.itemsize,
        h_panels=h_panels,
        n_panels=len(panels),
        ends=ends.ctypes.data,
        n_ends=len(ends),
        **kernel._asdict(),
        add=gram_kernels.add_tile_address(panels.dtype),
        m=m,
        k=k,
        G=0 if G is None else G.ctypes.data,
        G_bytes=0 if G is None else G.strides[0],
        products=products.ctypes.data,
    )
    given = np.array(gram_words, np.intp)

    n_bytes, words_at = gram_kernels.memory_bytes(kernel, panels.itemsize), given.ctypes.data

    def task(i: int) -> None:
        _held, memory = scratch(n_bytes)
        gram_kernels.add_gram(*blocks[i], words_at, scale, memory)

    parallel_for(task, len(blocks))


def _counted(n: int, m: int, k: int, size: int, kind: str, G: np.ndarray | None) -> None:
    """Count the lower triangle of HᵀH, and HᵀT; G is read and written."""
    one = 0 if G is None else m + 1
    count(operations=n * m * (one + 2 * k), kind=kind)
    count(nbytes=n * (m + k) * size + (0 if G is None else G.nbytes))
