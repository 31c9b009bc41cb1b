"""The `numba` backend: BNL tiles on CPU threads, activated and consumed while they are in cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from gpurbf._stages import count, stage
from gpurbf.backends import Activation, Backend, Lattice, Tile, cpu, sums
from gpurbf.backends.epilogue import epilogue, form
from gpurbf.backends.peak import arithmetic
from gpurbf.backends.threads import parallel_for, thread_limit
from gpurbf.backends.tuning import precision_of, tile_for

# Largest number of inputs whose squared distances of 8-bit codes stay below 2³¹, in whole groups.
_INT32_FEATURES = 33_024
# Untuned, a block of packed rows leaves room for the centers that it meets in an L2 cache, taken
# for 1 MiB where the system does not tell.
_L2_BYTES = 1 << 20
_BLOCK_ROWS = 192
# Reading the centers less often is worth more than a block that fits (docs/design.md).
_FEWEST_ROWS = 96
# Rows of a block that the tuner tries, and the most bytes of one where inputs are many more.
_TRIED = (24, 48, 96, 192, 384)
_MOST_BYTES = 1 << 24
# Bytes of inputs, a pair at a time, that take long enough to wake another thread for (some 0.1 ms;
# an activation costs about as much as 64 of its inputs).
_WORTH_A_THREAD, _ACTIVATION = 1 << 25, 64
# Terms of a float32 sum before it is added to the rest.
_SUMMED = 256


class Packed(NamedTuple):
    """Centers packed for one micro-kernel, with the arguments of `layer_rows` that they fix."""

    inputs: slice  # of X that these panels cover
    shift: np.ndarray
    coefficients: tuple[Any, Any]  # of a row's sum and sum of squares in its term
    blank: np.ndarray  # carries the dtype of packed rows
    product: tuple[int, ...]
    rows: int  # of a panel of samples
    block: int
    panels: np.ndarray
    terms: np.ndarray
    finish: tuple[Any, ...]
    dtype: np.dtype
    arithmetic: str


@dataclass(frozen=True)
class Operand:
    """Centers ready for the tiles: one part, or several where 32-bit sums would overflow."""

    parts: tuple[Packed, ...]
    activation: Activation
    dtype: np.dtype
    m: int
    factor: float
    exact: bool
    vectors: str
    kernel: str
    threads: int | None

    @property
    def fused(self) -> bool:
        """Whether the tile ends in activations, so that consumers can take it there."""
        return len(self.parts) == 1 and not callable(self.activation.profile)


def prepare(C: np.ndarray, activation: Activation, dtype: Any, lattice: Lattice | None) -> Operand:
    """Pack the centers (m, n), once per fitted layer."""
    m, n = C.shape
    dtype = np.dtype(dtype)
    kernel, reason = cpu.choose_kernel()
    vectors = cpu.VECTORS[kernel]
    manhattan = activation.metric == "manhattan"
    kind = "manhattan" if manhattan else "dot"
    if lattice is None:
        name = f"{kind}{8 * dtype.itemsize}_{vectors}"
        factor, pieces = 1.0, [slice(0, n)]
    else:
        name = f"{kind}_{vectors if manhattan else kernel}"
        factor = lattice.denominator ** (-1.0 if manhattan else -2.0)
        pieces = [
            slice(i, min(i + _INT32_FEATURES, n)) for i in range(0, max(1, n), _INT32_FEATURES)
        ]
    exact, whole = lattice is not None, len(pieces) == 1
    tile = tile_for("numba", activation.metric, precision_of(dtype, exact), n)
    parts = tuple(
        _pack(name, C[:, piece], piece, activation, dtype, lattice, factor, whole, tile.M)
        for piece in pieces
    )
    said = f"{name} ({reason})"
    return Operand(parts, activation, dtype, m, factor, exact, vectors, said, tile.threads)


def _pack(
    name: str,
    C: np.ndarray,
    inputs: slice,
    activation: Activation,
    dtype: np.dtype,
    lattice: Lattice | None,
    factor: float,
    whole: bool,
    wanted: int | None,
) -> Packed:
    """Pack some inputs of the centers; a part of the inputs gives exact sums, nothing more."""
    from gpurbf.kernels import amx, packing, products
    from gpurbf.kernels.activation import FORMS, profile_address
    from gpurbf.kernels.layer import CHUNK
    from gpurbf.kernels.tiles import LANES

    m, n = C.shape
    product = products.product(name)
    width = products.padded(n, product.depth)
    n_panels = products.padded(m, LANES * product.panels) // LANES
    wide = np.float64 if lattice is None else np.int32
    # Off the lattice both sides are centered, or float32 loses its digits far from the origin.
    centered = lattice is None and activation.metric == "euclidean" and m > 0
    shift = C.mean(axis=0, dtype=np.float64) if centered else np.zeros(n, wide)
    signed = lattice is not None and product.c_dtype != np.uint8
    centers = (C - (np.int16(128) if signed else shift)).astype(product.c_dtype)
    panels = packing.pack_centers(centers, n_panels, width, product.c_group, product.c_dtype)
    totals = centers.sum(axis=1, dtype=wide)
    squares = np.einsum("ij,ij->i", centers, centers, dtype=wide)
    row, columns, alpha = _terms(activation.metric, lattice, n, totals, squares)
    terms = np.zeros(n_panels * LANES, product.out_dtype)
    terms[: len(columns)] = columns
    out_dtype = dtype if whole else np.dtype(np.float64)
    profile = activation.profile if whole and not callable(activation.profile) else "identity"
    rule = form(activation) if whole else "squared" if activation.metric == "euclidean" else "dot"
    finish = (
        product.out_dtype.type(alpha), factor if whole else 1.0, FORMS[rule],
        profile_address(profile, out_dtype),
        float(activation.gamma), float(activation.coef0), int(activation.degree),
    )  # fmt: skip
    setup = (0, 0, 0)
    if name == "dot_amx":
        addresses = products.address("enter_amx"), products.address("leave_amx")
        setup = (*addresses, amx.CONFIGURATION.ctypes.data)
    depth = max(1, width)
    if product.out_dtype == np.float32:
        depth = -(-depth // -(-depth // _SUMMED))
    row_bytes = width * product.x_dtype.itemsize
    rows_that_fit = cpu.cache_bytes(2, _L2_BYTES) // 4 // row_bytes
    most = wanted or min(_BLOCK_ROWS, max(_FEWEST_ROWS, rows_that_fit))
    most = min(most, _MOST_BYTES // row_bytes)
    least = max(CHUNK, product.rows)
    block = max(least, most // least * least)
    return Packed(
        inputs,
        shift,
        (wide(row[0]), wide(row[1])),
        np.empty(0, product.x_dtype),
        (
            products.address(name),
            *setup,
            product.rows,
            product.panels,
            product.x_group,
            width,
            depth,
        ),
        product.rows,
        block,
        panels,
        terms,
        finish,
        out_dtype,
        arithmetic(name),
    )


def _terms(
    metric: str, lattice: Lattice | None, n: int, totals: np.ndarray, squares: np.ndarray
) -> tuple[tuple[int, int], np.ndarray, int]:
    """What to add to the products P: coefficients (sum, squares) of a row, columns, factor of P.

    On the lattice, with codes u and v of a sample and a center, P = Σ u (v - 128) and totals and
    squares are those of v - 128; all of it holds modulo 2³², and so does the result.
    """
    nothing = np.zeros(len(totals), totals.dtype)
    if metric == "manhattan":
        return (0, 0), nothing, 1
    if lattice is None:
        return ((0, 1), squares, -2) if metric == "euclidean" else ((0, 0), nothing, 1)
    if metric == "euclidean":
        # Σ(u - v)² = Σu² - 256 Σu + Σv² - 2P, and Σv² = Σ(v - 128)² + 256 Σ(v - 128) + 128² n
        return (-256, 1), squares + 256 * totals + 16384 * n, -2
    # Σ(u - z)(v - z) = P + (128 - z) Σu - z Σ(v - 128) + z (z - 128) n
    z = lattice.zero
    return (128 - z, 0), -z * totals + z * (z - 128) * n, 1


def _rows(X: np.ndarray, exact: bool) -> np.ndarray:
    """X as one of the few types that the tiles are compiled for: contiguous and read-only."""
    dtype = np.uint8 if exact else np.float32 if X.dtype == np.float32 else np.float64
    rows = np.ascontiguousarray(X, dtype).view()
    rows.flags.writeable = False
    return rows


def _run(
    operand: Operand,
    part: Packed,
    X: np.ndarray,
    *,
    out: np.ndarray | None = None,
    W: np.ndarray | None = None,
    scores: np.ndarray | None = None,
    weights: np.ndarray | None = None,
    mean: np.ndarray | None = None,
    panels: np.ndarray | None = None,
    pairs: np.ndarray | None = None,
    beyond: np.ndarray | None = None,
) -> None:
    """Evaluate all rows of X on the free threads; the tiles go to the consumer that is given."""
    from gpurbf.kernels import layer, packing, products
    from gpurbf.kernels.tiles import LANES

    if not len(X) or not operand.m:
        return
    dtype, score = part.dtype, (0, 1, 1)
    mode = layer.STORE if out is not None else layer.GRAM if pairs is None else layer.PAIRS
    if W is not None:
        few = W.shape[1] < LANES
        kind, mode = ("partial", layer.PARTIAL) if few else ("score", layer.SCORES)
        product = products.product(f"{kind}{8 * dtype.itemsize}_{operand.vectors}")
        score = products.address(product.name), product.rows, product.panels
        W = packing.pack_few(W, dtype, product.panels) if few else packing.pack_many(W, dtype)
    # Absent operands are empty arrays: the driver is compiled once.
    consumer = (
        mode,
        np.empty((0, 0), dtype) if out is None else out,
        np.empty((0, 0, 0), dtype) if W is None else W,
        score,
        np.empty((0, 0)) if scores is None else scores,
        np.empty(0, dtype) if weights is None else weights,
        np.empty(0, dtype) if mean is None else mean,
        np.empty((0, 0, 16), dtype) if panels is None else panels,
        np.empty((0, 0, 16), np.int32) if pairs is None else pairs,
        np.empty(0, np.uint8) if beyond is None else beyond,
    )
    fixed = (
        part.shift, *part.coefficients, part.blank, part.product, part.block,
        part.panels, part.terms, operand.m, *part.finish,
    )  # fmt: skip
    # A task is about two blocks of rows, and every thread gets as many.
    work = len(X) * operand.m * (part.panels.itemsize * X.shape[1] + _ACTIVATION)
    useful = 1 + work // _WORTH_A_THREAD
    n_threads = min(filter(None, (thread_limit(), operand.threads, useful)))
    n_tasks = n_threads * -(-len(X) // (2 * part.block * n_threads))
    rows = -(-len(X) // (n_tasks * part.rows)) * part.rows

    def task(i: int) -> None:
        layer.layer_rows(i * rows, min((i + 1) * rows, len(X)), X, *fixed, *consumer)

    with stage("hidden layer", "H" if scores is None else "H and H @ W, fused"):
        parallel_for(task, -(-len(X) // rows), n_threads)
        size, result = len(X) * operand.m, out if scores is None else scores
        count(operations=2 * size * X.shape[1], kind=part.arithmetic)
        count(nbytes=X.nbytes + part.panels.nbytes)
        count(nbytes=size * dtype.itemsize if result is None else result.nbytes)
        if scores is not None:
            count(operations=2 * size * scores.shape[1], kind=dtype.name)


def outputs(operand: Operand, X: np.ndarray, out: np.ndarray) -> np.ndarray:
    """H (N, m), written into ``out``, an array of the operand's dtype."""
    X = _rows(X, operand.exact)
    if operand.fused:
        _run(operand, operand.parts[0], X, out=out)
        return out
    rows = _tile_rows(operand)
    for start in range(0, len(X), rows):
        _unfused(operand, X[start : start + rows], out[start : start + rows])
    return out


def _unfused(operand: Operand, X: np.ndarray, out: np.ndarray) -> None:
    """A few rows of H where the profile is a callable or the inputs are in several parts."""
    activation = operand.activation
    if len(operand.parts) == 1:
        _run(operand, operand.parts[0], X, out=out)
        out[:] = activation.profile(out)  # type: ignore[operator]
        return
    distances, summand = np.zeros(out.shape), np.empty(out.shape)
    for part in operand.parts:
        _run(operand, part, _rows(X[:, part.inputs], operand.exact), out=summand)
        distances += summand
    row_terms, column_terms = np.zeros(len(X)), np.zeros(operand.m)
    epilogue(distances, row_terms, column_terms, 1.0, operand.factor, activation, out)


def _tile_rows(operand: Operand) -> int:
    """Rows whose float64 tile of H takes about 4 MiB."""
    return max(64, (1 << 19) // max(1, operand.m))


def scores(operand: Operand, X: np.ndarray, W: np.ndarray) -> np.ndarray:
    """H @ W (N, k): tiles in the operand's dtype, their sums in float64."""
    X, k = _rows(X, operand.exact), W.shape[1]
    if not operand.fused:
        S = np.empty((len(X), k), operand.dtype)
        H = np.empty((_tile_rows(operand), operand.m), operand.dtype)
        for start in range(0, len(X), len(H)):
            part = X[start : start + len(H)]
            S[start : start + len(H)] = outputs(operand, part, H[: len(part)]) @ W
        return S
    sums = np.zeros((len(X), k))
    _run(operand, operand.parts[0], X, W=W, scores=sums)
    return sums.astype(operand.dtype, copy=False)


def normal(
    operand: Operand,
    X: np.ndarray,
    T: np.ndarray,
    weights: np.ndarray | None,
    mean: np.ndarray,
    G: np.ndarray | None,
    B: np.ndarray,
    grid: sums.Grid | None = None,
) -> None:
    """Add HᵀH to G (m, m) and HᵀT to B (m, k), float64, of H less its mean, samples weighted.

    Of G the lower triangle; nothing where it is None. On a grid the sums are exact.
    """
    from gpurbf.kernels.packing import fill_panels

    X, dtype, m = _rows(X, operand.exact), operand.dtype, operand.m
    if m == 0:
        return
    roots = np.ones(len(X)) if weights is None else np.sqrt(weights)
    part = operand.parts[0] if operand.fused else None

    def values(rows: Any) -> np.ndarray:
        return outputs(operand, X[rows], np.empty((len(roots[rows]), m), dtype))

    def pack(rows: slice, panels: np.ndarray) -> None:
        root, less = roots[rows].astype(dtype), mean.astype(dtype)
        if part:
            _run(operand, part, X[rows], weights=root, mean=less, panels=panels)
        else:
            fill_panels(panels[:, : len(root)], (values(rows) - less) * root[:, None])

    def pack_pairs(rows: slice, factors: Any, pairs: np.ndarray, beyond: np.ndarray) -> None:
        if part:
            factors, less = factors.astype(dtype), sums.padded(mean, dtype, len(pairs))
            _run(
                operand, part, X[rows], weights=factors, mean=less, pairs=pairs, beyond=beyond,
            )  # fmt: skip
        else:
            sums.round_rows(values(rows), factors, mean, pairs, beyond)

    if grid is None:
        sums.add(pack, T * roots[:, None], dtype, m, G, B)
    else:
        sums.add_rounded(pack_pairs, values, T, roots, mean, grid, G, B)


def load() -> Backend:
    """The backend, with the kernel that this CPU gets (or is told to take)."""
    kernel, reason = cpu.choose_kernel()
    preference = 0 if kernel == "generic" else 3
    # Threads of one core share its multipliers and its L2 cache: fewer may be faster.
    counts = dict.fromkeys((None, cpu.cores()))
    tried = tuple(Tile(M=M, threads=threads) for threads in counts for M in _TRIED)
    return Backend(
        "numba", np, f"{kernel}: {reason}", preference, prepare, outputs, scores, normal,
        tiles={"euclidean": tried, "manhattan": tried},
    )  # fmt: skip
