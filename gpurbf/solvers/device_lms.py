"""The on-line delta rule on a GPU: three kernels a block of rows, an epoch of them a graph.

W += r z (t - z W) for each row z in order is, for a block of rows Z with rates r,

    errors   E = T - Z W      of all rows, by the weights before the block
    steps    F = S E          S = diag(r) (I + tril(Z Zᵀ, -1) diag(r))⁻¹, what rows tell later ones
    update   W += Zᵀ F

S knows neither W nor T: it is made once for all epochs, by the kernel `factors` from Z Zᵀ. A row of
weight w has the rate r of its repetitions together: a step of rate a at z leaves 1 - a z·z of its
error. All sums are float64 and in an order of their own: no atomics, the same bits every time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np

from gpurbf.layer.backends.cuda.cupy_kernels import block_sums

# Rows whose errors are solved for at once: more take more operations, fewer more launches.
BLOCK = 256

# A block of threads makes S of a block of rows in place of Z Zᵀ, each thread a column of it from
# the top: S[i, c] = r_i (δ_ic - Σ_j<i z_i·z_j S[j, c]).
_FACTORS = """
extern "C" __global__ void gpurbf_factors(
    double rate, const double* weights, long long N, double* systems
) {
    __shared__ double row[B];
    const int c = threadIdx.x;
    const long long first = (long long)blockIdx.x * B;
    double* S = systems + first * B;
    for (int i = 0; i < B && first + i < N; ++i) {
        row[c] = S[i * B + c];
        __syncthreads();
        double sum = c == i;
        for (int j = c; j < i; ++j) sum -= row[j] * S[j * B + c];
        const double w = weights[first + i], square = row[i], whole = floor(w);
        double step = rate * w;
        if (w != 1 && square > 0) {
            const double last = 1 - rate * (w - whole) * square;
            step = (1 - pow(1 - rate * square, whole) * last) / square;
        }
        S[i * B + c] = c <= i ? step * sum : 0;
        __syncthreads();
    }
}
"""
# A block takes R rows and Q outputs, its threads centers in turn.
_ERRORS = """
extern "C" __global__ void gpurbf_errors(
    const T* z, const double* targets, const double* W, long long N, long long m, long long k,
    double* errors
) {
    __shared__ double partial[WARPS][R * Q];
    const long long top = (long long)blockIdx.x * R, output = (long long)blockIdx.y * Q;
    double sums[R][Q];
#pragma unroll
    for (int e = 0; e < R * Q; ++e) sums[e / Q][e % Q] = 0;
    for (long long j = threadIdx.x; j < m; j += 32 * WARPS) {
        double w[Q];
#pragma unroll
        for (int q = 0; q < Q; ++q) w[q] = output + q < k ? W[(output + q) * m + j] : 0;
#pragma unroll
        for (int r = 0; r < R; ++r) {
            const double v = z[(top + r < N ? top + r : N - 1) * m + j];
#pragma unroll
            for (int q = 0; q < Q; ++q) sums[r][q] += v * w[q];
        }
    }
BLOCK_SUMS
}
""".replace("BLOCK_SUMS", block_sums("double", "targets[i * k + o]", "-", "errors"))
# A warp takes a row and an output.
_STEPS = """
extern "C" __global__ void gpurbf_steps(
    const double* system, const double* errors, long long N, long long k, double* steps
) {
    const long long i = (long long)blockIdx.x * blockDim.y + threadIdx.y, o = blockIdx.y;
    if (i >= N) return;
    double sum = 0;
    for (long long j = threadIdx.x; j <= i; j += 32) sum += system[i * B + j] * errors[j * k + o];
    for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (threadIdx.x == 0) steps[i * k + o] = sum;
}
"""
# A block takes 32 centers and Q outputs, its warps rows in turn.
_UPDATE = """
extern "C" __global__ void gpurbf_update(
    const T* z, const double* steps, long long N, long long m, long long k, double* W
) {
    __shared__ double partial[WARPS][Q][32];
    const long long j = (long long)blockIdx.x * 32 + threadIdx.x;
    const long long output = (long long)blockIdx.y * Q;
    double sums[Q];
#pragma unroll
    for (int q = 0; q < Q; ++q) sums[q] = 0;
    for (long long i = threadIdx.y; i < N; i += WARPS) {
        const double v = j < m ? z[i * m + j] : T(0);
#pragma unroll
        for (int q = 0; q < Q; ++q) sums[q] += output + q < k ? v * steps[i * k + output + q] : 0;
    }
#pragma unroll
    for (int q = 0; q < Q; ++q) partial[threadIdx.y][q][threadIdx.x] = sums[q];
    __syncthreads();
    for (int q = threadIdx.y; q < Q; q += WARPS) {
        if (j >= m || output + q >= k) continue;
        double sum = 0;
        for (int warp = 0; warp < WARPS; ++warp) sum += partial[warp][q][threadIdx.x];
        W[(output + q) * m + j] += sum;
    }
}
"""
_TEXTS = {"factors": _FACTORS, "errors": _ERRORS, "steps": _STEPS, "update": _UPDATE}
_R, _Q, _WARPS = 4, 8, 8


def source(name: str, dtype: Any) -> str:
    """The text of a kernel for activations of that dtype."""
    kind = {"float32": "float", "float64": "double"}[np.dtype(dtype).name]
    sizes = {"B": BLOCK, "R": _R, "Q": _Q, "WARPS": _WARPS}
    defined = "".join(f"#define {key} {size}\n" for key, size in sizes.items())
    return f"{defined}typedef {kind} T;\n{_TEXTS[name]}"


@functools.cache
def _kernel(xp: ModuleType, name: str, dtype: Any, block: int) -> Callable[..., None]:
    return xp.RawKernel(source(name, dtype), f"gpurbf_{name}")


class Rows:
    """Rows of activations H (N, m), in order, and their targets T (N, k), ready for the rule.

    All arrays are C-contiguous, of the device; ``weights`` (N,) are the samples'.
    """

    def __init__(self, xp: ModuleType, H: Any, T: Any, weights: Any) -> None:
        self.xp, self.H, self.T, self.weights = xp, H, T, weights
        N, k = T.shape
        self.parts = [slice(i, min(i + BLOCK, N)) for i in range(0, N, BLOCK)]
        self.systems = xp.zeros((len(self.parts), BLOCK, BLOCK))
        for system, part in zip(self.systems, self.parts, strict=True):
            Z = H[part].astype(np.float64)
            system[: len(Z), : len(Z)] = Z @ Z.T
        self.errors, self.steps = xp.empty((BLOCK, k)), xp.empty((BLOCK, k))

    def largest(self) -> float:
        """The largest z·z of a row."""
        return float(self.systems.diagonal(0, 1, 2).max())

    def learn_at(self, rate: float) -> None:
        """Make the systems of a learning rate; once."""
        given = np.float64(rate), self.weights, np.int64(len(self.T)), self.systems
        self._launch("factors", (len(self.parts),), (BLOCK,), given)

    def update(self, W: Any) -> None:
        """Pass all rows once through the rule; W (k, m), in place. No memory is asked for."""
        (k, m), groups = W.shape, -(-len(W) // _Q)
        for system, part in zip(self.systems, self.parts, strict=True):
            Z, T = self.H[part], self.T[part]
            n, m_, k_ = map(np.int64, (len(Z), m, k))
            self._launch(
                "errors", (-(-len(Z) // _R), groups), (32 * _WARPS,),
                (Z, T, W, n, m_, k_, self.errors),
            )  # fmt: skip
            self._launch(
                "steps", (-(-len(Z) // _WARPS), k), (32, _WARPS),
                (system, self.errors, n, k_, self.steps),
            )  # fmt: skip
            self._launch(
                "update", (-(-m // 32), groups), (32, _WARPS), (Z, self.steps, n, m_, k_, W)
            )

    def _launch(self, name: str, grid: tuple, block: tuple, given: tuple) -> None:
        _kernel(self.xp, name, self.H.dtype, BLOCK)(grid, block, given)
