"""The `numba-cuda` backend: BNL tiles on an NVIDIA GPU, activated and consumed in the tile.

Arrays are CuPy's, kernels are Numba's (`kernels/`), both on CuPy's current stream. Distances of
quantized data are exact integers: by the tensor cores from compute capability 8.0 on, before that
by four 8-bit products an instruction; Manhattan by four absolute differences an instruction.
"""

from __future__ import annotations

import threading
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from gpurbf.layer.activation import DOT, SQUARED, Epilogue, form, in_tile
from gpurbf.layer.backends import INSTALL, Backend, Tile, forced_tile
from gpurbf.layer.backends.cuda.cupy_ import find_gpu
from gpurbf.layer.backends.cuda.cupy_kernels import move_rows
from gpurbf.layer.backends.cuda.device import Device, DeviceLayer, Memory, device_backend
from gpurbf.runtime.errors import BackendUnavailable
from gpurbf.runtime.lazy import lazy_module

profiles = lazy_module("gpurbf.layer.backends.cuda.kernels.profiles")
tile = lazy_module("gpurbf.layer.backends.cuda.kernels.tile")
cuda_api = lazy_module("gpurbf.runtime.jit.cuda_api")


# Packed rows are padded to whole tiles of any shape.
_PADDED = 128
# Maximum bytes of packed samples that are kept for the next call, with their launch arguments.
_KEPT = 1 << 27


class Packed(NamedTuple):
    """Packed rows, 8-bit codes four to a word, and their terms; and views of both for the tiles.

    Making a view of an array takes tens of microseconds.
    """

    rows: Any
    terms: Any
    given: tuple[Any, Any]


class CudaTileLayer(DeviceLayer):
    """Centers C (m, n) packed for the tiles."""

    def __init__(self, memory: Memory, device: Device, C: Any, *of_layer: Any) -> None:
        # Without quantization both sides are centered, or float32 loses its digits far from 0.
        super().__init__(memory, device, C, *of_layer)
        xp, n, a, d = self.xp, C.shape[1], self.activation, self.distance
        metric, of_sum = a.metric, form(a)
        # Codes, unless their distances do not fit in 32 bits: float64 holds them.
        self.exact = d.kind == np.int32
        self._packed_dtype = np.dtype(np.uint8) if self.exact else d.kind
        if self.exact:
            codes = "mma" if device.capability >= (8, 0) else "dp4a"
            self.product = "sad" if metric == "manhattan" else codes
            self.arithmetic = "8-bit differences" if self.product == "sad" else "8-bit products"
        else:
            self.product = "manhattan" if metric == "manhattan" else "multiply"
            self.arithmetic = d.kind.name
        if self.exact and of_sum == SQUARED:
            of_sum = DOT  # an exact distance is never negative
        self._epilogue = Epilogue(
            d.terms.alpha, d.factor, of_sum, profiles.NUMBERS[in_tile(a)],
            float(a.gamma), float(a.coef0), int(a.degree),
        )  # fmt: skip
        self.shape = _stated(forced_tile(), self.product)  # None: each launch chooses
        length = tile.SLICE // self._packed_dtype.itemsize
        self._length = max(1, -(-n // length)) * length
        # Memory of a row besides the row itself: the packed row and its term.
        self.row_bytes = self._length * self._packed_dtype.itemsize + 16
        self._centers = self._made(self.m, self.m)
        move_rows(xp, C, self.shift, d.terms.column, self._centers.rows, self._centers.terms)
        self._samples = threading.local()
        # Arguments for out, weights and sums if a kernel ignores them.
        nothing = xp.empty((1, 1), self.dtype), xp.empty((1, 1), self.dtype), xp.empty((1, 1, 1))
        self._nothing = tuple(map(cuda_api.argument, nothing))

    def _made(self, N: int, n_terms: int) -> Packed:
        """Memory for N packed rows, in whole tiles, and their terms."""
        rows = self.xp.empty((-(-N // _PADDED) * _PADDED, self._length), self._packed_dtype)
        terms = self.xp.empty(n_terms, self.distance.kind)
        words = rows.view(np.int32) if self.exact else rows
        return Packed(rows, terms, (cuda_api.argument(words), cuda_api.argument(terms)))

    def _packed_samples(self, N: int) -> Packed:
        """Memory for N packed samples: that of the thread's last call on this stream if it fits."""
        kept, stream = self._samples.__dict__, str(self.xp.cuda.get_current_stream().ptr)
        padded = -(-N // _PADDED) * _PADDED
        packed = kept.pop(stream, None)
        if packed is None or len(packed.rows) != padded:
            packed = None  # freed before new memory is taken
            packed = self._made(N, padded)
        if packed.rows.nbytes <= _KEPT:
            kept[stream] = packed
        return packed

    def _choose(self, N: int) -> Any:
        """The shape of the tiles: large ones where there are enough for the device."""
        large = tile.SHAPES["large"]
        if -(-N // large.M) * -(-self.m // large.M) < self.device.multiprocessors:
            return tile.SHAPES["medium" if self.product == "mma" else "small"]
        # If a thread needs more than 128 registers, 64 threads per block waste fewer than 256.
        wide = self.dtype == np.float64 or self.product == "manhattan"
        return tile.SHAPES["medium"] if wide else large

    def evaluate(self, X: Any, out: Any, W: Any = None) -> None:
        """Write H (N, m) or H @ W (N, k) into ``out``; sums of several tiles are float64."""
        N = len(X)
        shape = self.shape or self._choose(N)
        samples = self._packed_samples(N)
        move_rows(self.xp, X, self.shift, self.distance.terms.row, samples.rows, samples.terms[:N])
        bands, columns = -(-N // shape.M), -(-self.m // shape.M)
        given = list(self._nothing)
        if W is None:
            shares, given[0] = columns, cuda_api.argument(out)
        else:
            # Two blocks per multiprocessor, if there are enough tiles.
            shares = min(columns, -(-2 * self.device.multiprocessors // bands))
            sums = self.xp.empty((shares, N, W.shape[0]))
            given[1:] = W, cuda_api.argument(sums)
        epilogue, centers = self._epilogue, self._centers.given
        consumer = W is None, epilogue.form, epilogue.profile, self.dtype.itemsize
        kernel = tile.kernel(self.product, shape, self.device.capability >= (8, 0), *consumer)
        kernel[(shares, bands), shape.B**2, cuda_api.current_stream(), tile.shared_bytes(shape)](
            samples.given[0], centers[0], samples.given[1], centers[1], epilogue, *given
        )
        if W is not None:
            out[...] = sums.sum(axis=0)

    def pack(self, W: Any) -> Any:
        """W (m, k) by outputs, as the tile takes it: (k, m') with zeros beyond m."""
        m, k = W.shape
        by_output = self.xp.zeros((k, -(-m // _PADDED) * _PADDED), self.dtype)
        by_output[:, :m] = self.xp.asarray(W, self.dtype).T
        return cuda_api.argument(by_output)


def _stated(stated: Tile, product: str) -> Any:
    """The shape of the tile that is forced; None if none is."""
    if stated.M is None:
        return None
    M, B = int(stated.M), int(stated.B or 8)
    if B not in (8, 16) or M not in ({8 * B} if product == "mma" else {4 * B, 8 * B}):
        raise ValueError(
            f"{stated}: tiles of 'numba-cuda' have B = 8 or 16 and M = 8 B, or 4 B where the "
            "tensor cores do not work."
        )
    return tile.Shape(M, B)


def build_backend(xp: ModuleType, device: Device) -> Backend:
    """The backend for that CuPy module and that device."""
    codes = "tensor cores" if device.capability >= (8, 0) else "dp4a"
    kernel = f"tiles: {codes} for quantized data, else float32/float64"
    return device_backend("numba-cuda", xp, device, kernel, CudaTileLayer)


def load() -> Backend:
    """The backend, or BackendUnavailable with the install line."""
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
    return build_backend(xp, device)
