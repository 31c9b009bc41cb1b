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
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gpurbf.layer.backends.numba import cpu_kernel
from gpurbf.layer.backends.numba.matvec import hand_over_rows
from gpurbf.runtime.config import working_bytes
from gpurbf.runtime.lazy import lazy_module
from gpurbf.runtime.memory import scratch
from gpurbf.runtime.stages import count, stage
from gpurbf.runtime.threads import parallel_for, parallel_rows, thread_limit

if TYPE_CHECKING:
    from gpurbf.layer.backends.numba.consumers import Consumer
    from gpurbf.layer.backends.numba.microkernel_table import Kernel

consumers = lazy_module("gpurbf.layer.backends.numba.consumers")
gram_kernels = lazy_module("gpurbf.layer.backends.numba.gram_kernels")
microkernels = lazy_module("gpurbf.layer.backends.numba.microkernels")
packing = lazy_module("gpurbf.layer.backends.numba.packing")


# Below so many centers HᵀH is summed in float64: that is little work and the most accurate.
FEW = 256
# The largest multiple of its step that a target may be, and bits of its lower half.
_TARGET, _HALF = 1 << 21, 11
# Rows at a time: of those that do not fit in 16 bits, and of those that a thread packs.
_BEYOND, _ROWS = 512, 64
# The most steps in a panel, see `_panels`: few stay in cache while they are multiplied. Exact sums
# do not depend on it, so more than a few threads take longer panels, and wait less for each other.
_STEPS, _MORE_STEPS, _FEW_THREADS = 2304, 4352, 4


class Grid(NamedTuple):
    """The steps, powers of two, of √w (H - mean) and of √w T in fixed point."""

    step: float
    target_step: float

    @classmethod
    def of(cls, largest: float, target: float, weight: float = 1.0) -> Grid:
        """The grid for |H - mean| <= ``largest`` (15 bits), |T| <= ``target``, w <= ``weight``.

        Somewhat larger values fit: up to four times as large if the weights are equal. 0 is taken
        as 1.
        """
        h, t, root = (math.log2(value or 1.0) for value in (largest, target, math.sqrt(weight)))
        return cls(
            2.0 ** (math.ceil(h) + math.floor(root) - 14),
            2.0 ** (math.ceil(t) + math.ceil(root)) / _TARGET,
        )

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
    ``B`` is HᵀT (m, k). ``mean`` (m,) is subtracted from H, so that the sums lose fewer digits. On
    a ``grid`` H is rounded to the grid, and the sums are exact.
    """

    G: Any
    B: Any
    mean: np.ndarray
    grid: Grid | None = None


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
    G, B, *_ = sums
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
            _add_blocks(panels, ends, kernel, 1.0, G, B)
            _counted(n, m, k, dtype.itemsize, dtype.name, G)


def values(layer: Any, X: Any) -> np.ndarray:
    """H of the rows of X by a prepared layer on a CPU."""
    H = np.empty((X.shape[0], layer.m), layer.dtype)
    layer.activations(X, H)
    return H


def hand_over(layer: Any, X: Any, consumer: Consumer) -> None:
    """Hand H of the rows of X to a consumer, a tile of H at a time, which is not in cache."""
    step = max(2, layer.tile_rows() // 2 * 2)  # even: the consumer may want pairs of rows
    for start in range(0, X.shape[0], step):
        H = values(layer, X[start : start + step])
        with stage("output training", "H packed"):
            parallel_rows(hand_over_rows(H, consumer, start), len(H), _ROWS)


def add_rounded(layer: Any, X: Any, T: np.ndarray, weights: np.ndarray | None, sums: Sums) -> None:
    """Add the exact sums of √w (H - mean) and √w T rounded to the grid.

    The method ``hand_over(X, consumer)`` of the layer hands H of some rows to a consumer.
    """
    G, B, mean, grid = sums
    assert grid is not None
    N, (m, k) = len(T), B.shape
    if not m:
        return
    roots = np.ones(N) if weights is None else np.sqrt(weights)
    targets = np.rint(T * (roots[:, None] / grid.target_step))
    halves, factors = _halves(targets), roots / grid.step
    products = np.zeros((m, halves.shape[1]))
    steps = _MORE_STEPS if thread_limit() > _FEW_THREADS else _STEPS
    panels, h_panels, depth = _panels(m, halves.shape[1], np.int32, steps)
    kernel = cpu_kernel.micro_kernel("gram", np.int16)
    late = np.abs(targets).max(axis=1, initial=0) > _TARGET
    for start in range(0, N, 2 * depth):
        part = slice(start, min(start + 2 * depth, N))
        n = part.stop - start
        beyond = late[part].astype(np.uint8)
        given = factors[part], mean, panels[:h_panels], beyond
        layer.hand_over(X[part], pairs_consumer(*given, layer.dtype))
        late[part] = beyond
        with stage("output training", "HᵀH"):
            _fill_pairs(panels[h_panels:, : -(-n // 2)], halves[part])
            for row in np.flatnonzero(beyond):
                panels[:, row // 2] &= np.int32(0xFFFF if row % 2 else -0x10000)
            ends = _run_ends(panels[:h_panels], -(-n // 2))
            _add_blocks(panels, ends, kernel, grid.step**2, G, products)
            _counted(n, m, k, 2, "16-bit products", G)
    unit = grid.step * grid.target_step
    B += unit * (1 << _HALF) * products[:, :k]
    if halves.shape[1] > k:
        B += unit * products[:, k:]
    outside = np.flatnonzero(late)
    for start in range(0, len(outside), _BEYOND):
        rows = outside[start : start + _BEYOND]
        H = values(layer, X[rows])
        factor = factors[rows, None].astype(H.dtype)
        Q = np.rint((H - mean.astype(H.dtype)) * factor) * np.float64(grid.step)
        add(partial(_fill, Q), targets[rows] * grid.target_step, np.float64, sums)


def pairs_consumer(
    factors: np.ndarray, mean: np.ndarray, pairs: np.ndarray, beyond: np.ndarray, dtype: np.dtype
) -> Consumer:
    """The consumer that writes round(factors (H - mean)) to pairs of rows, as `add_rounded` needs.

    In ``beyond`` it marks rows with numbers that do not fit in 16 bits.
    """
    whole = np.zeros(len(pairs) * microkernels.LANES, dtype)
    whole[: len(mean)] = mean
    return consumers.consumer(
        "pairs", dtype, pairs=pairs, panel_bytes=pairs.strides[0], weights=factors.astype(dtype),
        mean=whole, beyond=beyond,
    )  # fmt: skip


def _fill(A: np.ndarray, rows: slice, panels: np.ndarray) -> None:

    packing.fill_panels(panels[:, : rows.stop - rows.start], A[rows])


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


def _halves(targets: np.ndarray) -> np.ndarray:
    """Integer targets as [upper | lower] halves; the upper alone if the lower are all 0."""
    half = 1 << _HALF
    upper = np.floor(targets / half + 0.5)
    lower = targets - upper * half
    return np.hstack([upper, lower]) if lower.any() else upper


def _fill_pairs(pairs: np.ndarray, A: np.ndarray) -> None:
    """Copy A (rows, columns) to pairs, as `packing.fill_panels` does; 0 for what does not fit."""

    fitting = np.where(np.abs(A) <= _TARGET, A, 0).astype(np.int32)
    words = fitting[::2] & 0xFFFF
    words[: len(A) // 2] |= fitting[1::2] << 16
    packing.fill_panels(pairs, words)


def _run_ends(pairs: np.ndarray, steps: int) -> np.ndarray:
    """Ends of runs of the first ``steps`` pairs; a run's sums of products fit into 32 bits."""

    n_panels, _, lanes = pairs.shape
    energy = np.zeros((n_panels, -(-steps // gram_kernels.UNIT), lanes), np.float32)

    def task(some: slice) -> None:
        given = pairs.ctypes.data, pairs.strides[0], steps, energy
        gram_kernels.energies(some.start, some.stop, *given)

    parallel_rows(task, n_panels, lanes)
    ends = np.empty(steps + 1, np.intp)
    return ends[: gram_kernels.find_runs(energy, steps, np.empty((n_panels, lanes)), ends)]


def _add_blocks(
    panels: np.ndarray,
    ends: np.ndarray,
    kernel: Kernel,
    scale: float,
    G: np.ndarray | None,
    B: np.ndarray,
) -> None:
    """G += scale HᵀH and B += HᵀT for packed rows, on all threads."""
    m, k = B.shape
    squares, others = gram_kernels.gram_blocks(m, k)
    first = squares if G is None else 0
    gram_words = gram_kernels.GramWords(
        panels=panels.ctypes.data,
        panel_bytes=panels.strides[0],
        itemsize=panels.itemsize,
        n_panels=len(panels),
        ends=ends.ctypes.data,
        n_ends=len(ends),
        **kernel._asdict(),
        add=gram_kernels.add_tile_address(panels.dtype),
        m=m,
        k=k,
        G=0 if G is None else G.ctypes.data,
        G_bytes=0 if G is None else G.strides[0],
        B=B.ctypes.data,
        B_bytes=B.strides[0],
        B_step=B.strides[1],
    )
    given = np.array(gram_words, np.intp)

    n_bytes, words_at = gram_kernels.memory_bytes(kernel, panels.itemsize), given.ctypes.data

    def task(i: int) -> None:
        _held, memory = scratch(n_bytes)
        gram_kernels.add_gram(first + i, words_at, scale, memory)

    parallel_for(task, squares + others - first)


def _counted(n: int, m: int, k: int, size: int, kind: str, G: np.ndarray | None) -> None:
    """Count the lower triangle of HᵀH, and HᵀT; G is read and written."""
    one = 0 if G is None else m + 1
    count(operations=n * m * (one + 2 * k), kind=kind)
    count(nbytes=n * (m + k) * size + (0 if G is None else G.nbytes))
