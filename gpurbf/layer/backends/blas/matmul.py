"""The hidden layer by matrix product: |x - c|² = |x|² + |c|² - 2 x·c, then a fused epilogue.

A backend supplies its products. Both operands are shifted first: quantized data so that they fit
the product's integers and every term is exact; other data by the mean of the centers, because
float32 would lose digits far from the origin. `distance` has the algebra.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from gpurbf.data.quantize import Quantization
from gpurbf.layer.activation import Activation, apply_own
from gpurbf.layer.backends import Backend, forced_tile
from gpurbf.layer.backends.numba import gram, tile_layer
from gpurbf.layer.backends.numba.gram import Sums
from gpurbf.layer.backends.numba.matvec import ByTiles
from gpurbf.layer.distance import INT32_FEATURES, Coefficients, Terms, range_shift, terms_of, unit
from gpurbf.runtime.config import working_bytes
from gpurbf.runtime.lazy import lazy_module
from gpurbf.runtime.stages import count, stage
from gpurbf.runtime.threads import parallel_rows

activation_kernels = lazy_module("gpurbf.layer.backends.numba.activation_kernels")

# Samples of a tile. A product reorders its operands first, which does not pay off for few samples.
# Products of many samples leave the caches before they are activated
# (docs/notes/cpu-kernels.md has the measurements).
_ROWS = 1024
# What a thread takes at a time: rows of products to activate, and numbers to shift, which are then
# still in cache when their squares are summed.
_ROWS_ACTIVATED, _NUMBERS_MOVED = 32, 1 << 17


def _square(H: np.ndarray) -> np.ndarray:
    # NumPy recognizes its operand transposed and calls the symmetric product: half the work.
    return H.T @ H


class Gemm(NamedTuple):
    """A matrix product ``multiply(A, B, out)``: A (N, n), B (m, n), out = A Bᵀ (N, m).

    The shift brings codes into the range of ``dtype``; ``arithmetic`` is the kind of its
    operations. On a GPU inputs, and centers too, are padded to whole groups of ``group``;
    ``parts``: each number is stored as three. ``centered``: operands that are not quantized are
    both shifted by the mean of the centers. ``square(H)`` is HᵀH of a tile, or its lower triangle.
    """

    arithmetic: str
    dtype: Any
    out_dtype: Any
    shift: int
    multiply: Callable[[Any, Any, Any], Any]
    group: int = 1
    parts: bool = False
    centered: bool = True
    square: Callable[[np.ndarray], np.ndarray] = _square


class Shifted(NamedTuple):
    """The shift of rows for a product, and the numbers that turn products into a metric's values.

    The value is ``factor * (row + column + alpha * product)``. ``terms`` has the coefficients of a
    sample's and of a center's term, which are of the dtype ``kind``, and alpha.
    """

    shift: Any
    terms: Terms
    kind: np.dtype
    factor: float


def row_terms(coefficients: Coefficients, A: np.ndarray) -> np.ndarray:
    """The terms of the rows of A, computed in float64."""
    terms = np.zeros(len(A))
    if coefficients.quadratic:
        terms += coefficients.quadratic * np.square(A, dtype=np.float64).sum(axis=1)
    if coefficients.linear:
        terms += coefficients.linear * A.sum(axis=1, dtype=np.float64)
    return terms + coefficients.constant


def shifted(
    C: Any,
    metric: str,
    dtype: np.dtype,
    quantization: Quantization | None,
    shift: int = 0,
    centered: bool = True,
) -> Shifted:
    """How to shift samples and centers C (m, n), for activations of that dtype.

    Codes are shifted by ``shift``, numbers by the mean of the centers if they are ``centered``, or
    for Manhattan distances by `range_shift`.
    """
    n, factor = C.shape[1], unit(metric, quantization)
    if quantization is not None:
        kind = np.dtype(np.int32 if n <= INT32_FEATURES else np.float64)
        return Shifted(shift, terms_of(metric, n, quantization, shift, shift), kind, factor)
    s: Any = range_shift(C, dtype) if metric == "manhattan" else 0
    if centered and metric == "euclidean" and len(C) > 0:
        s = C.mean(axis=0, dtype=np.float64)
        # A shift that float32 holds exactly is the same number for samples of every dtype. Beyond
        # its range there are no float32 samples.
        with np.errstate(over="ignore", under="ignore"):
            near = s.astype(np.float32).astype(np.float64)
        close = abs(near - s) <= 1e-6 * abs(s)
        s[close] = near[close]
    return Shifted(s, terms_of(metric, n, None), dtype, factor)


class MatrixProductLayer(ByTiles):
    """A layer by matrix product: see `gpurbf.layer.backends.PreparedLayer`."""

    def __init__(
        self,
        product: Gemm,
        C: Any,
        activation: Activation,
        dtype: Any,
        quantization: Quantization | None,
    ) -> None:
        self.product, self.activation = product, activation
        self.dtype, self.m = np.dtype(dtype), C.shape[0]
        self.rows = forced_tile().M or _ROWS  # of a tile
        how = quantization, product.shift, product.centered
        self.distance = shifted(C, activation.metric, self.dtype, *how)
        self.centers, self.column_terms = self.moved(C, self.distance.terms.column)
        # Products of data, not of codes, are what a linear kernel is.
        self._products_are_values = activation.linear and quantization is None

    def _rows_that_fit(self) -> int:
        """Rows whose H takes a quarter of the memory budget; a multiple of 16, at least 64."""
        row_bytes = self.dtype.itemsize * max(1, self.m)
        return max(64, int(working_bytes() / 4 / row_bytes) // 16 * 16)

    def tile_rows(self) -> int:
        """Rows that are evaluated at a time."""
        return min(self.rows, self._rows_that_fit())

    def activations(self, X: Any, out: np.ndarray) -> None:
        """Write H (N, m) into ``out``."""
        rows = self.tile_rows()
        for start in range(0, X.shape[0], rows):
            part = slice(start, start + rows)
            self._tile(X[part], out[part])

    def gram(self, X: Any, T: np.ndarray, weights: np.ndarray | None, sums: Sums) -> None:
        """Add HᵀH, unless ``sums.G`` is None, and HᵀT of weighted samples to the sums."""
        G, B, mean = sums
        # HᵀH needs many rows at a time: each part of them reads and writes all of G.
        rows = max(256, self._rows_that_fit())
        H = np.empty((min(rows, X.shape[0]), self.m), self.dtype)
        kind, mean = gram.kind_for(self.dtype, self.m), mean.astype(self.dtype)
        for start in range(0, X.shape[0], rows):
            part = slice(start, min(start + rows, X.shape[0]))
            tile = H[: part.stop - start]
            self.activations(X[part], tile)
            with stage("output training", "HᵀT" if G is None else "HᵀH"):
                tile = tile.astype(kind, copy=False)
                tile -= mean
                targets = T[part].astype(kind)
                if weights is not None:
                    root = np.sqrt(weights[part]).astype(self.dtype)[:, None]
                    tile *= root
                    targets = targets * root
                # Compute both products first: if memory runs out, the sums have not changed.
                squares = None if G is None else self.product.square(tile)
                products = tile.T @ targets
                if G is not None:
                    G += squares
                B += products
                # One triangle and HᵀT; G is read and written.
                triangle, nbytes = (0, 0) if G is None else (self.m + 1, 2 * G.nbytes)
                count(operations=tile.size * (triangle + 2 * T.shape[1]), kind=kind.name)
                count(nbytes=tile.nbytes + targets.nbytes + nbytes)

    def _tile(self, X: Any, out: np.ndarray) -> None:
        """Write the activations of a few rows: product, then terms, metric and profile at once."""
        product, d = self.product, self.distance
        with stage("prepare", "samples shifted, norms"):
            packed, terms = self.moved(X, d.terms.row)
            count(nbytes=X.size * X.dtype.itemsize + packed.size * packed.dtype.itemsize)
        with stage("hidden layer", "H"):
            # The epilogue reads a product before it writes its activation: they may share memory.
            kind = product.out_dtype
            P = out if out.dtype == kind else np.empty(out.shape, kind)
            product.multiply(packed, self.centers, P)
            if not self._products_are_values:
                how = self.activation, d.terms.alpha, d.factor, out.dtype
                rule = activation_kernels.rule_words(*how, out.shape[1])
                given = P, terms, self.column_terms, rule, out

                def activate(rows: slice) -> None:
                    activation_kernels.epilogue_rows(rows.start, rows.stop, *given)

                parallel_rows(activate, len(P), _ROWS_ACTIVATED)
            elif P is not out:
                out[:] = P
            if callable(self.activation.profile):
                apply_own(self.activation.profile, out)
            count(operations=2 * X.size * out.shape[1], kind=product.arithmetic)
            count(nbytes=packed.size * packed.dtype.itemsize)
            count(nbytes=self.centers.nbytes + out.nbytes)

    def moved(self, A: Any, coefficients: Coefficients) -> tuple[Any, Any]:
        """Rows of A, shifted, as the product reads them, and what each adds to its distances."""
        shift, dtype = self.distance.shift, self.product.dtype
        moved, terms = np.empty(A.shape, dtype), np.empty(len(A), self.distance.kind)

        def task(rows: slice) -> None:
            # Subtract before a float64 sample is rounded to float32, and a float32 one in float64.
            less = np.subtract(A[rows], shift, dtype=np.promote_types(A.dtype, dtype), order="C")
            moved[rows] = part = less.astype(dtype, copy=False)
            terms[rows] = row_terms(coefficients, part)

        parallel_rows(task, len(A), max(1, _NUMBERS_MOVED // max(1, A.shape[1])))
        return moved, terms


def backend_by_products(
    name: str, kernel: str, products: Callable[[np.dtype, int, bool], Gemm]
) -> Backend:
    """A backend that uses the matrix products of a CPU library.

    ``products(dtype, n, quantized)`` is its product for n inputs.
    """

    def prepare(
        C: np.ndarray, activation: Activation, dtype: Any, quantization: Quantization | None
    ) -> MatrixProductLayer | tile_layer.TileLayer:
        if activation.metric == "manhattan":  # which has no matrix product
            return tile_layer.prepare(C, activation, dtype, quantization)
        product = products(np.dtype(dtype), C.shape[1], quantization is not None)
        return MatrixProductLayer(product, C, activation, dtype, quantization)

    return Backend(
        name=name, xp=np, kernel=kernel, prepare=prepare, tiled=False, exact_sums=gram.fast
    )
