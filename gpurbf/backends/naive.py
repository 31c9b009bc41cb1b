"""Baselines of benchmarks: what anyone would write, compiled, in NumPy, on a GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["compiled_loop", "one_thread_a_pair", "plain_numpy", "scaled"]


def compiled_loop(X: np.ndarray, C: np.ndarray, gamma: float, out: np.ndarray) -> np.ndarray:
    """Gaussian H (N, m) of float32 or float64 data by three loops in one thread."""
    from gpurbf.kernels.naive import gaussian_layer

    gaussian_layer(X, C, X.dtype.type(gamma), X.dtype.type(0), out)
    return out


def plain_numpy(X: np.ndarray, C: np.ndarray, gamma: float) -> np.ndarray:
    """The same by the formula |x|² + |c|² - 2 x·c, the product by NumPy's BLAS."""
    squared = (X * X).sum(axis=1)[:, None] + (C * C).sum(axis=1) - 2 * (X @ C.T)
    return np.exp(-X.dtype.type(gamma) * np.maximum(squared, 0))


def one_thread_a_pair(X: Any, C: Any, gamma: float, out: Any, block: int = 16) -> None:
    """The same as in the paper, arrays on the GPU, in blocks of block² threads."""
    from gpurbf.kernels.cuda import api, pairs, profiles
    from gpurbf.kernels.epilogue import SQUARED

    grid = -(-len(X) // block), -(-len(C) // block)
    pairs.pairs[grid, (block, block), api.current_stream()](
        api.argument(X), api.argument(C), pairs.EUCLIDEAN, SQUARED, profiles.GAUSSIAN,
        float(gamma), 0.0, 1, api.argument(out),
    )  # fmt: skip


def scaled(source: np.ndarray, factor: np.floating, target: np.ndarray) -> None:
    """Target = factor * source by a compiled loop: STREAM's scale."""
    from gpurbf.kernels.naive import scale

    scale(source, factor, target)
