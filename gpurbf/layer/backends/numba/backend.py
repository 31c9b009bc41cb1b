"""The `numba` backend: BNL tiles on CPU threads, activated and consumed while they are in cache."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from gpurbf.data.quantize import Quantization
from gpurbf.layer.activation import Activation
from gpurbf.layer.backends import Backend, Indexed, Tile
from gpurbf.layer.backends.numba import cpu_kernel, gram
from gpurbf.layer.backends.numba.epilogue import epilogue
from gpurbf.layer.backends.numba.matvec import consumer, pack_weights, times
from gpurbf.layer.backends.numba.packed import (
    PackedCenters,
    Part,
    prepare,
    renew,
    shifted,
    taken,
    with_centers,
)
from gpurbf.layer.distance import ALL
from gpurbf.runtime import cpu
from gpurbf.runtime.lazy import lazy_module
from gpurbf.runtime.stages import count, stage
from gpurbf.runtime.threads import parallel_for, thread_limit

driver = lazy_module("gpurbf.layer.backends.numba.driver")
packing = lazy_module("gpurbf.layer.backends.numba.packing")


# Rows of a block that the paper's experiment tries.
_TRIED = (24, 48, 96, 192, 384)
# Bytes of inputs, a pair at a time, that take long enough to wake another thread for (some 0.1 ms;
# an activation costs about as much as 64 of its inputs).
_WORTH_A_THREAD, _ACTIVATION = 1 << 25, 64


def run(
    operand: PackedCenters,
    part: Part,
    X: np.ndarray,
    consumer: Any,
    chosen: np.ndarray = ALL,
    products: int = 0,
) -> None:
    """Evaluate rows of X on the free threads, and hand the tiles to their consumer.

    All of them in order, or those that are `chosen`. A consumer that sums makes so many products of
    a row.
    """

    n = len(chosen) or len(X)
    if not n or not operand.m:
        return
    groups = [tuple(group) for group in (part.kernel, part.centers, part.epilogue, consumer)]
    # A task is about two blocks of rows, and every thread gets as many.
    work = n * operand.m * (part.centers.panels.itemsize * X.shape[1] + _ACTIVATION)
    useful = 1 + work // _WORTH_A_THREAD
    n_threads = 1
    if useful > 1:
        n_threads = min(filter(None, (thread_limit(), operand.threads, useful)))
    n_tasks = n_threads * -(-n // (2 * part.block * n_threads))
    rows = -(-n // (n_tasks * part.kernel.rows)) * part.kernel.rows
    block = min(part.block, rows)  # scratch for a few rows is little

    def task(i: int) -> None:
        driver.evaluate_rows(i * rows, min((i + 1) * rows, n), X, chosen, block, *groups)

    fused = products > 0
    with stage("hidden layer", "H and H @ W, fused" if fused else "H"):
        if useful > 1:
            parallel_for(task, -(-n // rows), n_threads)
        else:  # over before anyone would have been asked for help
            for i in range(-(-n // rows)):
                task(i)
        size, itemsize = n * operand.m, part.dtype.itemsize
        count(operations=int(2 * size * X.shape[1] * part.density), kind=part.arithmetic)
        count(nbytes=n * X.shape[1] * X.itemsize + part.centers.panels.nbytes)
        count(nbytes=consumer.scores.nbytes if fused else size * itemsize)
        if fused:
            count(operations=2 * n * products, kind=part.dtype.name)


def outputs(operand: PackedCenters, X: np.ndarray, out: np.ndarray) -> np.ndarray:
    """H (N, m), written into ``out``, an array of the operand's dtype."""
    X = taken(X, operand.exact)
    if operand.fused:
        run(operand, operand.parts[0], X, consumer(out.dtype, "store", out=out))
        return out
    rows = _tile_rows(operand)
    for start in range(0, len(X), rows):
        _unfused(operand, X[start : start + rows], out[start : start + rows])
    return out


def _unfused(operand: PackedCenters, X: np.ndarray, out: np.ndarray) -> None:
    """A few rows of H where the profile is a callable or the inputs are in several parts."""
    activation = operand.activation
    if len(operand.parts) == 1:
        run(operand, operand.parts[0], X, consumer(out.dtype, "store", out=out))
        out[:] = activation.profile(out)  # type: ignore[operator]
        return
    distances, summand = np.zeros(out.shape), np.empty(out.shape)
    for part in operand.parts:
        store = consumer(summand.dtype, "store", out=summand)
        run(operand, part, taken(X[:, part.inputs], operand.exact), store)
        distances += summand
    row_terms, column_terms = np.zeros(len(X)), np.zeros(operand.m)
    epilogue(distances, row_terms, column_terms, 1.0, operand.factor, activation, out)


def _tile_rows(operand: PackedCenters) -> int:
    """Rows whose float64 tile of H takes about 4 MiB."""
    return max(64, (1 << 19) // max(1, operand.m))


def weights(operand: PackedCenters, W: np.ndarray) -> Any:
    """Output weights W (m, k) in the form in which `scores` needs them."""
    if not operand.fused:
        return times(W, operand.dtype), W.shape[1]
    return pack_weights(W, operand.dtype, operand.vectors)


def scores(operand: PackedCenters, X: np.ndarray, W: Any) -> np.ndarray:
    """H @ W (N, k): tiles in the operand's dtype, their sums in float64."""
    X = taken(X, operand.exact)
    W = weights(operand, W) if isinstance(W, np.ndarray) else W
    if operand.fused:
        sums = np.zeros((len(X), W.k))
        own = W.consumer(sums, operand.dtype)
        run(operand, operand.parts[0], X, own, products=W.products)
        return sums.astype(operand.dtype, copy=False)
    multiply, k = W
    S = np.empty((len(X), k), operand.dtype)
    H = np.empty((_tile_rows(operand), operand.m), operand.dtype)
    for start in range(0, len(X), len(H)):
        part = slice(start, min(start + len(H), len(X)))
        multiply(outputs(operand, X[part], H[: part.stop - start]), S[part])
    return S


def normal(
    operand: PackedCenters,
    X: np.ndarray,
    T: np.ndarray,
    weights: np.ndarray | None,
    mean: np.ndarray,
    G: np.ndarray | None,
    B: np.ndarray,
    grid: gram.Grid | None = None,
) -> None:
    """Add HᵀH to G (m, m) and HᵀT to B (m, k), float64, of H less its mean, samples weighted.

    Of G the lower triangle; nothing where it is None. On a grid the sums are exact.
    """

    X, dtype, m = taken(X, operand.exact), operand.dtype, operand.m
    if m == 0:
        return
    roots = np.ones(len(X)) if weights is None else np.sqrt(weights)
    if grid is None:
        roots = roots.astype(dtype)  # the targets', too
    part = operand.parts[0] if operand.fused else None

    def values(rows: Any) -> np.ndarray:
        return outputs(operand, X[rows], np.empty((len(roots[rows]), m), dtype))

    def pack(rows: slice, panels: np.ndarray) -> None:
        root, less = roots[rows], mean.astype(dtype)
        if part:
            name, field = ("gram", "panels") if panels.dtype == dtype else ("wide", "wide")
            gram = consumer(dtype, name, weights=root, mean=less, **{field: panels})
            run(operand, part, X[rows], gram)
        else:
            H = values(rows).astype(panels.dtype, copy=False)
            packing.fill_panels(panels[:, : len(root)], (H - less) * root[:, None])

    def pack_pairs(rows: slice, factors: Any, pairs: np.ndarray, beyond: np.ndarray) -> None:
        if part:
            factors, less = factors.astype(dtype), gram.padded(mean, dtype, len(pairs))
            rounded = {"weights": factors, "mean": less, "pairs": pairs, "beyond": beyond}
            run(operand, part, X[rows], consumer(dtype, "pairs", **rounded))
        else:
            gram.round_rows(values(rows), factors, mean, pairs, beyond)

    if grid is None:
        gram.add(pack, T * roots[:, None], gram.kind_for(dtype, m), m, G, B)
    else:
        gram.add_rounded(pack_pairs, values, T, roots, mean, grid, G, B)


def _samples_and_centers(
    X: np.ndarray, activation: Activation, dtype: Any, quantization: Quantization | None
) -> tuple[PackedCenters, np.ndarray] | None:
    """Operand for `_with_chosen`; None if its inputs come in several parts."""
    operand = prepare(X[:1], activation, dtype, quantization, among=X)
    return shifted(operand, X) if operand.fused else None


def _with_chosen(
    operand: PackedCenters,
    X: np.ndarray,
    chosen: np.ndarray,
    fresh: slice | None = None,
) -> PackedCenters:
    """The operand with X[chosen] for centers, shifted as its own.

    The operand itself, renewed in place, if none but the fresh ones are others than they were.
    """
    if fresh is not None and renew(operand.parts[0], taken(X, operand.exact), chosen, fresh):
        return operand
    part = with_centers(operand.parts[0], taken(X, operand.exact), chosen)
    return replace(operand, parts=(part,), m=len(chosen))


def _chosen_outputs(
    operand: PackedCenters,
    X: np.ndarray,
    chosen: np.ndarray,
    out: np.ndarray,
    places: np.ndarray | None = None,
) -> None:
    """H of X[chosen], written into `out`, or into those rows of it."""
    if len(chosen):
        store = consumer(out.dtype, "store", out=out, places=ALL if places is None else places)
        run(operand, operand.parts[0], taken(X, operand.exact), store, chosen)


_INDEXED = Indexed(_samples_and_centers, _with_chosen, _chosen_outputs)


def load() -> Backend:
    """The backend, with the kernel that this CPU gets (or is told to take)."""
    kernel, reason = cpu_kernel.choose_kernel()
    # Threads of one core share its multipliers and its L2 cache: fewer may be faster.
    counts = dict.fromkeys((None, cpu.cores()))
    tried = tuple(Tile(M=M, threads=threads) for threads in counts for M in _TRIED)
    return Backend(
        "numba", np, f"{kernel}: {reason}", prepare, outputs, scores, normal,
        weights=weights, indexed=_INDEXED, tiled=kernel != "generic",
        exact_sums=lambda: True,
        tiles={"euclidean": tried, "manhattan": tried},
    )  # fmt: skip
