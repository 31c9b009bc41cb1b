"""The hidden layer: one object that hands samples, as codes or numbers, to a backend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from gpurbf.data.quantize import Quantization
from gpurbf.data.row_blocks import read_ahead, split
from gpurbf.data.samples import FORCED, Samples, by_row, quantizations_of, quantize_or_keep
from gpurbf.layer import sparse
from gpurbf.layer.activation import PRECISIONS, Activation
from gpurbf.layer.backends import Backend, PreparedLayer, get_backend
from gpurbf.layer.backends.numba.gram import Grid, Sums, add_rounded
from gpurbf.layer.sparse import SparseProductLayer
from gpurbf.runtime.arrays import beside, is_resident, to_host
from gpurbf.runtime.errors import BackendUnavailable
from gpurbf.runtime.lazy import Lock
from gpurbf.runtime.memory import check_result
from gpurbf.runtime.stages import stage

_FLOAT64 = np.dtype(np.float64)


class _Block(NamedTuple):
    """Some rows of X as a prepared layer takes them."""

    rows: slice | np.ndarray
    layer: PreparedLayer
    values: Any


class OutputWeights:
    """Weights W (m, k) of a layer's outputs, packed once for all the products they are used in.

    W is an array or, on a CPU, `GroupedWeights`. After a change of W in place, make a new object.
    """

    def __init__(self, W: Any) -> None:
        self.W, self.shape = W, W.shape
        self._packed: dict[PreparedLayer, Any] = {}

    def packed(self, layer: PreparedLayer) -> Any:
        """The weights as that layer's ``matvec`` takes them."""
        if layer not in self._packed:
            self._packed[layer] = layer.pack_weights(self.W)
        return self._packed[layer]


class HiddenLayer:
    """H[i, j] = phi(d(x_i, c_j)) for any X, whole or consumed tile by tile.

    Parameters
    ----------
    C : Samples, ndarray of shape (m, n) or CSR
        Centers of any real dtype.
    activation : Activation
        Metric and profile with their scalars.
    backend : str or tuple, default="auto"
        A name, or the result of :func:`gpurbf.layer.backends.get_backend`.
    precision : {"auto", "exact", "float32", "tf32", "float64"}, default="auto"
        "auto" computes distances in exact integers for rows of X that are on the same integer
        quantization as the centers, and in floating point for others. "exact" refuses data that are
        not quantized. The others force that arithmetic; "tf32" is float32 whose products round
        their factors to 10 bits, on NVIDIA GPUs only.
    dtype : float32 or float64, optional
        Dtype of the activations. By default float64 for float64 centers, else float32; a forced
        precision determines it.
    quantizations : sequence of Quantization, optional
        Quantizations to try on the centers; by default the layer searches for one. A fitted
        model passes the one that was found in its training data, so that nothing depends on later
        data.

    Attributes
    ----------
    quantization : Quantization or None
        The quantization of the centers, and so of the rows that are computed exactly.
    quantizations : tuple of Quantization or None
        The argument that makes the same layer again: the quantization, if there is one; None if
        the layer did not search for one.
    wide : bool
        Whether activations in float64 were asked for, by ``dtype``.

    Raises
    ------
    ValueError
        For an unknown precision, or if the precision is "exact" and data are not quantized.
    BackendUnavailable
        If the backend cannot run here or lacks the precision.

    Notes
    -----
    A row of X that is not on the quantization of the centers is computed in float64, whatever
    `dtype` is; other rows are not affected. `Samples`, which were examined already, are used as
    they are.

    X may be a CuPy array if the backend computes with CuPy. Floats in it are not searched for
    integers, and results stay on the device.
    """

    def __init__(
        self,
        C: Any,
        activation: Activation,
        *,
        backend: Any = "auto",
        precision: str = "auto",
        dtype: Any = None,
        quantizations: Sequence[Quantization] | None = None,
    ) -> None:
        if precision not in PRECISIONS:
            raise ValueError(f"Unknown precision {precision!r}: use one of {list(PRECISIONS)}.")
        if sp.issparse(C):
            C = sparse.sparse_or_dense(C)
        elif not isinstance(C, Samples):
            C = np.asarray(to_host(C))
        self.centers = C
        self.activation = activation
        given: tuple[Backend, str] | None = backend if isinstance(backend, tuple) else None
        self.backend, self.reason = given or get_backend(
            backend, C.shape[0], metric=activation.metric
        )
        # See `gpurbf.layer.Layer`.
        self.xp, self.allocator = self.backend.xp, self.backend.allocator
        self.precision = precision
        if not isinstance(C, Samples):
            if sp.issparse(C):
                if quantizations is None:
                    quantizations = quantizations_of(C, precision) or ()
                C = self._numbers() if quantizations else C
            C = quantize_or_keep(C, precision, quantizations)
        self._samples: Samples = C
        self.quantization = self._samples.quantization
        self.quantizations: tuple[Quantization, ...] | None = None
        if precision not in FORCED:
            self.quantizations = () if self.quantization is None else (self.quantization,)
        if precision == "exact" and self.quantization is None and C.shape[0]:
            raise _not_quantized("centers")
        if precision in FORCED:
            dtype = "float64" if precision == "float64" else "float32"
        self.dtype = np.dtype(self._samples.dtype if dtype is None else dtype)
        self.wide = precision not in FORCED and dtype == np.float64
        if precision == "tf32" and precision not in self.backend.precisions:
            raise BackendUnavailable(
                f"the backend {self.backend.name!r} has no precision='tf32': use "
                "backend='cupy' on a machine with an NVIDIA GPU, or precision='float32'."
            )
        self._options = {"tf32": True} if precision == "tf32" else {}
        # The centers prepared for each arithmetic when it is first needed, by one thread.
        self._prepared: dict[tuple[np.dtype, Quantization | None], PreparedLayer] = {}
        self._lock = Lock()
        self._last_weights: OutputWeights | None = None

    @cached_property
    def sparse_centers(self) -> Any:
        """See :class:`gpurbf.layer.Layer`."""
        C = self.centers
        return C if sp.issparse(C) else sparse.sparse_or_dense(self._numbers())

    @cached_property
    def _far(self) -> bool:
        """Whether sparse rows have to be shifted."""
        some = self.activation.metric == "euclidean" and self.centers.shape[0] > 1
        return some and sparse.far_from_zero(self.sparse_centers)

    @cached_property
    @stage("prepare", "centers packed, norms")
    def _by_entries(self) -> SparseProductLayer:
        """The layer for sparse rows."""
        return SparseProductLayer(self.sparse_centers, self.activation, self.dtype)

    @property
    def exact_sums(self) -> bool:
        """See :class:`gpurbf.layer.Layer`; H is not rounded if the precision is forced."""
        return self.precision not in FORCED and self.backend.exact_sums()

    def in_float64(self, backend: str | None = None) -> HiddenLayer:
        """This layer with activations in float64, on another backend if one is named."""
        return HiddenLayer(
            self.centers,
            self.activation,
            backend=backend or (self.backend, self.reason),
            precision=self.precision,
            dtype=_FLOAT64,
            quantizations=self.quantizations,
        )

    def describe(self) -> str:
        """The backend in use and the reason, its kernels and the arithmetic, in a line."""
        arithmetic = "tf32" if self.precision == "tf32" else self.dtype.type.__name__
        if self.quantization is not None:
            denominator = self.quantization.denominator
            unit = "" if denominator == 1 else f" / {denominator:g}"
            arithmetic = f"exact 8-bit integer distances{unit}, {arithmetic} activations"
        kernel = self.backend.kernel
        if self.activation.metric == "manhattan" and self.xp is np and not self.backend.tiled:
            kernel = "tiles of numba: Manhattan distances have no matrix product"
        return f"{self.backend.name} ({self.reason}), {kernel}, {arithmetic}"

    @stage("hidden layer")
    def activations(self, X: Any, out: np.ndarray | None = None) -> np.ndarray:
        """H, shape (N, m), in the layer's dtype; into ``out``, an array of that shape, if given."""
        xp = self._library_of(X)
        if out is None:
            shape = X.shape[0], self.centers.shape[0]
            if xp is np:
                check_result(shape, self.dtype, "activations", "transform fewer samples at a time")
            out = xp.empty(shape, self.dtype)
        # Prepared layers write whole rows of their own dtype.
        direct = out.flags.c_contiguous and out.dtype == self.dtype
        for rows, layer, values in self._blocks(X):
            if direct and isinstance(rows, slice) and layer.dtype == self.dtype:
                layer.activations(values, out[rows])
                continue
            H = xp.empty((values.shape[0], self.centers.shape[0]), layer.dtype)
            layer.activations(values, H)
            H = H.astype(self.dtype, copy=False)
            places = rows if isinstance(rows, slice) else beside(out, rows)
            out[places] = self.xp.asarray(H) if is_resident(out) else to_host(H)
        return out

    @stage("hidden layer")
    def matvec(self, X: Any, W: Any) -> np.ndarray:
        """H @ W, shape (N, k), for W (m, k) or `OutputWeights`; H is not stored."""
        xp, shape = self._library_of(X), (X.shape[0], W.shape[1])
        if xp is np:
            # Probabilities take as much again.
            check_result(shape, self.dtype, "outputs", "predict fewer samples at a time", copies=2)
        S = xp.empty(shape, self.dtype)
        for rows, part in self.matvec_blocks(X, W):
            if len(part) == len(S):  # all of them, in their order
                return part
            S[rows] = part
        return S

    def matvec_blocks(self, X: Any, W: Any) -> Iterator[tuple[slice | np.ndarray, np.ndarray]]:
        """Rows and their part of H @ W, block by block, for results too large to keep."""
        W = self._weights(W)
        for rows, layer, values in self._blocks(X, 16 * W.shape[1]):
            yield rows, layer.matvec(values, W.packed(layer)).astype(self.dtype, copy=False)

    def _library_of(self, X: Any) -> ModuleType:
        """The library of results for samples X, which are where the samples are."""
        return self.xp if is_resident(getattr(X, "values", X)) else np

    def _weights(self, W: Any) -> OutputWeights:
        """W as `OutputWeights`; those of the last call if, as usual, the numbers are the same."""
        if isinstance(W, OutputWeights):
            return W
        if is_resident(W):
            return OutputWeights(W)
        last = self._last_weights
        if last is None or not np.array_equal(last.W, W):
            last = self._last_weights = OutputWeights(W.copy(order="K"))
        return last

    @stage("output training")
    def gram(
        self,
        X: Any,
        T: np.ndarray,
        weights: np.ndarray | None,
        mean: np.ndarray,
        out: tuple[Any, Any],
        grid: Grid | None = None,
    ) -> None:
        """Weighted HᵀH (m, m) and HᵀT (m, k), float64, for targets T (N, k); H is not stored.

        ``mean`` (m,) is subtracted from H. The sums are added to the arrays of ``out``, which are
        of the backend's library, on a CPU only to the lower triangle of the first; if that is None,
        only HᵀT is computed. On a ``grid`` the sums are exact.
        """
        sums = Sums(*out, mean)
        with self.allocator():
            for rows, layer, values in self._blocks(X):
                w = None if weights is None else weights[rows]
                if grid is None or self.xp is not np:  # sums on a GPU are not exact
                    layer.gram(values, T[rows], w, sums)
                else:
                    add_rounded(layer, values, T[rows], w, sums, grid)

    def _blocks(self, X: Any, row_bytes: float = 0) -> Iterator[_Block]:
        """The rows of X as prepared layers take them: sparse ones apart, dense ones by arithmetic.

        ``row_bytes`` is the memory per row that the user of the blocks needs.
        """
        thin = self.sparse_rows(X)
        if thin is None:
            yield from self._dense_blocks(X, row_bytes)
            return
        stored = (X.data.nbytes + X.indices.nbytes) / X.shape[0]
        for part in split(X, row_bytes + stored):  # some rows of CSR are a copy
            if (some := thin[part]).all():
                yield _Block(part, self._by_entries, X[part])
                continue
            rows = part.start + np.flatnonzero(some)
            yield _Block(rows, self._by_entries, X[rows])
            rows = part.start + np.flatnonzero(~some)
            for block in self._dense_blocks(X[rows], row_bytes):
                yield block._replace(rows=rows[block.rows])

    def sparse_rows(self, X: Any) -> np.ndarray | None:
        """A mask (N,) of the rows of X for sparse products, None if there are none."""
        if (
            self.quantization is not None
            or self.xp is not np
            or self.precision not in ("auto", "float64")
            or self.activation.metric == "manhattan"
        ):
            return None
        rows = sparse.sparse_rows(X)
        return None if rows is None or self._far else rows

    def _dense_blocks(self, X: Any, row_bytes: float) -> Iterator[_Block]:
        """The rows of X made dense, as codes or numbers."""
        if isinstance(X, Samples):
            yield self._block(slice(0, len(X)), X)
            return
        if is_resident(X):
            if self.xp is np:
                raise TypeError(
                    f"X is on a GPU and the backend {self.backend.name!r} ({self.reason}) is not: "
                    "set backend='cupy', or give samples on the host, as cupy.asnumpy(X) is."
                )
            if self.quantization is None or X.dtype not in (np.uint8, np.int8):
                if self.precision == "exact":
                    raise _not_quantized("samples")
                yield _Block(slice(0, len(X)), self._prepare(self.dtype, None), X)
            else:
                for rows, samples in by_row(X, self.quantization):
                    yield self._block(rows, samples)
            return
        # Rows are made dense, contiguous or encoded here.
        loose = sp.issparse(X) or not X.flags.c_contiguous
        row_bytes += (8 if loose else X.dtype != np.uint8) * X.shape[1]
        for rows, block in read_ahead(X, split(X, row_bytes)):
            dense = block.toarray() if sp.issparse(block) else np.ascontiguousarray(block)
            if self.quantization is None:
                yield _Block(rows, self._prepare(self.dtype, None), dense)
                continue
            for some, samples in by_row(dense, self.quantization):
                yield self._block(rows if isinstance(some, slice) else rows.start + some, samples)

    def _block(self, rows: slice | np.ndarray, samples: Samples) -> _Block:
        """The block of samples that are on the layer's quantization, or not on it."""
        if samples.quantization == self.quantization:
            return _Block(rows, self._prepare(self.dtype, self.quantization), samples.values)
        if self.precision == "exact":
            raise _not_quantized("samples")
        dtype = self.dtype if self.quantization is None else _FLOAT64
        return _Block(rows, self._prepare(dtype, None), samples.numbers())

    def _prepare(self, dtype: np.dtype, quantization: Quantization | None) -> PreparedLayer:
        """The centers prepared for that arithmetic."""
        key = dtype, quantization
        if key not in self._prepared:
            with self._lock.held, stage("prepare", "centers packed, norms"):
                if key not in self._prepared:
                    C = self._numbers() if quantization is None else self._samples.values
                    given = C, self.activation, *key
                    self._prepared[key] = self.backend.prepare(*given, **self._options)
        return self._prepared[key]

    def _numbers(self) -> np.ndarray:
        """The centers dense, as numbers."""
        C = self.centers.numbers() if isinstance(self.centers, Samples) else self.centers
        return C.toarray() if sp.issparse(C) else C

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("A HiddenLayer holds a backend's memory: keep its centers instead.")


def _not_quantized(what: str) -> ValueError:
    return ValueError(
        "precision='exact' needs integers from 0 to 255 or from -128 to 127, or such integers "
        f"divided by 255, 256, 128, ... or 2, and some of these {what} are others: use "
        "precision='auto'."
    )
