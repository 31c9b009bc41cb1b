"""Kernel values between training samples, in blocks, as SVC's solver asks for them."""

from __future__ import annotations

import math
import threading
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.utils import gen_batches

from gpurbf.data.samples import FORCED, Samples
from gpurbf.layer.activation import FORMULAS, Activation
from gpurbf.layer.backends import get_backend
from gpurbf.layer.backends.numba.matvec import row_products
from gpurbf.layer.layer import HiddenLayer, OutputWeights
from gpurbf.layer.sparse import SparseLayer, far_inputs, moved_near, squared_norms
from gpurbf.runtime.arrays import library, to_host
from gpurbf.runtime.lazy import lazy_module
from gpurbf.runtime.stages import count, stage
from gpurbf.runtime.threads import parallel_rows, planned_threads
from gpurbf.svm.rounding import float32_error, rounds_alike

smo_kernels = lazy_module("gpurbf.svm._smo_kernels")

# Up to this many samples the whole kernel matrix is evaluated at once; of more samples too, if
# every pair is its own working set; in both cases if the budget holds it.
MAX_MATRIX = 1024
# Rows whose norms are taken at a time.
_NORM_ROWS = 1024
# Rows that are copied at a time where they cannot be written to their final place; of a given
# matrix, in another order.
_COPIED_ROWS, _ORDERED_ROWS = 256, 32
# Values in float64 that are evaluated at a time, to be kept in float32, and rows that are rounded.
_WIDE_VALUES, _KEPT_ROWS = 1 << 21, 32
# Integers that float32 holds, and the standard deviation of rounding to it, as a part of the
# largest value.
_MAX_EXACT, _ROUNDING = 1 << 24, 2.0**-25
# Larger values, of kernels of high degree, are computed in float64 and not kept: steps on float32
# values would take beta so far that sums in float64 lose it.
MAX_FLOAT32_VALUE = 1e10
# float32 tiles are used up to this error of a value; the solver handles its effect on f.
_MAX_FLOAT32_ERROR = 1e-5
# Below this many products, one thread is done before a second has started.
_MIN_PRODUCTS_PER_THREAD = 1 << 19
# Rows that a device converts to float64 at a time.
_DEVICE_ROWS = 512
# Why "auto" does not take a GPU.
ON_HOST = "SVC uses a GPU only if backend= names one"


class GivenKernel:
    """A kernel matrix (N, N) that is given: precomputed, or made by a function of the user."""

    allocator: Any = staticmethod(nullcontext)
    rounding, linear, on_device, backend, packed_bytes = 0.0, False, False, "none", 0
    description = "a given kernel matrix"

    def __init__(self, K: np.ndarray, order: np.ndarray) -> None:
        if np.array_equal(order, np.arange(len(K))):
            self.matrix = np.ascontiguousarray(K)
        else:
            self.matrix = np.empty(K.shape, K.dtype)

            def task(rows: slice) -> None:  # "clip": NumPy then writes without a buffer
                np.take(K[order[rows]], order, axis=1, out=self.matrix[rows], mode="clip")

            parallel_rows(task, len(K), _ORDERED_ROWS)
        self.dtype = K.dtype
        self.diagonal = self.matrix.diagonal().astype(np.float64)


class KernelRows:
    """K[i, j] = phi(d(x_i, x_j)) between all N samples in the solver's order: class by class.

    Values are evaluated when they are asked for, block by block, in `dtype`, by a backend. Its
    arrays are those of the library `xp` (NumPy or a device's). In ``allocator()``, which each
    thread enters that asks for values, they count against its memory, of which ``free_bytes()`` are
    left.

    Parameters
    ----------
    X : Samples
        In the solver's order.
    activation : Activation
        The kernel.
    backend, precision : str
        As of :class:`HiddenLayer`.
    n_samples : int
        Number of samples in all data, as X may be a part of them that is to be treated alike.

    Attributes
    ----------
    matrix : ndarray or None
        All of K, if it is given (`GivenKernel`); then no values are asked for.
    diagonal : ndarray of shape (N,), float64
    among : TilesAmong or None
        The layers among all samples, if the backend takes their rows and centers out of X itself.
        Compiled rounds evaluate them if they are float32.
    cost : float
        That of evaluating a value, 1 for a value without inputs.
    linear : bool
        Whether only working sets need values, as weighted sums are made without.
    rounding : float
        The root mean square error of a value compared with exact distances, 0 if the solver need
        not handle it; ``kept_rounding``: that of rows that are kept in float32.
    backend : str
        The name of the backend; ``backend_and_reason`` are the backend itself and why it was taken.
    on_device : bool
        Whether steps are made on the device of `xp`, not on the CPU, as the caller has found;
        ``description`` then says if there is no memory for them.
    packed_bytes : int
        Of all samples as a device's layer and products take them: a copy, and floats as three.
    """

    matrix: np.ndarray | None = None
    on_device = False

    def __init__(
        self, X: Samples, activation: Activation, backend: str, precision: str, n_samples: int
    ) -> None:
        self._sparse = sp.issparse(X.values)
        if self._sparse and activation.metric == "euclidean":
            X = replace(X, values=moved_near(X.values, far_inputs(X.values)))
        self.X = self._there = X
        self.activation, self.precision, self.n_samples = activation, precision, n_samples
        # A layer for each class, with its samples as centers; other columns are needed only once.
        self._layers: dict[tuple[int, int], Any] = {}
        self._own = threading.local()
        self._choose_backend(backend)
        self.packed_bytes = 0 if self._sparse else 4 * X.values.nbytes
        # With codes, evaluating each value by 8-bit products takes less time.
        self.linear = activation.linear and X.quantization is None and self.xp is np
        self.diagonal, self.largest = self._diagonal()
        self.dtype, self.rounding, why = self._arithmetic()
        self.kept_rounding = self.rounding if self.dtype == np.float32 else _ROUNDING * self.largest
        whole = self.n_samples <= MAX_MATRIX
        # All of a small K is asked for in one call: a first small fit compiles nothing more.
        layers = None if whole else self.backend_and_reason[0].among
        self.among: Any = layers and layers(X.values, activation, self.dtype, X.quantization)
        probe = self.class_layer(slice(0, len(X))) if whole else self._layer(X[:1])
        self.cost = self._cost()
        self.description = probe.describe() + why

    def _choose_backend(self, backend: str) -> None:
        """Choose the backend, and move samples to its device.

        No backend takes sparse samples: SciPy's products are on the host, as NumPy's are.
        """
        self.backend_and_reason = get_backend("numpy" if self._sparse else backend, on_host=ON_HOST)
        found, X = self.backend_and_reason[0], self.X
        self.xp, self.backend = found.xp, "scipy" if self._sparse else found.name
        self.allocator, self.free_bytes = found.allocator, found.free_bytes
        if self.xp is not np and X.values.nbytes < self.free_bytes() / 4:
            # Rows are gathered on the device: samples are copied there once.
            with self.allocator():
                self._there = Samples(self.xp.asarray(X.values), X.quantization, X.dtype)

    def _arithmetic(self) -> tuple[np.dtype, float, str]:
        """The dtype of values, the error that the solver must handle, and the reason.

        Rows are kept in float32, as in LIBSVM. With exact distances, wider activations would bring
        nothing. Other values are float32 too, whatever the data's dtype, unless samples are so far
        apart that this loses too much, or so few that the whole matrix is kept.
        """
        X, wide = self.X, np.dtype(np.float64)
        if self.precision in FORCED:
            return np.dtype("float64" if self.precision == "float64" else "float32"), 0.0, ""
        if rounds_alike(self.activation):
            return wide, 0.0, ""
        if X.quantization is not None and self.largest <= MAX_FLOAT32_VALUE:
            # Distances and products are exact, so a value is rounded once; linear values are not,
            # if products of codes are below 2²⁴ and divided by a power of 2. Raising to a power
            # multiplies the relative error by the degree.
            d = X.quantization.denominator
            exact = np.frexp(d)[0] == 0.5 and self.largest * d * d < _MAX_EXACT
            exact = exact and self.activation.linear
            factors = 1 + self.activation.degree * (self.activation.profile == "poly")
            return np.dtype(np.float32), 0.0 if exact else _ROUNDING * self.largest * factors, ""
        if self._sparse or self.n_samples <= MAX_MATRIX:
            return wide, 0.0, ""
        between, itself = float32_error(X, self.activation, self.backend_and_reason)
        # One value of a row is that of a sample with itself.
        rounding = float(np.hypot(between, itself / np.sqrt(len(X))))
        said = f"float32 errs by {rounding:.0e} a value"
        if not rounding < _MAX_FLOAT32_ERROR:  # or it is NaN
            return wide, 0.0, f"; {said}, too much"
        return np.dtype(np.float32), rounding, f"; {said}, corrected in float64 where it matters"

    def _cost(self) -> float:
        """The cost of a kernel value, relative to that of an activation.

        An activation takes as long as the products of 64 inputs in float32, or of 256 codes. If
        activations go through memory, a value takes about four times as long.
        """
        if self._sparse:
            return math.inf
        inputs = self.X.shape[1] / (64 if self.X.quantization is None else 256)
        slower = 1 if self.backend_and_reason[0].tiled else 4
        return slower * self.dtype.itemsize / 4 * (1 + inputs)

    def _layer(self, C: Samples, wide: bool = False) -> HiddenLayer | SparseLayer:
        if self._sparse:
            return SparseLayer(C, self.activation)
        dtype, chosen = np.float64 if wide else self.dtype, self.backend_and_reason
        return HiddenLayer(
            C, self.activation, backend=chosen, precision=self.precision, dtype=dtype
        )

    def _diagonal(self) -> tuple[np.ndarray, float]:
        """K[i, i]: 1 for kernels of a distance, else a function of the squared norm.

        And a bound of all absolute values.
        """
        N, a = len(self.X), self.activation
        if a.metric != "dot":
            return np.ones(N), 1.0
        squares = np.empty(N)
        for rows in gen_batches(N, _NORM_ROWS):
            squares[rows] = squared_norms(self.X[rows].numbers().astype(np.float64))
        with np.errstate(over="ignore", invalid="ignore"):  # the solver checks for it
            values = FORMULAS[str(a.profile)]
            most = values(np.asarray(squares.max(initial=0.0)), a._replace(coef0=abs(a.coef0)))
            return values(squares, a), float(most)

    @stage("prepare", "samples gathered")
    def gathered(self, samples: np.ndarray | slice) -> Samples:
        """The samples, where values are evaluated, as :meth:`weighted` takes them."""
        there = self._there
        if there is self.X or isinstance(samples, slice):
            return there[samples]
        return there[self.xp.asarray(samples)]

    def weighted(
        self, rows: Samples, samples: np.ndarray, weights: np.ndarray, wide: bool = False
    ) -> np.ndarray:
        """K[rows, samples] @ weights of gathered rows, nothing stored; in float64 if ``wide``."""
        if self.activation.linear and self.xp is np:  # float32 holds values of codes, not sums
            return self._by_inputs(rows, samples, weights)
        layer = self._layer(self.X[samples], wide)
        return to_host(layer.matvec(rows, OutputWeights(weights[:, None])))[:, 0]

    def between(self, samples: np.ndarray) -> np.ndarray:
        """K[samples][:, samples] in float64."""
        some = self.X[samples]
        return to_host(self._layer(some, wide=True).activations(some))

    def _by_inputs(self, rows: Samples, samples: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """X[rows] (X[samples]ᵀ weights) in float64."""
        X, quantization = self.X.values, self.X.quantization
        if self._sparse:
            return rows.values @ (X[samples].T @ weights)
        if quantization is not None:
            denominator, zero = quantization
            v = row_products(X[samples].T, weights[:, None])[:, 0] - zero * weights.sum()
            return (row_products(rows.values, v[:, None])[:, 0] - zero * v.sum()) / denominator**2
        v = np.zeros(X.shape[1])
        subtract_rows(X, samples, -weights, v)
        return row_products(rows.values, v[:, None])[:, 0]

    @stage("prepare", "centers packed, norms")
    def over(
        self, samples: np.ndarray | slice, before: Any = None, fresh: slice | None = None
    ) -> Any:
        """The layer whose centers are those samples, for :meth:`values`.

        It is made from the layer `before`, which changes, if that had the same samples except the
        fresh ones.
        """
        if self.among is None:
            return self._layer(self.gathered(samples))
        if isinstance(samples, slice):
            samples = np.arange(samples.start, samples.stop)
        return self.among.layer(samples, before, fresh)

    def class_layer(self, columns: slice) -> Any:
        """The layer whose centers are a class; it is kept."""
        key = columns.start, columns.stop
        if key not in self._layers:  # of two threads at the same time, both take the first's
            self._layers.setdefault(key, self.over(columns))
        return self._layers[key]

    def values(
        self, samples: np.ndarray, columns: Any, out: Any, places: np.ndarray | None = None
    ) -> None:
        """Write K[samples, columns] into out, or into its rows ``places``.

        A slice of columns is a class, whose layer is kept; otherwise columns are a result of
        :meth:`over`.
        """
        layer = self.class_layer(columns) if isinstance(columns, slice) else columns
        if self.among is None:
            self._copied(layer, samples, out, places)
        elif out.dtype == self.dtype:
            self.among.activations(layer, samples, out, places)
        else:
            to = np.arange(len(samples)) if places is None else places
            step = max(_KEPT_ROWS, _WIDE_VALUES // max(1, out.shape[1]))
            for start in range(0, len(samples), step):
                part = slice(start, start + step)
                self._rounded(layer, samples[part], out, to[part])

    def _rounded(self, layer: Any, samples: np.ndarray, out: Any, places: np.ndarray) -> None:
        """Evaluate a layer in float64, in memory of this thread, for rows of float32."""
        n = len(samples) * out.shape[1]
        if n > len(getattr(self._own, "memory", ())):
            self._own.memory = np.empty(n)
        H = self._own.memory[:n].reshape(len(samples), out.shape[1])
        self.among.activations(layer, samples, H)

        def keep(rows: slice) -> None:
            out[places[rows]] = H[rows]

        parallel_rows(keep, len(H), _KEPT_ROWS)

    def _copied(self, layer: Any, samples: np.ndarray, out: Any, places: np.ndarray | None) -> None:
        """Evaluate a layer for samples, copied first; a few at a time for scattered rows."""
        if places is not None and (np.diff(places) == 1).all():
            out, places = out[places[0] : places[-1] + 1], None
        if places is None:
            layer.activations(self.gathered(samples), out)
            return
        for start in range(0, len(samples), _COPIED_ROWS):
            rows = slice(start, start + _COPIED_ROWS)
            H = layer.activations(self.gathered(samples[rows]))
            out[self.xp.asarray(places[rows])] = self.xp.asarray(H)


def subtract_rows(
    rows: Any, slots: np.ndarray, change: np.ndarray, f: np.ndarray, first: int = 0
) -> None:
    """``f -= change @ rows[slots, first : first + len(f)]`` on all free threads, in float64.

    If the rows are on a device, the sums are made there, and only they are copied.
    """
    if (xp := library(rows)) is not np:
        total, there, factors = xp.zeros(len(f)), xp.asarray(slots), xp.asarray(change)
        for start in range(0, len(slots), _DEVICE_ROWS):
            part = slice(start, start + _DEVICE_ROWS)
            total += factors[part] @ rows[there[part]].astype(np.float64)
        f -= total.get()
        return
    n, pairs, n_threads = len(f), len(f) * len(slots), planned_threads()
    n_strips = n_threads * (1 + n // (smo_kernels.COLUMNS * n_threads))
    n_strips = max(1, min(n_strips, pairs // _MIN_PRODUCTS_PER_THREAD))
    subtract, n_rows = smo_kernels.subtraction_of(rows.dtype).ctypes, len(slots)
    source, places, factors, to = (array.ctypes.data for array in (rows, slots, change, f))

    def task(strip: slice) -> None:
        ends, begin = (strip.start, strip.stop), source + rows.itemsize * first
        subtract(begin, rows.shape[1], places, n_rows, factors, to, *ends)

    with stage("output training", "gradient"):
        parallel_rows(task, n, -(-n // n_strips))
        count(operations=2 * pairs, kind="float64", nbytes=pairs * rows.itemsize + 2 * f.nbytes)
