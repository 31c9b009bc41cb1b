"""The `cupy` backend: cuBLAS for the products, one kernel before them and one after.

Quantized the product is int8 → int32 on tensor cores, exact for n ≤ 131,071 inputs (128² n
below 2³¹) at half the bytes and up to twice the rate of fp16, which would be exact for n ≤ 1,024
only. Off it the product is in the layer's dtype, float32 as three TF32 products where tensor cores
are that much faster, at float32's error; one TF32 product only if `precision="tf32"` asks for it.

    samples ─► rows ─► packed, terms ─► cuBLAS ─► P ─► outputs ─► H
                                        a chunk that stays in L2 ─► scores ─► H @ W
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from gpurbf.data.quantize import Quantization
from gpurbf.layer.activation import Activation
from gpurbf.layer.backends import Backend, get_backend
from gpurbf.layer.backends.blas.manhattan import with_manhattan
from gpurbf.layer.backends.blas.matmul import Gemm, ShiftedCenters, shifted_centers
from gpurbf.layer.backends.cuda.cupy_kernels import (
    Rule,
    move_rows,
    rule,
    write_outputs,
    write_scores,
)
from gpurbf.layer.backends.cuda.device import on_device
from gpurbf.layer.backends.cuda.gram import add_sums
from gpurbf.layer.backends.cuda.memory import Device, DeviceWeights, Needs
from gpurbf.layer.distance import Coefficients
from gpurbf.runtime.errors import BackendUnavailable
from gpurbf.runtime.stages import count, stage

# cudaDataType, of which CuPy names only some.
_TYPES = {"float32": 0, "float64": 1, "int8": 3, "int32": 10}
# Largest n for which 128² n stays below 2³¹.
_INT8_FEATURES = 131_071
# cuBLAS takes 8-bit operands whose rows, and 32-bit results whose rows, are whole groups of 4
# numbers; 16 bytes are what its tensor cores read, of 8-bit numbers and of TF32.
_GROUP, _TF32_GROUP = 16, 4
# Of the L2 cache, what products fill that are read at once; and the rows of the least chunk.
_CACHED, _LEAST = 0.7, 256


def _gemm(xp: ModuleType, compute: str, A: Any, B: Any, out: Any) -> None:
    """out (N, m) = A (N, n) Bᵀ (n, m) by cublasGemmEx, all C-contiguous.

    cuBLAS reads columns first, so it sees the three transposed, and outᵀ = B Aᵀ is transposed
    times plain: the one layout that 8-bit tensor cores take.
    """
    (N, n), m = A.shape, len(B)
    if not (N and n and m):
        out.fill(0)
        return
    cublas = xp.cuda.cublas
    scalar = np.int32 if out.dtype == np.int32 else out.dtype.type
    one, zero = np.array(1, scalar), np.array(0, scalar)
    cublas.gemmEx(
        xp.cuda.device.get_cublas_handle(), cublas.CUBLAS_OP_T, cublas.CUBLAS_OP_N, m, N, n,
        one.ctypes.data, B.data.ptr, _TYPES[str(B.dtype)], n, A.data.ptr, _TYPES[str(A.dtype)], n,
        zero.ctypes.data, out.data.ptr, _TYPES[str(out.dtype)], m,
        getattr(cublas, f"CUBLAS_COMPUTE_{compute}"), cublas.CUBLAS_GEMM_DEFAULT,
    )  # fmt: skip


def products(xp: ModuleType, three: bool = False) -> Callable[..., Gemm]:
    """The choice of a product; ``three``: float32 is three TF32 products."""

    def gemm(compute: str) -> Callable[[Any, Any, Any], None]:
        return partial(_gemm, xp, compute)

    def plain(name: str, dtype: Any, compute: str, **options: Any) -> Gemm:
        return Gemm(name, dtype, dtype, dtype, 0, 0, gemm(compute), **options)

    tf32 = partial(plain, "tf32", np.float32, "32F_FAST_TF32", group=_TF32_GROUP)
    table = {
        "int8": Gemm(
            "8-bit products", np.int8, np.int8, np.int32, 128, 128, gemm("32I"), group=_GROUP
        ),
        "float32": tf32(parts=True) if three else plain("float32", np.float32, "32F"),
        "tf32": tf32(),
        "float64": plain("float64", np.float64, "64F"),
    }

    def choose(dtype: np.dtype, n: int, quantization: bool, tf32: bool = False) -> Gemm:
        """int8 where it is exact, else what the dtype says."""
        if quantization:
            return table["int8" if n <= _INT8_FEATURES else "float64"]
        return table["tf32" if tf32 else str(dtype)]

    return choose


class Here(NamedTuple):
    """The array library, and the device."""

    xp: ModuleType
    device: Device


def _moved(
    here: Here,
    side: str,
    product: Gemm,
    A: Any,
    shift: Any,
    dtype: Any,
    coefficients: Coefficients,
    terms_dtype: Any,
) -> tuple[Any, Any]:
    """A - shift as the product reads it, "samples" or "centers", and the terms of its rows."""
    xp, (N, n) = here.xp, A.shape
    if A.dtype not in (np.uint8, np.float32, np.float64):
        A = A.astype(np.float64)
    shift = shift if hasattr(shift, "shape") else xp.full(n, shift, np.float32)
    width, rows = (-(-size // product.group) * product.group for size in (n, N))
    parts = side if product.parts else None
    packed = xp.empty((N if side == "samples" else rows, width * (3 if parts else 1)), dtype)
    terms = xp.empty(N, terms_dtype)
    move_rows(xp, A, shift, coefficients, packed, terms, parts)
    return packed, terms


def _prepare(
    here: Here,
    C: Any,
    activation: Activation,
    dtype: Any,
    quantization: Quantization | None,
    **options: Any,
) -> ShiftedCenters:
    """Shift and convert the centers (m, n), once per fitted layer."""
    dtype, n = np.dtype(dtype), C.shape[1]
    choose = products(here.xp, here.device.tensor_floats)
    product = choose(dtype, n, quantization is not None, **options)
    moved = partial(_moved, here, "centers")
    operand = shifted_centers(moved, product, C, activation, dtype, quantization)
    if not hasattr(operand.x_shift, "shape"):
        operand = replace(operand, x_shift=here.xp.full(n, operand.x_shift, np.float32))
    return operand


def _rule(operand: ShiftedCenters) -> Rule:
    return rule(operand.activation, operand.alpha, operand.factor)


def _chunk(here: Here, operand: ShiftedCenters) -> int:
    """Rows whose products stay in L2 until they are activated."""
    row = max(1, len(operand.centers)) * np.dtype(operand.product.out_dtype).itemsize
    return max(_LEAST, int(_CACHED * here.device.cache / row) // 128 * 128)


def _products(here: Here, operand: ShiftedCenters, X: Any) -> Iterator[tuple[slice, Any, Any]]:
    """Rows, their products with the centers, in memory that the next rows reuse, and terms."""
    product, N, rows = operand.product, len(X), _chunk(here, operand)
    with stage("prepare", "samples shifted, norms"):
        kind = operand.column_terms.dtype
        A, terms = _moved(
            here, "samples", product, X, operand.x_shift, product.x_dtype, operand.row, kind
        )
        count(nbytes=X.nbytes + A.nbytes)
    P = here.xp.empty((min(N, rows), len(operand.centers)), product.out_dtype)
    for start in range(0, N, rows):
        part = slice(start, min(start + rows, N))
        some = P[: part.stop - start]
        product.multiply(A[part], operand.centers, some)
        yield part, some, terms[part]
    m = len(operand.column_terms)
    count(operations=2 * N * m * X.shape[1], kind=product.arithmetic, nbytes=A.nbytes)


def _outputs(here: Here, operand: ShiftedCenters, X: Any, out: Any) -> Any:
    """H (N, m), written into ``out``."""
    if not out.size:
        return out
    profile, activations = operand.activation.profile, _rule(operand)
    with stage("hidden layer", "H"):
        for part, P, terms in _products(here, operand, X):
            write_outputs(here.xp, activations, P, terms, operand.column_terms, out[part])
        if callable(profile):
            out[...] = profile(out)
    return out


def _weights(here: Here, operand: ShiftedCenters, W: Any) -> DeviceWeights:
    """W (m, k) by output, where a warp reads a row of it."""
    kind = operand.dtype
    if isinstance(W, np.ndarray):
        return DeviceWeights(here.xp.asarray(np.ascontiguousarray(W.T, kind)), W.shape[1])
    return DeviceWeights(here.xp.ascontiguousarray(W.T, kind), W.shape[1])


def _scores(here: Here, operand: ShiftedCenters, X: Any, W: DeviceWeights, out: Any) -> None:
    """H @ W (N, k), written into ``out``; only a chunk of H, or none, is ever there."""
    xp, m, activations = here.xp, len(operand.column_terms), _rule(operand)
    if not (out.size and m):
        out.fill(0)
        return
    profile, columns = operand.activation.profile, operand.column_terms
    with stage("hidden layer", "H @ W"):
        for part, P, terms in _products(here, operand, X):
            if not callable(profile):
                write_scores(xp, activations, P, terms, columns, W.values, out[part])
                continue
            H = xp.empty((len(P), m), operand.dtype)
            write_outputs(xp, activations, P, terms, columns, H)
            compute = "64F" if operand.dtype == np.float64 else "32F"
            _gemm(xp, compute, xp.ascontiguousarray(profile(H), H.dtype), W.values, out[part])


def _normal(
    here: Here,
    operand: ShiftedCenters,
    X: Any,
    T: Any,
    weights: Any,
    mean: Any,
    G: Any,
    B: Any,
) -> None:
    """Add HᵀH to G (m, m), if any, and HᵀT to B (m, k), of H less its mean, weighted."""
    H = _outputs(here, operand, X, here.xp.empty((len(X), len(B)), operand.dtype))
    add_sums(here.xp, here.device, H, T, weights, mean, G, B)


def needs(here: Here, operand: ShiftedCenters) -> Needs:
    """Memory of a row, packed and its terms; of a row of a chunk, its products and activations."""
    product, m = operand.product, len(operand.centers)
    packed = operand.centers.shape[1] * np.dtype(product.x_dtype).itemsize
    activated = 2 * operand.dtype.itemsize if callable(operand.activation.profile) else 0
    products = m * (np.dtype(product.out_dtype).itemsize + activated)
    return Needs(packed + 16, products, _chunk(here, operand))


def build_backend(xp: ModuleType, device: Device) -> Backend:
    """The backend on that CuPy and that device."""
    here = Here(xp, device)
    floats = "float32 as 3 tf32" if device.tensor_floats else "float32"
    raw = Backend(
        name="cupy",
        xp=xp,
        kernel=f"cuBLAS: int8 quantized, {floats}/float64 off it; {device.name}",
        prepare=partial(_prepare, here),
        outputs=partial(_outputs, here),
        scores=partial(_scores, here),
        normal=partial(_normal, here),
        weights=partial(_weights, here),
        device=device.name,
        precisions=("tf32",),
    )
    return with_manhattan(on_device(raw, partial(needs, here)), _tiles)


@functools.cache
def _tiles() -> Backend:
    """The `numba-cuda` backend, for metric="manhattan"."""
    try:
        return get_backend("numba-cuda")[0]
    except BackendUnavailable as error:
        raise BackendUnavailable(
            "backend='cupy' evaluates metric='manhattan' with the tiles of 'numba-cuda', which is "
            f"not available ({error}). Install it, or use backend='numba' on the CPU."
        ) from None


def find_gpu() -> tuple[ModuleType, Device]:
    """CuPy and the current GPU; makes no context."""
    try:
        import cupy
    except ImportError as error:
        raise BackendUnavailable(
            f'no CuPy ({error}): in a copy of gpurbf, pip install ".[cuda12]" or ".[cuda13]", '
            "whichever the driver has (nvidia-smi says)"
        ) from None
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
        properties["l2CacheSize"],
    )


def load() -> Backend:
    """The backend, or BackendUnavailable with the install line."""
    return build_backend(*find_gpu())
