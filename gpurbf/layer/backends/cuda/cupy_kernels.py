"""CUDA kernels in C++ that CuPy compiles for the GPU at hand: `rows` for both backends.

    rows      samples, or centers, as the products read them: shifted, converted, padded, and the
              terms of their distances, in one pass; for `cupy` and the tiles of `numba-cuda`
    outputs   products P of cuBLAS to activations: H
    scores    products P to H @ W; H is not stored

The step from a product to an activation is generated for each form and profile from one line each,
in the types of the layer. These lines are C++ and, for the tests, Python. The kernel's signature
determines the arguments of a launch.
"""

from __future__ import annotations

import functools
import math
from types import ModuleType
from typing import Any

import numpy as np

from gpurbf.layer.activation import DOT, ROOT, SQUARE, SQUARED, Epilogue, form, in_tile
from gpurbf.layer.distance import Coefficients

# From a product p to an activation y: the distance or dot product s, the profile's argument v by
# form, and y by profile. `tiny` is the smallest normal number: values below it become 0, because
# products of subnormal numbers are slow. NaN, from numbers beyond the dtype, must reach y: CUDA's
# max() of NaN and 0 is 0.
_SUM = "T s = T(K(row + column + alpha * K(p))) * factor;"
_ARGUMENTS = {
    SQUARED: "T v = s * T(s > T(0));",
    ROOT: "T v = sqrt(s * T(s > T(0)));",
    SQUARE: "T v = s * s;",
    DOT: "T v = s;",
}
_EXPONENTIAL = "T e = exp(-gamma * v); y = e * T(e >= tiny);"
# In float32, `exp` errs twice as much as rounding does. Near 1, where all values of a wide kernel
# are, this series does not.
_EXPONENTIAL32 = (
    "T x = gamma * v; T z = min(x, T(0.125)); T near = T(x < T(0.125)); "
    "T q = T(1) - z * (T(1.0 / 2) - z * (T(1.0 / 6) - z * (T(1.0 / 24) - z * T(1.0 / 120)))); "
    "T e = near * (T(1) - z * q) + (T(1) - near) * exp(-x); y = e * T(e >= tiny);"
)
_STATEMENTS = {
    "gaussian": _EXPONENTIAL,
    "laplacian": _EXPONENTIAL,
    "triangular": "T x = gamma * v; y = max(T(1) - x, T(0)) / T(x == x);",
    "multiquadric": "y = sqrt(T(1) + gamma * v);",
    "inverse-multiquadric": "y = T(1) / sqrt(T(1) + gamma * v);",
    "thin-plate": "T t = gamma * v; y = T(0.5) * t * log(max(t, tiny)) * T(t >= tiny);",
    "linear": "y = v;",
    "sigmoid": "y = tanh(gamma * v + coef0);",
}
_C_TYPES = {
    "int8": "signed char",
    "uint8": "unsigned char",
    "int32": "int",
    "float32": "float",
    "float64": "double",
}

# A warp takes a row. The terms are summed in integers where they are exact, else in float64.
_ROWS = """
// All bits of a GPU's NaN but the sign are ones: what is added to them would carry over, to -0.
__device__ __forceinline__ float tf32(float v) {
    return v == v ? __uint_as_float((__float_as_uint(v) + 0x1000u) & 0xffffe000u) : v;
}
extern "C" __global__ void gpurbf_rows(
    const X* x, const S* shift, long long N, long long n, long long padded, long long width,
    U quadratic, U linear, U constant, P* packed, K* terms
) {
    const long long i = (long long)blockIdx.x * blockDim.y + threadIdx.y;
    if (i >= padded) return;
    U total = 0;
    for (long long j = threadIdx.x; j < width; j += 32) {
        P value = 0;
        if (i < N && j < n) value = P(M(x[i * n + j]) - M(shift[j]));
        STORE
        total += quadratic * (u * u - rest) + linear * u;
    }
    for (int step = 16; step; step /= 2) total += __shfl_xor_sync(0xffffffffu, total, step);
    if (threadIdx.x == 0 && i < N) terms[i] = K(total + constant);
}
"""
_WHOLE = "packed[i * width + j] = value; const U u = U(value), rest = 0;"
# float32 as the sum of two numbers that TF32 holds: a sample's parts meet a center's in the order
# high · high + high · low + low · high. A row's term is computed from high + low in the same way,
# without low · low: otherwise the distance of a sample from itself would not be 0.
_SPLIT = """
        P* to = packed + i * 3 * width + j;
        const float high = tf32(value), low = tf32(value - high);
        to[0] = high; to[width] = {}; to[2 * width] = {};
        const U u = U(high) + U(low), rest = U(low) * U(low);
"""
_SPLIT_SAMPLES, _SPLIT_CENTERS = _SPLIT.format("high", "low"), _SPLIT.format("low", "high")
_STORES = {None: _WHOLE, "samples": _SPLIT_SAMPLES, "centers": _SPLIT_CENTERS}

_ACTIVATE = """
__device__ __forceinline__ T activate(
    const A p, const K row, const K column, const K alpha, const T factor, const T gamma,
    const T coef0, const T tiny
) {
    T y; STATEMENTS return y;
}
"""
_OUTPUTS = """
extern "C" __global__ void gpurbf_outputs(
    const A* products, long long pitch, const K* rows, const K* columns, K alpha, T factor,
    T gamma, T coef0, T tiny, long long N, long long m, T* out
) {
    const long long j = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (j >= m) return;
    const K column = columns[j];
    for (long long i = blockIdx.y; i < N; i += gridDim.y)
        out[i * m + j] = activate(
            products[i * pitch + j], rows[i], column, alpha, factor, gamma, coef0, tiny);
}
"""
# A block takes R samples and Q outputs; its threads take columns in turn, and their sums are added
# in double. Every sum has a fixed order, the same for any number of samples: there are no atomics.
_SCORES = """
extern "C" __global__ void gpurbf_scores(
    const A* products, long long pitch, const K* rows, const K* columns, K alpha, T factor,
    T gamma, T coef0, T tiny, long long N, long long m, const T* weights, long long k, T* scores
) {
    __shared__ double partial[WARPS][R * Q];
    const long long top = (long long)blockIdx.x * R, output = (long long)blockIdx.y * Q;
    T sums[R][Q];
#pragma unroll
    for (int e = 0; e < R * Q; ++e) sums[e / Q][e % Q] = T(0);
    for (long long j = threadIdx.x; j < m; j += 32 * WARPS) {
        const K column = columns[j];
        T w[Q];
#pragma unroll
        for (int q = 0; q < Q; ++q) w[q] = output + q < k ? weights[(output + q) * m + j] : T(0);
#pragma unroll
        for (int r = 0; r < R; ++r) {
            const long long i = top + r < N ? top + r : N - 1;
            const T y = activate(
                products[i * pitch + j], rows[i], column, alpha, factor, gamma, coef0, tiny);
#pragma unroll
            for (int q = 0; q < Q; ++q) sums[r][q] += y * w[q];
        }
    }
#pragma unroll
    for (int e = 0; e < R * Q; ++e) {
        double sum = sums[e / Q][e % Q];
        for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
        if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32][e] = sum;
    }
    __syncthreads();
    for (int e = threadIdx.x; e < R * Q; e += 32 * WARPS) {
        const long long i = top + e / Q, o = output + e % Q;
        if (i >= N || o >= k) continue;
        double sum = 0;
        for (int warp = 0; warp < WARPS; ++warp) sum += partial[warp][e];
        scores[i * k + o] = T(sum);
    }
}
"""
_R, _Q, _WARPS = 4, 16, 4
# For the two other kernels: threads of a block, rows of a block, largest grid size except in x.
_THREADS, _BLOCK_ROWS, _GRID = 256, 8, 65_535


def epilogue(activation: Any, alpha: int, factor: float, dtype: Any) -> Epilogue:
    """An activation with its code, which ends with the argument of a callable profile."""
    a, profile = activation, in_tile(activation)
    last = _power(int(a.degree)) if profile == "poly" else _STATEMENTS[profile]
    if last == _EXPONENTIAL and dtype == np.float32:
        last = _EXPONENTIAL32
    code = " ".join([_SUM, _ARGUMENTS[form(a)], last])
    return Epilogue(alpha, factor, form(a), code, a.gamma, a.coef0, a.degree)


def _power(degree: int) -> str:
    """(gamma v + coef0)^degree by repeated squaring, as on the CPU: pow loses more digits."""
    bits = range(degree.bit_length())
    squares = [f"T p{bit} = p{bit - 1} * p{bit - 1};" for bit in bits[1:]]
    factors = " * ".join(f"p{bit}" for bit in bits if degree >> bit & 1)
    return " ".join(["T p0 = gamma * v + coef0;", *squares, f"y = {factors or 'T(1)'};"])


def _types(**dtypes: Any) -> str:
    """A typedef for each letter."""
    return "\n".join(
        f"typedef {_C_TYPES[np.dtype(dtype).name]} {letter};" for letter, dtype in dtypes.items()
    )


def rows_source(x_dtype: Any, shift: Any, dtype: Any, terms: Any, parts: str | None) -> str:
    """The code of `rows` for these dtypes; ``parts`` names the side to split in three."""
    # The shift rounds no more than either side does.
    moved = np.result_type(x_dtype, dtype, np.float32)
    sums = "typedef long long U;" if np.issubdtype(dtype, np.integer) else "typedef double U;"
    types = _types(X=x_dtype, S=shift, P=dtype, K=terms, M=moved)
    return f"{types}\n{sums}\n{_ROWS.replace('STORE', _STORES[parts])}"


def outputs_source(statements: str, products: Any, terms: Any, dtype: Any) -> str:
    """The code of `outputs`."""
    types = _types(A=products, K=terms, T=dtype)
    return f"{types}\n{_ACTIVATE.replace('STATEMENTS', statements)}{_OUTPUTS}"


def scores_source(statements: str, products: Any, terms: Any, dtype: Any, k: int) -> str:
    """The code of `scores` for groups of k outputs."""
    types = _types(A=products, K=terms, T=dtype)
    sizes = f"#define R {_R}\n#define Q {k}\n#define WARPS {_WARPS}\n"
    return f"{sizes}{types}\n{_ACTIVATE.replace('STATEMENTS', statements)}{_SCORES}"


@functools.cache
def _kernel(xp: ModuleType, source: Any, *arguments: Any) -> Any:
    """The kernel; its code is generated and compiled once for these arguments."""
    name = source.__name__.removesuffix("_source")
    return xp.RawKernel(source(*arguments), f"gpurbf_{name}")


def move_rows(
    xp: ModuleType, A: Any, shift: Any, coefficients: Coefficients, packed: Any, terms: Any,
    parts: str | None = None,
) -> None:  # fmt: skip
    """packed = A (N, n) - shift (n,), zeros beyond it, and the terms of its rows."""
    if A.dtype not in (np.uint8, np.float32, np.float64):
        A = A.astype(np.float64)
    padded, width = packed.shape
    if not padded:
        return
    N, n = A.shape
    width = width // 3 if parts else width
    number = np.int64 if packed.dtype.kind in "iu" else np.float64
    sizes = map(np.int64, (N, n, padded, width))
    kernel = _kernel(xp, rows_source, A.dtype, shift.dtype, packed.dtype, terms.dtype, parts)
    kernel(
        (-(-padded // _BLOCK_ROWS),), (32, _BLOCK_ROWS),
        (A, shift, *sizes, *map(number, coefficients), packed, terms),
    )  # fmt: skip


def write(
    xp: ModuleType, rule: Epilogue, P: Any, rows: Any, columns: Any, out: Any, W: Any = None
) -> None:
    """out (N, m) = activations of products P (N, m or more); for W (k, m) out (N, k) = H @ Wᵀ."""
    number, real = columns.dtype.type, out.dtype.type
    with np.errstate(all="ignore"):  # a gamma beyond the dtype makes what the caller finds
        reals = [real(x) for x in (rule.factor, rule.gamma, rule.coef0, np.finfo(real).tiny)]
    sizes = np.int64(len(rows)), np.int64(len(columns))
    given = P, np.int64(P.shape[1]), rows, columns, number(rule.alpha), *reals, *sizes
    source = rule.profile, P.dtype, columns.dtype, out.dtype
    N, width = out.shape
    if W is None:
        grid = -(-width // _THREADS), min(-(-N // _BLOCK_ROWS), _GRID)
        _kernel(xp, outputs_source, *source)(grid, (_THREADS,), (*given, out))
        return
    groups = -(-width // _Q)
    some = math.ceil(width / groups)
    some += some % 2 if some > 1 else 0  # even numbers: fewer kernels to compile
    kernel = _kernel(xp, scores_source, *source, some)
    kernel((-(-N // _R), groups), (32 * _WARPS,), (*given, W, np.int64(width), out))
