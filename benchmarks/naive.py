"""Baselines of benchmarks: what anyone would write, compiled, in NumPy, on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np


def compiled_loop(X: np.ndarray, C: np.ndarray, gamma: float, out: np.ndarray) -> np.ndarray:
    """Gaussian H (N, m) of float32 or float64 data by three loops in one thread."""
    from benchmarks._naive_kernels import gaussian_layer

    gaussian_layer(X, C, X.dtype.type(gamma), X.dtype.type(0), out)
    return out


def plain_numpy(X: np.ndarray, C: np.ndarray, gamma: float) -> np.ndarray:
    """The same by the formula |x|² + |c|² - 2 x·c, the product by NumPy's BLAS."""
    squared = (X * X).sum(axis=1)[:, None] + (C * C).sum(axis=1) - 2 * (X @ C.T)
    return np.exp(-X.dtype.type(gamma) * np.maximum(squared, 0))


def one_thread_a_pair(X: Any, C: Any, gamma: float, out: Any, block: int = 16) -> None:
    """The same as in the paper, arrays on the GPU, in blocks of block² threads."""
    from benchmarks import _cuda_naive_kernels
    from gpurbf.layer.activation import SQUARED
    from gpurbf.layer.backends.cuda.kernels import profiles
    from gpurbf.runtime.jit import cuda_api

    grid = -(-len(X) // block), -(-len(C) // block)
    _cuda_naive_kernels.pairs[grid, (block, block), cuda_api.current_stream()](
        cuda_api.argument(X), cuda_api.argument(C),
        _cuda_naive_kernels.EUCLIDEAN, SQUARED, profiles.GAUSSIAN,
        float(gamma), 0.0, 1, cuda_api.argument(out),
    )  # fmt: skip


def scaled(source: np.ndarray, factor: np.floating, target: np.ndarray) -> None:
    """Target = factor * source by a compiled loop: STREAM's scale."""
    from benchmarks._naive_kernels import scale

    scale(source, factor, target)
