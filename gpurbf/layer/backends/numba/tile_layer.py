"""The `numba` backend: BNL tiles on CPU threads, activated and consumed while they are in cache."""

from __future__ import annotations

import copy
import functools
import math
from array import array
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from gpurbf.data.quantize import Quantization
from gpurbf.layer.activation import Activation, apply_own
from gpurbf.layer.backends import Backend, forced_tile
from gpurbf.layer.backends.numba import cpu_kernel, gram
from gpurbf.layer.backends.numba.gram import Sums
from gpurbf.layer.backends.numba.matvec import ByTiles, GroupedWeights, Weights, pack_weights
from gpurbf.layer.distance import (
    ALL,
    INT32_FEATURES,
    range_shift,
    shift_of,
    terms_of,
    unit,
    usual_inputs,
)
from gpurbf.runtime.lazy import lazy_module
from gpurbf.runtime.memory import scratch
from gpurbf.runtime.stages import count, stage
from gpurbf.runtime.threads import parallel_for, parallel_rows, planned_threads

if TYPE_CHECKING:
    from gpurbf.layer.backends.numba.consumers import Consumer
    from gpurbf.layer.backends.numba.microkernels import Kind
    from gpurbf.layer.backends.numba.packing import Packing

activation_kernels = lazy_module("gpurbf.layer.backends.numba.activation_kernels")
amx = lazy_module("gpurbf.layer.backends.numba.amx")
consumers = lazy_module("gpurbf.layer.backends.numba.consumers")
driver = lazy_module("gpurbf.layer.backends.numba.driver")
microkernel_table = lazy_module("gpurbf.layer.backends.numba.microkernel_table")
microkernels = lazy_module("gpurbf.layer.backends.numba.microkernels")
packing = lazy_module("gpurbf.layer.backends.numba.packing")


# Bytes of inputs, over all pairs of a sample and a center, that are worth another thread (0.1 ms or
# so); an activation costs about as much as 64 bytes of inputs.
_MIN_BYTES_PER_THREAD, _ACTIVATION_BYTES = 1 << 25, 64
# Rows of a block. Reading centers less often is worth more than a block that fits in an L2 cache
# (docs/notes/cpu-kernels.md).
_BLOCK_ROWS = 192
# Maximum bytes of a block, for very many inputs.
_MAX_BLOCK_BYTES = 1 << 24
# A strip of centers of more than `_WIDE_BYTES` is taken in parts, which stay in cache while they
# meet all rows of a block. Their steps are a multiple of the runs of float32 sums.
_PART_BYTES, _WIDE_BYTES, _RUN = 1 << 16, 1 << 18, 128
# Rows that a thread shifts at a time, and inputs of centers that it packs.
_SHIFTED_ROWS, _PACKED_INPUTS = 512, 1 << 19


class TileLayer:
    """Centers packed for one micro-kernel: see `gpurbf.layer.backends.PreparedLayer`.

    Samples and centers are shifted by a vector near their mean, so that products lose fewer digits.
    It is found from ``among`` (N, n), by default from the centers C (m, n).

    ``codes``: X is 8-bit codes; otherwise it is numbers. ``block`` rows are packed at a time.
    ``sparse``: strips of centers leave out the inputs that are zero in all of them; ``density`` is
    the part of all products that is not left out.
    """

    def __init__(
        self,
        C: np.ndarray,
        activation: Activation,
        dtype: Any,
        quantization: Quantization | None,
        among: np.ndarray | None = None,
    ) -> None:
        among, n = C if among is None else among, C.shape[1]
        self.activation, self.dtype, metric = activation, np.dtype(dtype), activation.metric
        self.codes = quantization is not None
        integers = self.codes and n <= INT32_FEATURES  # with more, float64 holds all distances
        kernel, _ = cpu_kernel.choose_kernel()
        task = "manhattan" if metric == "manhattan" else "dot"
        inputs = np.uint8 if integers else np.float64 if self.codes else self.dtype
        name = cpu_kernel.kernel_for(task, inputs, kernel)
        kind: Kind = microkernel_table.KINDS[name]
        of = kind.operation
        width: int = microkernel_table.padded(n, of.group)
        self.kind, self.width = kind, width
        # Without quantization both sides are centered, or float32 loses its digits far from 0.
        centered = not self.codes and metric == "euclidean" and len(among) > 0
        usual = None if metric == "manhattan" else usual_inputs(among, centered)
        self.sparse = usual is not None
        wide = np.int32 if integers else np.float64
        # With a quantization, codes of rows become signed if the kernel needs it. All sums are
        # modulo 2³², and so is the result.
        signed = 128 if integers and of.x == np.int8 else 0
        shift = shift_of(among, usual) if centered else np.full(n, signed, wide)
        if metric == "manhattan" and not self.codes:
            shift, centered = np.zeros(n) + range_shift(C, self.dtype), True
        terms = terms_of(metric, n, quantization, s=signed)
        rows = kind.rows, width, of.group, of.x, of.out
        centers = microkernels.LANES, width, of.c_group or of.group, of.c, of.out
        self.row_packing: Packing = packing.packing_of(shift, terms.row, *rows)
        own_shift = shift if centered else np.zeros(n, wide)
        self.packing: Packing = packing.packing_of(own_shift, terms.column, *centers)
        # Of the micro-kernel, and of what is called before and after it, with its argument.
        self._addresses: tuple[int, ...] = microkernel_table.address(name), 0, 0, 0
        if name == "dot_amx":
            names = "dot_amx", "enter_amx", "leave_amx"
            configuration = amx.CONFIGURATION.ctypes.data
            self._addresses = *map(microkernel_table.address, names), configuration
        self._finish = activation_kernels.finish_address(of.out, of.out, self.dtype)
        rule = activation, terms.alpha, unit(metric, quantization), self.dtype
        self._epilogue = activation_kernels.rule_words(*rule, microkernels.BLOCK)
        self.block = _block(kind, width, forced_tile().M)
        self._pack(_typed(C, self.codes), None)

    def _pack(self, C: np.ndarray, chosen: np.ndarray | None) -> None:
        """Make C, or C[chosen], the centers."""
        kind, of, self.m = self.kind, self.kind.operation, len(C if chosen is None else chosen)
        strip = microkernels.LANES * kind.panels
        size = microkernel_table.padded(self.m, strip)
        panels = self._panels = packing.aligned((size * self.width,), of.c)
        terms = self._terms = np.empty(size, of.out)
        self._strips, self._places = packing.strips_of(kind, self.width, size // strip, self.sparse)
        layer_words = driver.LayerWords(
            *self._addresses,
            kind.rows,
            self.row_packing.sizes.ctypes.data,
            self.row_packing.shift.ctypes.data,
            kind.rows * self.width * of.x.itemsize,
            microkernels.LANES * of.group * panels.itemsize,
            self.width // of.group,
            _part(kind, self.width // of.group),
            strip,
            panels.ctypes.data,
            self._strips.ctypes.data,
            self._places.ctypes.data,
            self.m,
            self._finish,
            self._epilogue.ctypes.data,
            terms.ctypes.data,
            terms.itemsize,
        )
        self._layer_words = array("q", layer_words)
        self._pack_centers(C, chosen, 0, self.m)
        self.density = self._strips[:, 1].mean() * of.group / self.width if self.sparse else 1.0

    def _pack_centers(self, C: np.ndarray, chosen: np.ndarray | None, begin: int, end: int) -> None:
        """Pack centers begin … end of C, or of C[chosen]; see `packing.pack_centers`."""
        columns, strip = self._columns(C), microkernels.LANES * self.kind.panels
        given = columns.buffer_info()[0], self._layer_words.buffer_info()[0]
        rows = max(1, _PACKED_INPUTS // (self.width * strip)) * strip
        if chosen is None and end > rows:
            chosen = np.arange(end)
        places = 0 if chosen is None else chosen.ctypes.data

        def task(some: slice) -> None:
            lines = np.empty(4 * self.width, self.packing.line)
            ends = begin + some.start, begin + some.stop
            packing.pack_centers(*given, places, *ends, lines.ctypes.data)

        parallel_rows(task, end - begin, rows)

    def _columns(self, C: np.ndarray) -> array[int]:
        """The `packing.Columns` of centers that are rows of C, as an array."""
        columns = packing.Columns(
            self.packing.address(C.dtype),
            C.ctypes.data,
            self.packing.shift.ctypes.data,
            self.packing.sizes.ctypes.data,
            packing.leave_out_address() if self.sparse else 0,
        )
        return array("q", columns)

    def activations(self, X: np.ndarray, out: np.ndarray) -> None:
        """Write H (N, m) into ``out``, an array of the layer's dtype."""
        self.rows(X, ALL, out)

    def rows(
        self, X: np.ndarray, chosen: np.ndarray, out: np.ndarray, places: np.ndarray = ALL
    ) -> None:
        """Write the final tiles of X[chosen] into ``out``, or into its rows ``places``."""
        given = {"places": places, "row_bytes": out.strides[0], "itemsize": out.itemsize}
        self._run(X, consumers.consumer("store", out.dtype, out=out, **given), chosen)

    def pack_weights(self, W: np.ndarray | GroupedWeights) -> Weights:
        """Output weights W (m, k) in the form in which `matvec` needs them."""
        return pack_weights(W, self.dtype)

    def matvec(self, X: np.ndarray, W: Weights) -> np.ndarray:
        """H @ W (N, k): tiles in the layer's dtype, their sums in float64."""
        sums = np.zeros((len(X), W.k))
        self._run(X, W.consumer(sums), products=W.products)
        return sums.astype(self.dtype, copy=False)

    def gram(self, X: np.ndarray, T: np.ndarray, weights: np.ndarray | None, sums: Sums) -> None:
        """Add the lower triangle of HᵀH, and HᵀT, of weighted samples to the sums."""
        dtype = self.dtype
        roots = np.ones(len(X), dtype) if weights is None else np.sqrt(weights).astype(dtype)

        def pack(rows: slice, panels: np.ndarray) -> None:
            given = {"panels": panels, "panel_bytes": panels.strides[0]}
            given |= {"weights": roots[rows], "mean": sums.mean.astype(dtype)}
            self.hand_over(X[rows], consumers.consumer("gram", dtype, **given))

        gram.add(pack, T * roots[:, None], gram.kind_for(dtype, self.m), sums)

    def hand_over(self, X: np.ndarray, consumer: Consumer) -> None:
        """Hand H of the rows of X to a consumer, in cache."""
        self._run(X, consumer)

    def _run(
        self, X: np.ndarray, consumer: Consumer, chosen: np.ndarray = ALL, products: int = 0
    ) -> None:
        """Evaluate rows of X on the free threads, and hand the tiles to their consumer.

        These are all rows in order, or those that are `chosen`. ``products`` is the number of
        multiplications per row by a consumer that sums.
        """
        X, n, m = _typed(X, self.codes), len(chosen) or len(X), self.m
        if not n or not m:
            return
        # A task is about two blocks of rows, and every thread gets as many.
        panels = self._panels
        work = n * m * (panels.itemsize * X.shape[1] + _ACTIVATION_BYTES)
        useful = 1 + work // _MIN_BYTES_PER_THREAD
        n_threads = min(planned_threads(), useful) if useful > 1 else 1
        n_tasks = n_threads * -(-n // (2 * self.block * n_threads))
        step = math.lcm(self.kind.rows, consumer.together)
        rows = -(-n // (n_tasks * step)) * step
        block = min(self.block, rows)  # few rows need little scratch memory

        call_words, n_bytes = self._call_words(X, consumer, chosen, block)
        given = self._layer_words.buffer_info()[0], call_words.buffer_info()[0]

        def task(i: int) -> None:
            _held, memory = scratch(n_bytes)
            driver.evaluate_rows(i * rows, min((i + 1) * rows, n), *given, memory)

        fused = products > 0
        with stage("hidden layer", "H and H @ W, fused" if fused else "H"):
            if useful > 1:
                parallel_for(task, -(-n // rows), useful)
            else:  # it ends sooner than helpers could be found
                for i in range(-(-n // rows)):
                    task(i)
            results = consumer.arrays["scores"].nbytes if fused else n * m * self.dtype.itemsize
            count(
                operations=int(2 * n * m * X.shape[1] * self.density),
                kind=self.kind.operation.arithmetic,
                nbytes=n * X.shape[1] * X.itemsize + panels.nbytes + results,
            )
            if fused:
                # `dtype.name` takes as long as everything else here.
                count(operations=2 * n * products, kind=self.dtype.type.__name__)

    def _call_words(
        self, X: np.ndarray, consumer: Consumer, chosen: np.ndarray, block: int
    ) -> tuple[array[int], int]:
        """The `driver.CallWords` as an array, and the bytes of memory that each thread needs."""
        sizes = self._terms.itemsize, self.dtype.itemsize
        row_bytes = self.width * self.kind.operation.x.itemsize
        *places, n_bytes = _places(self.kind.rows, row_bytes, *sizes, block, consumer.sums)
        call_words = driver.CallWords(
            self.row_packing.address(X.dtype),
            X.ctypes.data,
            X.strides[0],
            chosen.ctypes.data if len(chosen) else 0,
            consumer.address,
            consumer.sums,
            block,
            *places,
        )
        # Making it and finding its address takes 0.8 µs (NumPy: 1.7 µs) of a call of some 25 µs.
        return array("q", [*call_words, *consumer.words]), n_bytes


class OwnProfileLayer(ByTiles, TileLayer):
    """A layer with a user's profile of arrays: its tiles go through memory."""

    def activations(self, X: np.ndarray, out: np.ndarray) -> None:
        """Write H (N, m) into ``out``, an array of the layer's dtype."""
        super().activations(X, out)
        step = self.tile_rows()
        for start in range(0, len(out), step):
            apply_own(self.activation.profile, out[start : start + step])

    def tile_rows(self) -> int:
        """Rows whose float64 tile of H takes about 4 MiB."""
        return max(64, (1 << 19) // max(1, self.m))


def prepare(C: np.ndarray, activation: Activation, *arithmetic: Any) -> TileLayer:
    """The `TileLayer` of centers; ``arithmetic`` is its dtype and quantization."""
    kind = OwnProfileLayer if callable(activation.profile) else TileLayer
    return kind(C, activation, *arithmetic)


def _block(kind: Kind, width: int, wanted: int | None) -> int:
    """Rows that are packed at a time: the ``wanted`` number, or a good one."""
    row_bytes = width * kind.operation.x.itemsize
    most = min(wanted or _BLOCK_ROWS, _MAX_BLOCK_BYTES // row_bytes)
    least = max(consumers.CHUNK, kind.rows)
    return max(least, most // least * least)


def _part(kind: Kind, steps: int) -> int:
    """Steps of the inputs that are taken at a time: of very many floats, a part."""
    step_bytes = microkernels.LANES * kind.panels * kind.operation.c.itemsize
    if kind.operation.out.kind != "f" or steps * step_bytes <= _WIDE_BYTES:
        return steps
    return _PART_BYTES // step_bytes // _RUN * _RUN


@functools.cache
def _places(rows: int, row_bytes: int, product: int, size: int, block: int, sums: int) -> list[int]:
    """Offsets of the parts of a thread's memory after the packed rows, and the end of the last.

    A row of a panel takes ``row_bytes``, a product ``product``, an activation ``size``, and a row's
    sums that wait for the next tile ``sums`` bytes.
    """
    padded = -(-block // rows) * rows
    parts = (
        padded * row_bytes,
        4 * row_bytes,
        padded * microkernels.BLOCK * product,
        block * product,
        consumers.CHUNK * microkernels.BLOCK * size,
        (block + consumers.CHUNK) * sums,
    )
    return list(accumulate(-(-part // 64) * 64 for part in parts))


def _typed(X: np.ndarray, codes: bool) -> np.ndarray:
    """X as a contiguous array of one of the few types that rows are packed from."""
    dtype = np.uint8 if codes else np.float32 if X.dtype == np.float32 else np.float64
    return np.ascontiguousarray(X, dtype)


class TilesAmong:
    """Layers whose centers and samples are rows of one array X (N, n), not copied.

    Rows are packed repeatedly, which takes half the time if they take half the memory. So numbers
    that the micro-kernel takes in another dtype are shifted and converted once.
    """

    def __init__(
        self, X: np.ndarray, activation: Activation, dtype: Any, quantization: Quantization | None
    ) -> None:
        # A center of the layer's dtype: packing numbers of X's would have to be compiled.
        center = np.zeros((1, X.shape[1]), dtype)
        layer = TileLayer(center, activation, dtype, quantization, among=X)
        self._X, self._blank = _typed(X, layer.codes), layer  # which evaluates nothing itself
        if layer.codes or X.dtype == layer.kind.operation.x:
            return
        source, self._X = self._X, np.empty(X.shape, layer.kind.operation.x)
        shift = layer.packing.shift[: X.shape[1]]

        def task(rows: slice) -> None:
            np.subtract(source[rows], shift, out=self._X[rows], casting="unsafe")

        parallel_rows(task, len(source), _SHIFTED_ROWS)
        layer.packing, layer.row_packing = layer.packing.unshifted(), layer.row_packing.unshifted()

    def layer(
        self, chosen: np.ndarray, before: TileLayer | None = None, fresh: slice | None = None
    ) -> TileLayer:
        """The layer with centers X[chosen].

        It is the layer `before`, renewed in place, if that is given, only its `fresh` centers have
        changed, and these are whole strips.
        """
        if before is not None and fresh is not None and len(chosen) == before.m:
            strip = microkernels.LANES * before.kind.panels
            if fresh.start % strip == fresh.stop % strip == 0:
                before._pack_centers(self._X, chosen, fresh.start, fresh.stop)
                return before
        layer = copy.copy(self._blank)
        layer._pack(self._X, chosen)
        return layer

    def activations(
        self,
        layer: TileLayer,
        chosen: np.ndarray,
        out: np.ndarray,
        places: np.ndarray | None = None,
    ) -> None:
        """Write H of X[chosen] into ``out``, or into its rows ``places``."""
        if len(chosen):
            layer.rows(self._X, chosen, out, ALL if places is None else places)

    def layer_words(self, layer: TileLayer) -> np.ndarray:
        """Words of `driver.LayerWords` for compiled code, valid as long as the layer exists."""
        return np.frombuffer(layer._layer_words, np.intp)

    def words(self) -> tuple[np.ndarray, np.ndarray, int]:
        """Return the arguments for compiled code that all layers share.

        Returns
        -------
        columns : ndarray
            Words of `packing.Columns`, which packs a layer's centers again.
        call_words : ndarray
            Words of `driver.CallWords` and `consumers.Store`; rows and target are still to be set.
        n_bytes : int
            Memory that a thread needs.
        """
        layer = self._blank
        itemsize = layer.dtype.itemsize
        store = consumers.consumer(
            "store", layer.dtype, out=ALL, places=ALL, row_bytes=0, itemsize=itemsize
        )
        call_words, n_bytes = layer._call_words(self._X, store, ALL, layer.block)
        columns = np.frombuffer(layer._columns(self._X), np.intp)
        return columns, np.frombuffer(call_words, np.intp), n_bytes


def load() -> Backend:
    """The backend, with the kernel that is chosen (or forced) for this CPU."""
    kernel, forced = cpu_kernel.choose_kernel()
    return Backend(
        name="numba",
        xp=np,
        kernel=f"{cpu_kernel.KERNELS[kernel].title} kernels" + (forced and f" ({forced})"),
        prepare=prepare,
        among=TilesAmong,
        tiled=kernel != "generic",
        exact_sums=lambda: True,
    )
