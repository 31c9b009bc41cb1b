"""The hidden layer by matrix product: |x - c|² = |x|² + |c|² - 2 x·c, then a fused epilogue.

The same lines serve every array namespace; a backend brings its products and its epilogue. Both
operands are shifted first (x' = x - s, c' = c - t, with e = s - t), so

    |x - c|² = Σx'² + 2e Σx' + Σc'² - 2e Σc' + n e² - 2 x'·c'
    x · c    = x'·c' + t Σx' + s Σc' + n s t

On the lattice the shifts fit the product's integers and every term is exact. Off it both are the
mean of the centers, without which float32 loses its digits far from the origin (e = 0).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from gpurbf._config import get_config
from gpurbf._stages import count, stage
from gpurbf.backends import Activation, Backend, Lattice, Tile, sums
from gpurbf.backends.tuning import precision_of, tile_for

# Largest n for which 255² n stays below 2³¹.
_INT32_FEATURES = 33_025
# Samples of a tile, and what the tuner tries besides. A product reorders its operands first, which
# few samples do not pay for, and many leave the caches before they are activated
# (docs/design.md has the measurements).
_ROWS = 1024
_TRIED = tuple(Tile(M=rows) for rows in (256, 512, 2048))


class Product(NamedTuple):
    """A matrix product ``multiply(A, B, out)``: A (N, n), B (m, n), out = A Bᵀ (N, m).

    The shifts bring lattice codes into the range of x_dtype and c_dtype; ``pack`` turns a shifted
    operand into what ``multiply`` reads.
    """

    name: str
    x_dtype: Any
    c_dtype: Any
    out_dtype: Any
    x_shift: int
    c_shift: int
    multiply: Callable[[Any, Any, Any], Any]
    pack: Callable[[Any], Any] = lambda A: A

    @property
    def arithmetic(self) -> str:
        """The kind of its operations: their type, or what the products of 8-bit codes take."""
        eight = "8-bit products"
        special = {"u8s8": eight, "int8": eight, "bf16": "bfloat16", "tf32": "tf32"}
        return special.get(self.name, np.dtype(self.x_dtype).name)


@dataclass(frozen=True)
class Operand:
    """Centers made ready for the product: shifted, converted, with the terms of the columns."""

    product: Product
    activation: Activation
    dtype: np.dtype
    centers: Any
    x_shift: Any
    column_terms: Any
    row_coefficients: tuple[float, float]
    factor: float
    exact: bool
    M: int | None  # samples of a tile; None: the rows given are one


def build(
    name: str,
    xp: ModuleType,
    kernel: str,
    preference: int,
    products: Callable[..., Product],
    gram: Callable[[Any], Any],
    epilogue: Callable[..., None],
    *,
    sums: Callable[[Any, int, Any], Any] | None = None,
    whole: bool = False,
) -> Backend:
    """A backend from its array namespace, its products, its HᵀH of a tile and its epilogue.

    ``sums`` may stand in for `row_sums`; ``whole`` says that the rows given are a tile already.
    """
    sums = sums or row_sums
    outputs = partial(_outputs, xp, epilogue, sums)
    return Backend(
        name=name,
        xp=xp,
        kernel=kernel,
        preference=preference,
        prepare=partial(_prepare, name, xp, products, sums, whole),
        outputs=outputs,
        scores=partial(_scores, xp, products, outputs),
        normal=partial(_normal, xp, gram, outputs),
        tiles={} if whole else {"euclidean": _TRIED},
    )


def row_sums(A: Any, power: int, dtype: Any) -> Any:
    """The sum of a power of each row's elements, computed in dtype."""
    wide = A.astype(dtype)
    return (wide if power == 1 else wide * wide).sum(axis=1)


def _prepare(
    name: str,
    xp: ModuleType,
    products: Callable[..., Product],
    sums: Callable[[Any, int, Any], Any],
    whole: bool,
    C: Any,
    activation: Activation,
    dtype: np.dtype,
    lattice: Lattice | None,
    **options: Any,
) -> Operand:
    """Shift and convert the centers (m, n), once per fitted layer."""
    m, n = C.shape
    exact = lattice is not None
    product = products(np.dtype(dtype), n, exact, **options)
    M = None
    if not whole:
        tile = tile_for(name, activation.metric, precision_of(np.dtype(dtype), exact), n)
        M = tile.M or _ROWS
    dot = activation.metric == "dot"
    s: Any
    t: Any
    if lattice is None:
        # A shift that float32 holds exactly is the same number for samples of every dtype.
        s = t = 0.0 if dot or m == 0 else C.mean(axis=0, dtype=np.float64).astype(np.float32)
        factor = 1.0
    else:
        s, t = product.x_shift, product.c_shift
        factor = lattice.denominator ** (-2.0)
    centers = shifted(xp, C, t, product.c_dtype)
    wide = np.float64 if lattice is None else np.int64
    squares, totals = sums(centers, 2, wide), sums(centers, 1, wide)
    if dot:
        zero = 0 if lattice is None else lattice.zero
        a, b = (s - zero, t - zero) if lattice is not None else (0, 0)
        row, columns = (0, b), a * totals + a * b * n
    else:
        e = 0 if lattice is None else s - t
        row, columns = (1, 2 * e), squares - 2 * e * totals + n * e * e
    if lattice is not None:
        columns = columns.astype(np.int32 if n <= _INT32_FEATURES else np.float64)
    else:
        columns = columns.astype(dtype)
    return Operand(
        product,
        activation,
        np.dtype(dtype),
        product.pack(centers),
        s,
        columns,
        row,
        factor,
        exact,
        M,
    )


def shifted(xp: ModuleType, X: Any, shift: Any, dtype: Any) -> Any:
    """X - shift in dtype, computed where neither the shift nor a small integer type rounds."""
    if np.issubdtype(dtype, np.floating) and X.dtype in (np.float32, np.float64):
        # Subtract before a float64 sample is rounded to float32.
        shift = shift.astype(X.dtype) if hasattr(shift, "astype") else shift
        return xp.ascontiguousarray((X - shift).astype(dtype, copy=False))
    if np.issubdtype(dtype, np.floating):
        return xp.subtract(X, shift, dtype=dtype)
    return (X.astype(np.int16) - np.int16(shift)).astype(dtype)


def _row_terms(
    xp: ModuleType, sums: Callable[[Any, int, Any], Any], operand: Operand, A: Any
) -> Any:
    """The part of each distance that depends on the sample alone."""
    quadratic, linear = operand.row_coefficients
    terms_dtype = operand.column_terms.dtype
    wide = np.int64 if operand.exact else np.float64
    terms = xp.zeros(len(A), wide)
    if quadratic:
        terms += quadratic * sums(A, 2, wide)
    if linear:
        terms += linear * sums(A, 1, wide)
    return terms.astype(terms_dtype)


def _fitting(operand: Operand) -> int:
    """Rows whose H takes a quarter of the memory budget; a multiple of 16, at least 64."""
    a_row = operand.dtype.itemsize * max(1, len(operand.centers))
    return max(64, int(get_config()["memory"] * 2**20 / 4 / a_row) // 16 * 16)


def _rows_a_tile(operand: Operand, N: int) -> int:
    """How many of N rows are computed at a time."""
    return max(1, N) if operand.M is None else min(operand.M, _fitting(operand))


def _tile(
    xp: ModuleType,
    epilogue: Callable[..., None],
    sums: Callable[[Any, int, Any], Any],
    operand: Operand,
    X: Any,
    out: Any,
) -> None:
    """The outputs of a few rows: product, then terms, metric and profile in one pass."""
    product, activation = operand.product, operand.activation
    with stage("prepare", "samples shifted, norms"):
        A = shifted(xp, X, operand.x_shift, product.x_dtype)
        row_terms, packed = _row_terms(xp, sums, operand, A), product.pack(A)
        count(nbytes=X.nbytes + A.nbytes)
    with stage("hidden layer", "H"):
        # The epilogue reads a product before it writes its activation: they may share their memory.
        in_place = out.dtype.itemsize == np.dtype(product.out_dtype).itemsize
        P = out.view(product.out_dtype) if in_place else xp.empty(out.shape, product.out_dtype)
        product.multiply(packed, operand.centers, P)
        alpha = 1.0 if activation.metric == "dot" else -2.0
        epilogue(P, row_terms, operand.column_terms, alpha, operand.factor, activation, out)
        count(operations=2 * out.size * X.shape[1], kind=product.arithmetic)
        count(nbytes=packed.nbytes + operand.centers.nbytes + out.nbytes)


def _outputs(
    xp: ModuleType,
    epilogue: Callable[..., None],
    sums: Callable[[Any, int, Any], Any],
    operand: Operand,
    X: Any,
    out: Any,
) -> Any:
    """H (N, m), written into ``out``."""
    rows = _rows_a_tile(operand, len(X))
    for start in range(0, len(X), rows):
        part = slice(start, start + rows)
        _tile(xp, epilogue, sums, operand, X[part], out[part])
    return out


def _scores(
    xp: ModuleType,
    products: Callable[..., Product],
    outputs: Callable[..., Any],
    operand: Operand,
    X: Any,
    W: Any,
) -> Any:
    """H @ W (N, k), a tile of H at a time."""
    m = operand.centers.shape[0]
    product = products(operand.dtype, m, False)
    W = product.pack(xp.ascontiguousarray(W.T, dtype=operand.dtype))
    rows = _rows_a_tile(operand, len(X))
    H = xp.empty((min(rows, len(X)), m), operand.dtype)
    S = xp.empty((len(X), len(W)), operand.dtype)
    for start in range(0, len(X), rows):
        part = X[start : start + rows]
        tile = outputs(operand, part, H[: len(part)])
        with stage("hidden layer", "H @ W"):
            product.multiply(product.pack(tile), W, S[start : start + len(part)])
            count(operations=2 * tile.size * len(W), kind=product.arithmetic)
            count(nbytes=tile.nbytes + W.nbytes)
    return S


def _normal(
    xp: ModuleType,
    gram: Callable[[Any], Any],
    outputs: Callable[..., Any],
    operand: Operand,
    X: Any,
    T: Any,
    weights: Any,
    mean: Any,
    G: Any,
    B: Any,
    grid: sums.Grid | None = None,
) -> None:
    """Add HᵀH to G (m, m) and HᵀT to B (m, k), float64, of H less its mean, samples weighted.

    Nothing is added to a G that is None. On a CPU with 16-bit products the sums are exact if there
    is a grid.
    """
    m = operand.centers.shape[0]
    if grid is not None and xp is np and sums.fast():
        _normal_rounded(outputs, operand, X, T, weights, mean, grid, G, B)
        return
    # HᵀH wants many rows: each part of them reads and writes all of G.
    rows = max(1, len(X)) if operand.M is None else max(256, _fitting(operand))
    H = xp.empty((min(rows, len(X)), m), operand.dtype)
    mean = xp.asarray(mean, operand.dtype)
    for start in range(0, len(X), rows):
        part = X[start : start + rows]
        tile = outputs(operand, part, H[: len(part)])
        with stage("output training", "HᵀT" if G is None else "HᵀH"):
            tile -= mean
            targets = T[start : start + rows].astype(operand.dtype)
            if weights is not None:
                root = xp.sqrt(weights[start : start + rows]).astype(operand.dtype)[:, None]
                tile *= root
                targets = targets * root
            # Both products exist before the sums change: where memory runs out, they have not.
            squares, products = None if G is None else gram(tile), tile.T @ targets
            if squares is not None:
                G += squares
            B += products
            # One triangle and HᵀT; G is read and written.
            triangle, nbytes = (0, 0) if G is None else (m + 1, 2 * G.nbytes)
            count(operations=tile.size * (triangle + 2 * T.shape[1]), kind=operand.dtype.name)
            count(nbytes=tile.nbytes + targets.nbytes + nbytes)


def _normal_rounded(
    outputs: Callable[..., Any],
    operand: Operand,
    X: Any,
    T: Any,
    weights: Any,
    mean: Any,
    grid: sums.Grid,
    G: Any,
    B: Any,
) -> None:
    """The same, exactly, of H and T rounded to a grid; see `sums`."""
    m, roots = len(B), np.ones(len(X)) if weights is None else np.sqrt(weights)

    def values(rows: Any) -> Any:
        part = X[rows]
        return outputs(operand, part, np.empty((len(part), m), operand.dtype))

    def pack(rows: slice, factors: Any, pairs: Any, beyond: Any) -> None:
        step = max(2, _rows_a_tile(operand, len(factors)) // 2 * 2)
        for start in range(0, len(factors), step):
            part = slice(start, min(start + step, len(factors)))
            H = values(slice(rows.start + part.start, rows.start + part.stop))
            with stage("output training", "H rounded"):
                sums.round_rows(H, factors[part], mean, pairs, beyond[part], start // 2)

    if m:
        sums.add_rounded(pack, values, T, roots, mean, grid, G, B)
