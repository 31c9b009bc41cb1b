"""The hidden layer by matrix product: |x - c|² = |x|² + |c|² - 2 x·c, then a fused epilogue.

The same lines serve every array library; a backend brings its products and its epilogue. Both
operands are shifted first: quantized so that they fit the product's integers and every term is
exact, off it by the mean of the centers, without which float32 loses its digits far from the
origin. `terms` has the algebra.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from gpurbf.data.quantize import Quantization
from gpurbf.layer.activation import Activation
from gpurbf.layer.backends import Backend, Tile
from gpurbf.layer.backends.numba import gram
from gpurbf.layer.backends.numba.gram import Grid
from gpurbf.layer.backends.tile import forced_tile
from gpurbf.layer.distance import INT32_FEATURES, Coefficients, evaluate, terms_of, unit
from gpurbf.runtime.config import get_config
from gpurbf.runtime.stages import count, stage

# Samples of a tile. A product reorders its operands first, which
# few samples do not pay for, and many leave the caches before they are activated
# (docs/notes/cpu-kernels.md has the measurements).
_ROWS = 1024
_TRIED = tuple(Tile(M=rows) for rows in (256, 512, 2048))


class Gemm(NamedTuple):
    """A matrix product ``multiply(A, B, out)``: A (N, n), B (m, n), out = A Bᵀ (N, m).

    The shifts bring codes into the range of x_dtype and c_dtype; ``pack`` turns a shifted
    operand into what ``multiply`` reads; ``arithmetic`` is the kind of its operations. A GPU reads
    rows of whole ``group`` inputs, and centers of whole groups; ``parts``: each number is three.
    ``centered``: not quantized both operands are shifted by the mean of the centers.
    """

    arithmetic: str
    x_dtype: Any
    c_dtype: Any
    out_dtype: Any
    x_shift: int
    c_shift: int
    multiply: Callable[[Any, Any, Any], Any]
    pack: Callable[[Any], Any] = lambda A: A
    group: int = 1
    parts: bool = False
    centered: bool = True


@dataclass(frozen=True)
class ShiftedCenters:
    """Centers made ready for the product: shifted, converted, with the terms of the columns."""

    product: Gemm
    activation: Activation
    dtype: np.dtype
    centers: Any
    x_shift: Any
    column_terms: Any
    row: Coefficients
    alpha: int
    factor: float
    M: int  # samples of a tile; 0 where tiles are not cut here


def row_sums(A: Any, power: int, dtype: Any) -> Any:
    """The sum of a power of each row's elements, computed in dtype."""
    wide = A.astype(dtype)
    return (wide if power == 1 else wide * wide).sum(axis=1)


def shifted(xp: ModuleType, X: Any, shift: Any, dtype: Any) -> Any:
    """X - shift in dtype, computed where neither the shift nor a small integer type rounds."""
    if np.issubdtype(dtype, np.floating) and X.dtype in (np.float32, np.float64):
        # Subtract before a float64 sample is rounded to float32.
        shift = shift.astype(X.dtype) if hasattr(shift, "astype") else shift
        return xp.ascontiguousarray((X - shift).astype(dtype, copy=False))
    if np.issubdtype(dtype, np.floating):
        return xp.subtract(X, shift, dtype=dtype)
    return (X.astype(np.int16) - np.int16(shift)).astype(dtype)


def _fitting(operand: ShiftedCenters) -> int:
    """Rows whose H takes a quarter of the memory budget; a multiple of 16, at least 64."""
    a_row = operand.dtype.itemsize * max(1, len(operand.centers))
    return max(64, int(get_config()["memory"] * 2**20 / 4 / a_row) // 16 * 16)


def _rows_a_tile(operand: ShiftedCenters) -> int:
    """How many rows are computed at a time."""
    return min(operand.M, _fitting(operand))


def shifted_centers(
    moved: Callable[..., tuple[Any, Any]],
    product: Gemm,
    C: Any,
    activation: Activation,
    dtype: np.dtype,
    quantization: Quantization | None,
    M: int = 0,
) -> ShiftedCenters:
    """The operand of centers C (m, n) for a product.

    ``moved(product, C, shift, dtype, coefficients, terms_dtype)`` is C - shift as the product reads
    it, and the terms of its rows.
    """
    n, metric = C.shape[1], activation.metric
    s: Any
    t: Any
    kind: Any
    if quantization is not None:
        s, t = product.x_shift, product.c_shift
        terms = terms_of(metric, n, quantization, s, t)
        kind = np.int32 if n <= INT32_FEATURES else np.float64
    else:
        # A shift that float32 holds exactly is the same number for samples of every dtype.
        mean = product.centered and metric != "dot" and len(C) > 0
        s = t = C.mean(axis=0, dtype=np.float64).astype(np.float32) if mean else 0.0
        terms, kind = terms_of(metric, n, None), dtype
    centers, columns = moved(product, C, t, product.c_dtype, terms.column, kind)
    return ShiftedCenters(
        product=product,
        activation=activation,
        dtype=dtype,
        centers=centers,
        x_shift=s,
        column_terms=columns,
        row=terms.row,
        alpha=terms.alpha,
        factor=unit(metric, quantization),
        M=M,
    )


@dataclass(frozen=True)
class MatrixProduct:
    """The layer by matrix product on the arrays of one library.

    ``products(dtype, n, quantization, **options)`` chooses the product for n inputs,
    ``gram(H)`` is HᵀH of a tile,
    ``epilogue`` that of `backends.epilogue`. ``times`` may stand in for the library's
    product in H @ W.
    """

    name: str
    xp: ModuleType
    products: Callable[..., Gemm]
    gram: Callable[[Any], Any]
    epilogue: Callable[..., None]
    times: Callable[..., Callable[[Any, Any], None]] | None = None

    def backend(self, kernel: str) -> Backend:
        """These functions as a backend, of which ``kernel`` says what does the work."""
        return Backend(
            name=self.name,
            xp=self.xp,
            kernel=kernel,
            prepare=self.prepare,
            outputs=self.outputs,
            scores=self.scores,
            normal=self.normal,
            weights=self.weights,
            tiled=False,
            tiles={"euclidean": _TRIED},
            exact_sums=gram.fast,
        )

    def prepare(
        self,
        C: Any,
        activation: Activation,
        dtype: Any,
        quantization: Quantization | None,
        **options: Any,
    ) -> ShiftedCenters:
        """Shift and convert the centers (m, n), once per fitted layer."""
        dtype, n, exact = np.dtype(dtype), C.shape[1], quantization is not None
        product = self.products(dtype, n, exact, **options)
        M = forced_tile().M or _ROWS
        return shifted_centers(self._moved, product, C, activation, dtype, quantization, M)

    def outputs(self, operand: ShiftedCenters, X: Any, out: Any) -> Any:
        """H (N, m), written into ``out``."""
        rows = _rows_a_tile(operand)
        for start in range(0, X.shape[0], rows):
            part = slice(start, start + rows)
            self._tile(operand, X[part], out[part])
        return out

    def scores(self, operand: ShiftedCenters, X: Any, W: Any) -> Any:
        """H @ W (N, k), a tile of H at a time."""
        xp, m = self.xp, operand.centers.shape[0]
        times, k = W if isinstance(W, tuple) else self.weights(operand, W)
        rows = _rows_a_tile(operand)
        H = xp.empty((min(rows, X.shape[0]), m), operand.dtype)
        S = xp.empty((X.shape[0], k), operand.dtype)
        for start in range(0, X.shape[0], rows):
            part = slice(start, min(start + rows, len(S)))
            times(self.outputs(operand, X[part], H[: part.stop - start]), S[part])
        return S

    def weights(self, operand: ShiftedCenters, W: Any) -> tuple[Callable[[Any, Any], None], int]:
        """Output weights W (m, k) in the form in which `scores` needs them, and k."""
        return (self.times or self._times)(W, operand.dtype), W.shape[1]

    def _times(self, W: Any, dtype: np.dtype) -> Callable[[Any, Any], None]:
        """H @ W by the library's own product; see `weighted.times`."""
        product = self.products(dtype, len(W), False)
        W = product.pack(self.xp.ascontiguousarray(W.T, dtype=dtype))

        def multiply(H: Any, S: Any) -> None:
            with stage("hidden layer", "H @ W"):
                product.multiply(product.pack(H), W, S)
                count(operations=2 * H.size * len(W), kind=product.arithmetic)
                count(nbytes=H.nbytes + W.nbytes)

        return multiply

    def normal(
        self,
        operand: ShiftedCenters,
        X: Any,
        T: Any,
        weights: Any,
        mean: Any,
        G: Any,
        B: Any,
        grid: Grid | None = None,
    ) -> None:
        """Add HᵀH to G (m, m), if any, and HᵀT to B (m, k), float64, of H less its mean, weighted.

        Exact sums on a grid.
        """
        xp, m = self.xp, operand.centers.shape[0]
        if grid is not None:
            self._rounded(operand, X, T, weights, mean, grid, G, B)
            return
        # HᵀH wants many rows: each part of them reads and writes all of G.
        rows = max(256, _fitting(operand))
        H = xp.empty((min(rows, X.shape[0]), m), operand.dtype)
        # A GPU may be slow in float64.
        kind = gram.kind_for(operand.dtype, m) if xp is np else operand.dtype
        mean = xp.asarray(mean, operand.dtype)
        for start in range(0, X.shape[0], rows):
            part = X[start : start + rows]
            tile = self.outputs(operand, part, H[: part.shape[0]])
            with stage("output training", "HᵀT" if G is None else "HᵀH"):
                tile = tile.astype(kind, copy=False)
                tile -= mean
                targets = T[start : start + rows].astype(kind)
                if weights is not None:
                    root = xp.sqrt(weights[start : start + rows]).astype(operand.dtype)[:, None]
                    tile *= root
                    targets = targets * root
                # Both products exist before the sums change: where memory runs out, they have not.
                squares, products = None if G is None else self.gram(tile), tile.T @ targets
                if squares is not None:
                    G += squares
                B += products
                # One triangle and HᵀT; G is read and written.
                triangle, nbytes = (0, 0) if G is None else (m + 1, 2 * G.nbytes)
                count(operations=tile.size * (triangle + 2 * T.shape[1]), kind=kind.name)
                count(nbytes=tile.nbytes + targets.nbytes + nbytes)

    def _rounded(
        self,
        operand: ShiftedCenters,
        X: Any,
        T: Any,
        weights: Any,
        mean: Any,
        grid: Grid,
        G: Any,
        B: Any,
    ) -> None:
        """The same, exactly, of H and T rounded to a grid; see `sums`."""
        m, roots = len(B), np.ones(X.shape[0]) if weights is None else np.sqrt(weights)

        def values(rows: Any) -> Any:
            part = X[rows]
            return self.outputs(operand, part, np.empty((part.shape[0], m), operand.dtype))

        def pack(rows: slice, factors: Any, pairs: Any, beyond: Any) -> None:
            step = max(2, _rows_a_tile(operand) // 2 * 2)
            for start in range(0, len(factors), step):
                part = slice(start, min(start + step, len(factors)))
                H = values(slice(rows.start + part.start, rows.start + part.stop))
                with stage("output training", "H rounded"):
                    gram.round_rows(H, factors[part], mean, pairs, beyond[part], start // 2)

        if m:
            gram.add_rounded(pack, values, T, roots, mean, grid, G, B)

    def _tile(self, operand: ShiftedCenters, X: Any, out: Any) -> None:
        """The outputs of a few rows: product, then terms, metric and profile in one pass."""
        xp, product = self.xp, operand.product
        with stage("prepare", "samples shifted, norms"):
            kind = operand.column_terms.dtype
            packed, row_terms = self._moved(
                product, X, operand.x_shift, product.x_dtype, operand.row, kind
            )
            count(nbytes=X.size * X.dtype.itemsize + packed.size * packed.dtype.itemsize)
        with stage("hidden layer", "H"):
            # The epilogue reads a product before it writes its activation: they may share memory.
            in_place = out.dtype.itemsize == np.dtype(product.out_dtype).itemsize
            P = out.view(product.out_dtype) if in_place else xp.empty(out.shape, product.out_dtype)
            product.multiply(packed, operand.centers, P)
            self.epilogue(
                P, row_terms, operand.column_terms, operand.alpha, operand.factor,
                operand.activation, out,
            )  # fmt: skip
            count(operations=2 * X.size * out.shape[1], kind=product.arithmetic)
            count(nbytes=packed.size * packed.dtype.itemsize)
            count(nbytes=operand.centers.nbytes + out.nbytes)

    def _moved(
        self,
        product: Gemm,
        A: Any,
        shift: Any,
        dtype: Any,
        coefficients: Coefficients,
        terms_dtype: Any,
    ) -> tuple[Any, Any]:
        """A - shift as the product reads it, and what each row adds to its distances."""
        moved = shifted(self.xp, A, shift, dtype)
        wide = np.int64 if np.issubdtype(dtype, np.integer) else np.float64
        terms = evaluate(self.xp, coefficients, moved, row_sums, wide)
        return product.pack(moved), terms.astype(terms_dtype)
