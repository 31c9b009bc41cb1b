"""The `cupy` backend: cuBLAS for the products, one kernel before them and one after.

For quantized data the product is int8 → int32 on tensor cores, exact for n ≤ 131,071 inputs (128² n
below 2³¹) at half the bytes and up to twice the rate of fp16, which would be exact for n ≤ 1,024
only. For other data the product is in the layer's dtype. float32 is computed as three TF32 products
if tensor cores are that much faster, with float32's error; it is one TF32 product only with
`precision="tf32"`.

    samples ─► rows ─► packed, terms ─► cuBLAS ─► P ─► outputs ─► H
                                        some thousand rows ─► scores ─► H @ W
"""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from gpurbf.data.quantize import Quantization
from gpurbf.layer.activation import Activation
from gpurbf.layer.backends import INSTALL, Backend, get_backend
from gpurbf.layer.backends.blas.matmul import Gemm
from gpurbf.layer.backends.cuda.cupy_kernels import epilogue, move_rows, write
from gpurbf.layer.backends.cuda.device import Device, DeviceLayer, Memory, device_backend
from gpurbf.layer.distance import Coefficients
from gpurbf.runtime.errors import BackendUnavailable
from gpurbf.runtime.stages import count, stage

# cudaDataType, of which CuPy names only some.
_TYPES = {"float32": 0, "float64": 1, "int8": 3, "int32": 10}
# Largest n for which 128² n stays below 2³¹.
_INT8_FEATURES = 131_071
# cuBLAS requires rows of 8-bit operands and rows of 32-bit results to be whole groups of 4 numbers.
# Its tensor cores read 16 bytes, of 8-bit numbers and of TF32.
_GROUP, _TF32_GROUP = 16, 4
# Bytes of which rows are whole groups if they are long: 784 8-bit inputs take cuBLAS 1.7 times as
# long as 768 on an H100.
_LINE, _LONG = 128, 256
# Bytes of the products that are activated together, and the minimum number of their rows. By
# estimate, launches for more chunks would take longer than the memory traffic that a cache would
# save.
_CHUNK_BYTES, _LEAST = 1 << 28, 8192


def _gemm(xp: ModuleType, compute: str, A: Any, B: Any, out: Any) -> None:
    """out (N, m) = A (N, n) Bᵀ (n, m) by cublasGemmEx, all C-contiguous.

    cuBLAS is column-major, so it sees all three transposed. outᵀ = B Aᵀ is then a product of a
    transposed and a plain matrix, the only layout that 8-bit tensor cores take.
    """
    (N, n), m = A.shape, len(B)
    cublas = xp.cuda.cublas
    scalar = np.int32 if out.dtype == np.int32 else out.dtype.type
    one, zero = np.array(1, scalar), np.array(0, scalar)
    cublas.gemmEx(
        xp.cuda.device.get_cublas_handle(), cublas.CUBLAS_OP_T, cublas.CUBLAS_OP_N, m, N, n,
        one.ctypes.data, B.data.ptr, _TYPES[str(B.dtype)], n, A.data.ptr, _TYPES[str(A.dtype)], n,
        zero.ctypes.data, out.data.ptr, _TYPES[str(out.dtype)], m,
        getattr(cublas, f"CUBLAS_COMPUTE_{compute}"), cublas.CUBLAS_GEMM_DEFAULT,
    )  # fmt: skip


def product_of(
    xp: ModuleType, dtype: Any, n: int, quantized: bool, tf32: bool = False, three: bool = False
) -> Gemm:
    """int8 if it is exact, else the product of the dtype; float32 may be 1 or 3 TF32 products."""
    if quantized and n <= _INT8_FEATURES:
        multiply = partial(_gemm, xp, "32I")
        return Gemm("8-bit products", np.int8, np.int32, 128, multiply, group=_GROUP)
    kind = np.dtype(np.float64 if quantized else dtype)
    if kind == np.float32 and (tf32 or three):
        multiply = partial(_gemm, xp, "32F_FAST_TF32")
        return Gemm("tf32", kind, kind, 0, multiply, group=_TF32_GROUP, parts=not tf32)
    multiply = partial(_gemm, xp, "32F" if kind == np.float32 else "64F")
    return Gemm(kind.name, kind, kind, 0, multiply)


class CublasLayer(DeviceLayer):
    """Centers C (m, n) as a product reads them."""

    def __init__(
        self,
        memory: Memory,
        device: Device,
        C: Any,
        activation: Activation,
        dtype: Any,
        quantization: Quantization | None,
        tf32: bool = False,
    ) -> None:
        how = C.shape[1], quantization is not None, tf32, device.tensor_floats
        self.product = product_of(memory.xp, dtype, *how)
        super().__init__(memory, device, C, activation, dtype, quantization, self.product.shift)
        self.arithmetic, d = self.product.arithmetic, self.distance
        self.centers, self.column_terms = self._moved("centers", C, d.terms.column)
        self._epilogue = epilogue(activation, d.terms.alpha, d.factor, self.dtype)
        packed = self.centers.shape[1] * np.dtype(self.product.dtype).itemsize
        products = len(self.centers) * np.dtype(self.product.out_dtype).itemsize
        # Rows whose products are activated together.
        self._chunk = max(_LEAST, _CHUNK_BYTES // max(1, products))
        # Memory of a row: packed, with its terms, and its products.
        self.row_bytes = packed + 16 + products

    def _moved(self, side: str, A: Any, coefficients: Coefficients) -> tuple[Any, Any]:
        """A, shifted, as the product reads "samples" or "centers", and the terms of its rows."""
        xp, product, (N, n) = self.xp, self.product, A.shape
        itemsize, group = np.dtype(product.dtype).itemsize, product.group
        inputs = group if n * itemsize < _LONG else _LINE // itemsize
        width, rows = -(-n // inputs) * inputs, -(-N // group) * group
        parts = side if product.parts else None
        shape = N if side == "samples" else rows, width * (3 if parts else 1)
        packed, terms = xp.empty(shape, product.dtype), xp.empty(N, self.distance.kind)
        move_rows(xp, A, self.shift, coefficients, packed, terms, parts)
        return packed, terms

    def pack(self, W: Any) -> Any:
        """W (m, k) stored by output (k, m), so that a warp reads a row of it."""
        return self.xp.asarray(W.T, self.dtype, order="C")

    def evaluate(self, X: Any, out: Any, W: Any = None) -> None:
        """Write H (N, m) or H @ W (N, k) into ``out``; at most a chunk of products exists."""
        N, rows = len(X), self._chunk
        with stage("prepare", "samples shifted, norms"):
            A, terms = self._moved("samples", X, self.distance.terms.row)
            count(nbytes=X.nbytes + A.nbytes)
        P = self.xp.empty((min(N, rows), len(self.centers)), self.product.out_dtype)
        for start in range(0, N, rows):
            part = slice(start, min(start + rows, N))
            some = P[: part.stop - start]
            self.product.multiply(A[part], self.centers, some)
            write(self.xp, self._epilogue, some, terms[part], self.column_terms, out[part], W)


def build_backend(xp: ModuleType, device: Device) -> Backend:
    """The backend for that CuPy module and that device."""
    floats = "float32 as 3 tf32" if device.tensor_floats else "float32"
    kernel = f"cuBLAS: int8 for quantized data, else {floats}/float64"
    return device_backend("cupy", xp, device, kernel, _layer, ("tf32",))


def _layer(
    memory: Memory, device: Device, C: Any, activation: Activation, *rest: Any, **precision: Any
) -> Any:
    if activation.metric != "manhattan":
        return CublasLayer(memory, device, C, activation, *rest, **precision)
    try:  # it has no matrix product
        tiles, _ = get_backend("numba-cuda")
    except BackendUnavailable as error:
        raise BackendUnavailable(
            "backend='cupy' evaluates metric='manhattan' with the tiles of 'numba-cuda', which is "
            f"not available ({error}). Install it, or use backend='numba' on the CPU."
        ) from None
    return tiles.prepare(C, activation, *rest)


def find_gpu() -> tuple[ModuleType, Device]:
    """CuPy and the current GPU; this creates no CUDA context."""
    try:
        import cupy
    except ImportError as error:
        raise BackendUnavailable(f"no CuPy ({error}): {INSTALL}") from None
    if not cupy.cuda.is_available():
        raise BackendUnavailable(
            "CuPy finds no NVIDIA GPU: check nvidia-smi and CUDA_VISIBLE_DEVICES"
        )
    properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.runtime.getDevice())
    capability = properties["major"], properties["minor"]
    return cupy, Device(
        f"{properties['name'].decode()}, compute capability {capability[0]}.{capability[1]}",
        capability,
        properties["multiProcessorCount"],
    )


def load() -> Backend:
    """The backend, or BackendUnavailable with the install line."""
    return build_backend(*find_gpu())
