"""The `numba-cuda` backend: BNL tiles on an NVIDIA GPU, activated and consumed in the tile.

Arrays are CuPy's, kernels are Numba's (`kernels/cuda`), both on CuPy's current stream. On the
distances are exact integers: by the tensor cores from compute capability 8.0 on, before
that by four 8-bit products an instruction; Manhattan by four absolute differences an instruction.
``GPURBF_GPU_KERNEL=wgmma`` takes the tile for Hopper.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from gpurbf.data.quantize import Quantization
from gpurbf.layer.activation import FORMS, Activation, Epilogue, form, in_tile
from gpurbf.layer.backends import INSTALL, Backend
from gpurbf.layer.backends.cuda.device import device_backend
from gpurbf.layer.backends.cuda.memory import Device, DeviceWeights, Needs
from gpurbf.layer.backends.tile import Tile, forced_tile
from gpurbf.layer.distance import INT32_FEATURES, Coefficients, terms_of, unit
from gpurbf.runtime.errors import BackendUnavailable
from gpurbf.runtime.lazy import lazy_module

pack = lazy_module("gpurbf.layer.backends.cuda.kernels.pack")
profiles = lazy_module("gpurbf.layer.backends.cuda.kernels.profiles")
registers = lazy_module("gpurbf.layer.backends.cuda.kernels.registers")
tile = lazy_module("gpurbf.layer.backends.cuda.kernels.tile")
cuda_api = lazy_module("gpurbf.runtime.jit.cuda_api")


# Packed rows are padded to whole tiles of any shape.
_PADDED = 128
# Bytes of packed samples that are kept, with what a launch is given for them, for the next call.
_KEPT = 1 << 27
# Rows of a launch: a grid has at most 65,535 bands of tiles, 64 rows or more each.
_LAUNCH_ROWS = 65_535 * 64
# Shares of the centers that are considered, more where there are few bands of samples.
_SHARES = 8


class Tiles(NamedTuple):
    """The means of layers of tiles, beside their centers.

    ``add(shares, out)`` writes the sum of the shares, ``codes`` is the product of 8-bit codes,
    ``stated()`` the tile that is asked for.
    """

    xp: ModuleType
    device: Device
    add: Callable[[Any, Any], Any]
    codes: str
    stated: Callable[[], Tile] = forced_tile


class Packed(NamedTuple):
    """Packed rows and their terms; as `pack` and as the tiles are given them."""

    rows: Any
    terms: Any
    packing: tuple[Any, Any]
    tiling: tuple[Any, Any]

    @classmethod
    def of(cls, rows: Any, terms: Any) -> Packed:
        """A view of an array takes tens of microseconds to make: as few as there can be."""
        words = rows.view(np.int32) if rows.dtype == np.uint8 else rows
        argument = cuda_api.argument
        given, term = argument(rows), argument(terms)
        return cls(rows, terms, (given, term), (given if words is rows else argument(words), term))


class CudaTileLayer:
    """Centers C (m, n) packed for the tiles: see `gpurbf.layer.backends.cuda.device.OnDevice`."""

    def __init__(
        self,
        tiles: Tiles,
        C: Any,
        activation: Activation,
        dtype: Any,
        quantization: Quantization | None,
    ) -> None:
        xp, (self.m, n) = tiles.xp, C.shape
        metric = activation.metric
        self.tiles, self.activation, self.dtype = tiles, activation, np.dtype(dtype)
        # Beyond that many inputs float64 holds the distances of codes, and 32 bits do not.
        self.exact = quantization is not None and n <= INT32_FEATURES
        if self.exact:
            self.product = "sad" if metric == "manhattan" else tiles.codes
        else:
            self.product = "manhattan" if metric == "manhattan" else "multiply"
        numbers = self.dtype if quantization is None else np.dtype(np.float64)
        self._packed_dtype = np.dtype(np.uint8) if self.exact else numbers
        # Exact where distances are, and as wide as the activations.
        terms_dtype = np.int32 if self.exact else numbers
        self._terms_dtype = np.dtype(np.float64 if self.dtype == np.float64 else terms_dtype)
        # Without quantization both sides are centered, or float32 loses its digits far from 0.
        centered = quantization is None and metric == "euclidean" and self.m > 0
        shift = C.mean(axis=0, dtype=np.float64) if centered else xp.empty(0)
        terms = terms_of(metric, n, quantization)
        self.row, self.alpha = terms.row, terms.alpha
        self.factor = unit(metric, quantization)
        self.shape = _stated(tiles.stated(), self.product)  # None: each launch chooses
        self._shift = cuda_api.argument(shift)
        length = registers.SLICE // self._packed_dtype.itemsize
        self._length = max(1, -(-n // length)) * length
        self.width = self._length * self._packed_dtype.itemsize  # of a packed row, bytes
        centers = self._made(self.m, self.m)
        self._pack(C, terms.column, centers)
        # The arrays live as long as the layer; kernels take them as arguments.
        self._memory = shift, centers
        self._centers, self._terms = centers.tiling
        self._samples = threading.local()
        # What a kernel is given for out, weights and sums that it ignores.
        nothing = xp.empty((1, 1), self.dtype), xp.empty((1, 1), self.dtype), xp.empty((1, 1, 1))
        self._nothing = tuple(map(cuda_api.argument, nothing))

    @property
    def needs(self) -> Needs:
        """Device memory of a row beside the row itself: packed, and its term."""
        return Needs(self.width + 16)

    def _made(self, N: int, n_terms: int) -> Packed:
        """Memory for N packed rows, in whole tiles, and their terms."""
        xp, padded = self.tiles.xp, -(-N // _PADDED) * _PADDED
        rows = xp.empty((padded, self._length), self._packed_dtype)
        return Packed.of(rows, xp.empty(n_terms or padded, self._terms_dtype))

    def _packed_samples(self, N: int) -> Packed:
        """Memory for so many samples, that of this thread's last call on this stream if it fits."""
        kept, stream = self._samples.__dict__, str(cuda_api.current_pointer())
        packed = kept.pop(stream, None)
        if packed is None or len(packed.rows) != -(-N // _PADDED) * _PADDED:
            packed = None  # given back before there is other memory
            packed = self._made(N, 0)
        if packed.rows.nbytes <= _KEPT:
            kept[stream] = packed
        return packed

    def _pack(self, X: Any, coefficients: Coefficients, to: Packed) -> None:
        """Rows as the tiles read them, 8-bit codes four to a word, and their terms; one launch."""
        xp = self.tiles.xp
        if X.dtype not in (np.uint8, np.float32, np.float64):
            X = X.astype(np.float64)
        N, n = X.shape
        if N:
            # An array without elements has no address: one without inputs is all padding.
            source = xp.ascontiguousarray(X) if n else xp.zeros((N, 1), X.dtype)
            grid = min(-(-len(to.rows) // pack.ROWS), 65_535)
            pack.pack[grid, (pack.LANES, pack.ROWS), cuda_api.current_stream()](
                cuda_api.argument(source), self._shift, *map(float, coefficients), *to.packing
            )

    def _choose(self, N: int) -> Any:
        """The shape of the tiles: large ones where there are enough for the device."""
        if self.shape is not None:
            return self.shape
        large = tile.SHAPES["large"]
        if -(-N // large.M) * -(-self.m // large.M) < self.tiles.device.multiprocessors:
            return tile.SHAPES["medium" if self.product == "mma" else "small"]
        # Where a thread needs more than 128 registers, blocks of 64 threads waste fewer than 256.
        wide = self.dtype == np.float64 or self.product == "manhattan"
        return tile.SHAPES["medium"] if wide else large

    def _launch(self, X: Any, *, out: Any = None, W: DeviceWeights | None = None) -> Any:
        """Run the tiles on all rows of X: H into ``out``, or shares of H @ W in float64."""
        tiles, N = self.tiles, len(X)
        shape = self._choose(N)
        samples = self._packed_samples(N)
        self._pack(X, self.row, samples)
        bands, columns = -(-N // shape.M), -(-self.m // shape.M)
        given, sums = list(self._nothing), None
        if W is None:
            mode, shares, given[0] = tile.STORE, columns, cuda_api.argument(out)
        else:
            shares = _shares(bands, columns, 2 * tiles.device.multiprocessors)
            sums = tiles.xp.empty((shares, N, W.k))
            mode, given[1:] = tile.SCORES, [W.values, cuda_api.argument(sums)]
        limit = 128 if shape.B == 16 and self.dtype == np.float32 else None
        a, of_sum = self.activation, form(self.activation)
        if self.exact and of_sum == "squared":
            of_sum = "dot"  # it is never negative
        numbers = FORMS[of_sum], profiles.NUMBERS[in_tile(a)]
        consumer = tile.Consumer(mode, *numbers, self.dtype.itemsize)
        asynchronous = tiles.device.capability >= (8, 0)
        kernel = tile.kernel(self.product, shape, asynchronous, consumer, limit)
        shared = tile.shared_bytes(self.product, shape)
        gamma, coef0, degree = float(a.gamma), float(a.coef0), int(a.degree)
        epilogue = Epilogue(self.alpha, self.factor, *numbers, gamma, coef0, degree)
        kernel[(shares, bands), shape.B**2, cuda_api.current_stream(), shared](
            samples.tiling[0], self._centers, samples.tiling[1], self._terms, epilogue, *given
        )  # fmt: skip
        return sums

    def activations(self, X: Any, out: Any) -> None:
        """Write H (N, m) into ``out``."""
        for start in range(0, len(X), _LAUNCH_ROWS):
            rows = slice(start, start + _LAUNCH_ROWS)
            self._launch(X[rows], out=out[rows])

    def pack_weights(self, W: Any) -> DeviceWeights:
        """W (m, k) by outputs, as the tile takes it: (k, m') with zeros beyond m."""
        xp, (m, k), dtype = self.tiles.xp, W.shape, self.dtype
        by_output = xp.zeros((k, -(-m // _PADDED) * _PADDED), dtype)
        by_output[:, :m] = xp.asarray(W, dtype).T
        return DeviceWeights(cuda_api.argument(by_output), k)

    def matvec(self, X: Any, W: DeviceWeights, out: Any) -> None:
        """Write H @ W (N, k) into ``out``: tiles in the layer's dtype, their sums in float64."""
        for start in range(0, len(X), _LAUNCH_ROWS):
            rows = slice(start, start + _LAUNCH_ROWS)
            self.tiles.add(self._launch(X[rows], W=W), out[rows])


def _stated(stated: Tile, product: str) -> Any:
    """The shape of the tile that is asked for, None if none is."""
    if stated.M is None:
        return tile.SHAPES["large"] if product == "wgmma" else None
    if product == "wgmma" and (stated.M, stated.B) != tile.SHAPES["large"]:
        raise ValueError(f"{stated}: the tile of {VARIABLE}=wgmma has M = 128 and B = 16.")
    M, B = int(stated.M), int(stated.B or 8)
    outputs = {M // B} if M % B == 0 else set()
    if B not in (8, 16) or not outputs <= ({8} if product == "mma" else {4, 8}) or not outputs:
        raise ValueError(
            f"{stated}: tiles of 'numba-cuda' have B = 8 or 16 and M = 8 B, or 4 B where the "
            "tensor cores do not work."
        )
    return tile.Shape(M, B)


@functools.cache
def _shares(bands: int, columns: int, slots: int) -> int:
    """Into how many shares the tiles of a band go: what ends first where so many blocks run.

    Blocks run in rounds of ``slots``, each as long as a share: one block too many costs a whole
    round. A share is 2 % more work, for the sums of all of them are added.
    """

    def took(shares: int) -> int:
        return -(-bands * shares // slots) * -(-columns // shares) * (50 + shares)

    return min(range(1, min(columns, max(_SHARES, -(-slots // bands))) + 1), key=took)


def build_backend(tiles: Tiles) -> Backend:
    """The backend on those tiles."""
    kernel = f"tiles: {tiles.codes} for quantized data, else float32/float64"
    make = partial(CudaTileLayer, tiles)
    return device_backend("numba-cuda", tiles.xp, tiles.device, kernel, make)


def load() -> Backend:
    """The backend, or BackendUnavailable with the install line."""
    from gpurbf.layer.backends.cuda.cupy_ import find_gpu

    xp, device = find_gpu()
    try:
        simulated = cuda_api.SIMULATED
    except ImportError as error:
        raise BackendUnavailable(f"no numba.cuda ({error}): {INSTALL}") from None
    if simulated:
        raise BackendUnavailable("Numba simulates its GPU: unset NUMBA_ENABLE_CUDASIM")
    try:
        cuda_api.find_compiler()
    except Exception as error:  # each version of numba.cuda has its own
        raise BackendUnavailable(
            f"Numba finds no libNVVM, which compiles its kernels ({error}): {INSTALL}; these "
            "extras bring it as a wheel. Numba looks into the environment's own site-packages and "
            "a CUDA toolkit that CUDA_HOME names, not into folders of `pip install --target`"
        ) from None
    if not cuda_api.cuda.is_available():
        why = " ".join(str(cuda_api.cuda.cuda_error()).split())
        raise BackendUnavailable(f"CuPy finds a GPU but Numba does not ({why}): {INSTALL}")
    return build_backend(of_cupy(xp, device))


def of_cupy(xp: ModuleType, device: Device, stated: Callable[[], Tile] = forced_tile) -> Tiles:
    """The tiles on CuPy's arrays."""
    # Without `reduce_type` CuPy adds in the type of the result, which may be float32.
    total = xp.ReductionKernel(
        "T x", "W y", "x", "a + b", "y = a", "0", "gpurbf_sum_of_shares", reduce_type="double"
    )
    return Tiles(xp, device, partial(total, axis=0), codes_product(device), stated)


VARIABLE = "GPURBF_GPU_KERNEL"
# Products of 8-bit codes, and the least compute capability of each; sm_90a is of 9.0 alone.
CODES = {"wgmma": (9, 0), "mma": (8, 0), "dp4a": (6, 1)}


def codes_product(device: Device) -> str:
    """The product of 8-bit codes: what ``GPURBF_GPU_KERNEL`` says, else by the device.

    Raises
    ------
    ValueError
        If the variable names no kernel.
    BackendUnavailable
        If the device cannot run the kernel it names.
    """
    forced = os.environ.get(VARIABLE, "")
    if not forced:  # wgmma was measured nowhere
        return "mma" if device.capability >= CODES["mma"] else "dp4a"
    if forced not in CODES:
        raise ValueError(f"{VARIABLE}={forced!r}: use one of {', '.join(CODES)}.")
    least, found = (f"{major}.{minor}" for major, minor in (CODES[forced], device.capability))
    if device.capability < CODES[forced] or (forced == "wgmma" and least != found):
        what = f"{least} (H100, H200)" if forced == "wgmma" else f"{least} or higher"
        raise BackendUnavailable(
            f"{VARIABLE}={forced} needs compute capability {what}, this GPU has {found}: unset it."
        )
    return forced
