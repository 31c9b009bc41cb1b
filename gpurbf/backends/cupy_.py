"""The `cupy` backend: cuBLAS for the products, one fused elementwise pass for the rest.

On the lattice the product is int8 → int32 on tensor cores, exact for n ≤ 131,071 inputs (128² n
below 2³¹) at half the bytes and up to twice the rate of fp16, which would be exact for n ≤ 1,024
only. Off it the product is in the layer's dtype; TF32 only if `precision="tf32"` asks for it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

import numpy as np

from gpurbf.backends import LOADERS, Activation, Backend, BackendUnavailable
from gpurbf.backends.device import on_device
from gpurbf.backends.manhattan import with_manhattan
from gpurbf.backends.matmul import Gemm, MatrixProduct, ShiftedCenters
from gpurbf.backends.profiles import form, in_tile

# cudaDataType, of which CuPy names only some.
_TYPES = {"float32": 0, "float64": 1, "int8": 3, "int32": 10}
# Largest n for which 128² n stays below 2³¹.
_INT8_FEATURES = 131_071
# cuBLAS wants rows of 8-bit operands to start at multiples of 4 bytes, its tensor cores of 16.
_GROUP = 16

# From a product p to an activation y, in steps that are C++ and, for the tests, Python: the
# distance or dot product s, the profile's argument v by form, and y by profile. `tiny` is the
# smallest normal number: what is below it becomes 0, because products of subnormal numbers crawl.
_SUM = "T s = T(K(row + column + alpha * K(p))) * factor;"
_ARGUMENTS = {
    "squared": "T v = max(s, T(0));",
    "root": "T v = sqrt(max(s, T(0)));",
    "square": "T v = s * s;",
    "dot": "T v = s;",
}
_EXPONENTIAL = "T e = exp(-gamma * v); y = e * T(e >= tiny);"
_STATEMENTS = {
    "gaussian": _EXPONENTIAL,
    "laplacian": _EXPONENTIAL,
    "triangular": "y = max(T(1) - gamma * v, T(0));",
    "multiquadric": "y = sqrt(T(1) + gamma * v);",
    "inverse-multiquadric": "y = T(1) / sqrt(T(1) + gamma * v);",
    "thin-plate": "T t = gamma * v; y = T(0.5) * t * log(max(t, tiny)) * T(t >= tiny);",
    "linear": "y = v;",
    "identity": "y = v;",
    "sigmoid": "y = tanh(gamma * v + coef0);",
}


def _power(degree: int) -> str:
    """(gamma v + coef0)^degree by repeated squaring, as on the CPU: pow loses more digits."""
    steps, factors, base = ["T p0 = gamma * v + coef0;"], [], 0
    for bit, digit in enumerate(reversed(f"{degree:b}")):
        while base < bit:
            steps.append(f"T p{base + 1} = p{base} * p{base};")
            base += 1
        if digit == "1":
            factors.append(f"p{bit}")
    return " ".join([*steps, f"y = {' * '.join(factors) or 'T(1)'};"])


def expression(rule: str, profile: str, degree: int) -> str:
    """The statements of the elementwise pass."""
    last = _power(degree) if profile == "poly" else _STATEMENTS[profile]
    return " ".join([_SUM, _ARGUMENTS[rule], last])


@functools.cache
def _kernel(xp: ModuleType, rule: str, profile: str, degree: int) -> Any:
    """The pass of that form and profile; CuPy compiles it for the dtypes that it meets."""
    return xp.ElementwiseKernel(
        "A p, K row, K column, K alpha, T factor, T gamma, T coef0, T tiny",
        "T y",
        expression(rule, profile, degree),
        f"gpurbf_{rule}_{profile}".replace("-", "_"),
    )


def _epilogue(
    xp: ModuleType,
    P: Any,
    row_terms: Any,
    column_terms: Any,
    alpha: float,
    factor: float,
    activation: Activation,
    out: Any,
) -> None:
    """Write profile(form(factor * (row + column + alpha * P))) into out; P may be in its memory."""
    profile = in_tile(activation)
    degree = int(activation.degree) if profile == "poly" else 0
    kind = column_terms.dtype.type
    _kernel(xp, form(activation), profile, degree)(
        P, row_terms[:, None], column_terms, kind(alpha), float(factor), float(activation.gamma),
        float(activation.coef0), float(np.finfo(out.dtype).tiny), out,
    )  # fmt: skip
    if callable(activation.profile):
        out[...] = activation.profile(out)


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


def gram(xp: ModuleType, H: Any) -> Any:
    """HᵀH by syrk, which computes one triangle; the other one is its mirror."""
    N, m = H.shape
    cublas = xp.cuda.cublas
    syrk = cublas.ssyrk if H.dtype == np.float32 else cublas.dsyrk
    one, zero = np.array(1, H.dtype), np.array(0, H.dtype)
    G = xp.zeros((m, m), H.dtype)
    if N and m:
        # Rows first, H is seen as its transpose and an upper triangle as the lower one.
        syrk(
            xp.cuda.device.get_cublas_handle(), cublas.CUBLAS_FILL_MODE_UPPER, cublas.CUBLAS_OP_N,
            m, N, one.ctypes.data, H.data.ptr, m, zero.ctypes.data, G.data.ptr, m,
        )  # fmt: skip
    diagonal = G.diagonal().copy()
    G = G + G.T
    xp.fill_diagonal(G, diagonal)
    return G


def _padded(xp: ModuleType, A: Any) -> Any:
    """A with zeros to a whole group of inputs."""
    n = A.shape[1]
    width = -(-n // _GROUP) * _GROUP
    if width == n:
        return A
    wide = xp.zeros((len(A), width), A.dtype)
    wide[:, :n] = A
    return wide


def products(xp: ModuleType) -> Callable[..., Gemm]:
    """The choice of a product, for `MatrixProduct`."""

    def gemm(compute: str) -> Callable[[Any, Any, Any], None]:
        return partial(_gemm, xp, compute)

    i8, i32, f32, f64 = np.int8, np.int32, np.float32, np.float64
    table = {
        "int8": Gemm("8-bit products", i8, i8, i32, 128, 128, gemm("32I"), partial(_padded, xp)),
        "float32": Gemm("float32", f32, f32, f32, 128, 128, gemm("32F")),
        "tf32": Gemm("tf32", f32, f32, f32, 128, 128, gemm("32F_FAST_TF32")),
        "float64": Gemm("float64", f64, f64, f64, 128, 128, gemm("64F")),
    }

    def choose(dtype: np.dtype, n: int, lattice: bool, tf32: bool = False) -> Gemm:
        """int8 where it is exact, else what the dtype says."""
        if lattice:
            return table["int8" if n <= _INT8_FEATURES else "float64"]
        return table["tf32" if tf32 else str(dtype)]

    return choose


def _row_sums(xp: ModuleType) -> Callable[[Any, int, Any], Any]:
    """`matmul.row_sums` in one pass, without a wide copy of the data."""
    kernels = {
        power: xp.ReductionKernel(
            "T x", "W y", step, "a + b", "y = a", "0", f"gpurbf_sum_of_powers_{power}"
        )
        for power, step in ((1, "W(x)"), (2, "W(x) * W(x)"))
    }

    def sums(A: Any, power: int, dtype: Any) -> Any:
        total = xp.zeros(len(A), dtype)
        return kernels[power](A, total, axis=1) if A.size else total

    return sums


def row_bytes(operand: ShiftedCenters) -> float:
    """Device memory of a row beside the row itself: shifted, packed, its terms, P and H."""
    m, n = operand.centers.shape
    product, item = operand.product, operand.dtype.itemsize
    separate = np.dtype(product.out_dtype).itemsize
    packed = 2 * np.dtype(product.x_dtype).itemsize
    return m * (item + (0 if separate == item else separate)) + n * (packed + 8) + 32


def build_backend(xp: ModuleType, kernel: str) -> Backend:
    """The backend on that CuPy."""
    by_product = MatrixProduct(
        "cupy",
        xp,
        products(xp),
        partial(gram, xp),
        partial(_epilogue, xp),
        sums=_row_sums(xp),
        whole=True,
    )
    raw = replace(by_product.backend(kernel), precisions=("tf32",))
    return with_manhattan(on_device(raw, row_bytes), _tiles)


@functools.cache
def _tiles() -> Backend:
    """The `numba-cuda` backend, for metric="manhattan"."""
    try:
        return LOADERS["numba-cuda"]()
    except (KeyError, BackendUnavailable) as error:
        raise BackendUnavailable(
            "backend='cupy' evaluates metric='manhattan' with the tiles of 'numba-cuda', which is "
            f"not available ({error}). Install it, or use backend='numba' on the CPU."
        ) from None


def find_gpu() -> tuple[ModuleType, str]:
    """CuPy and the name of the current GPU; makes no context."""
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
    device = cupy.cuda.runtime.getDevice()
    properties = cupy.cuda.runtime.getDeviceProperties(device)
    major, minor = properties["major"], properties["minor"]
    return cupy, f"{properties['name'].decode()}, compute capability {major}.{minor}"


def load() -> Backend:
    """The backend, or BackendUnavailable with the install line."""
    xp, gpu = find_gpu()
    backend = build_backend(xp, f"cuBLAS: int8 on the lattice, float32/float64 off it; {gpu}")
    return replace(backend, device=gpu)
