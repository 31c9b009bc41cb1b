"""FSVC's sequential loops for `network`: the Numba kernels, imported when they are called."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpurbf.backends.threads import parallel_for, thread_limit

# Updates of one weight that take longer than it takes to wake a thread.
_WORTH_A_THREAD = 4_000_000


def walk(*arguments: Any) -> tuple[int, int]:
    """Decide the candidates of a block in order; see :func:`gpurbf.kernels.novelty.walk`."""
    from gpurbf.kernels import novelty

    return novelty.walk(*arguments)


def aligned(shape: tuple[int, int], dtype: Any) -> np.ndarray:
    """See :func:`gpurbf.kernels.packing.aligned`."""
    from gpurbf.kernels import packing

    return packing.aligned(shape, dtype)


def lms_rows(
    H: np.ndarray, T: np.ndarray, W: np.ndarray, learning_rate: float, weights: np.ndarray | None
) -> None:
    """Pass the rows of H (b, m) once through the delta rule; W (k, m) is updated in place.

    The outputs do not depend on each other: each thread takes some of them, and the result is the
    same for any number of threads.
    """
    from gpurbf.kernels import lms

    k = T.shape[1]
    repeats = np.empty(0) if weights is None else weights
    n_parts = min(k, thread_limit()) if T.size * H.shape[1] > _WORTH_A_THREAD else 1

    def outputs(i: int) -> None:
        mine = slice(i * k // n_parts, (i + 1) * k // n_parts)
        lms.rows(H, np.ascontiguousarray(T[:, mine]), W[mine], learning_rate, repeats)

    parallel_for(outputs, n_parts)


def pass_over(*arguments: Any) -> None:
    """The sequential pass over known distances; see :func:`gpurbf.kernels.novelty.pass_over`."""
    from gpurbf.kernels import novelty

    novelty.pass_over(*arguments)
