"""Sums of rows of bytes and of their squares, at the speed of memory."""

from __future__ import annotations

import numpy as np

from gpurbf.backends.threads import parallel_for

__all__ = ["byte_moments"]

_TILE = 1 << 20  # bytes: tens of microseconds


def byte_moments(X: np.ndarray) -> np.ndarray:
    """Σ_j X[i, j] and Σ_j X[i, j]² of rows X (N, n) of bytes, shape (2, N), exact."""
    from gpurbf.kernels import moments

    sums = np.empty((2, len(X)))
    n_rows = max(1, _TILE // max(1, X.shape[1]))

    def tile(i: int) -> None:
        some = slice(i * n_rows, (i + 1) * n_rows)
        rows = np.ascontiguousarray(X[some])
        rows.flags.writeable = False  # of any X the one type that there is a kernel for
        moments.byte_moments(rows, sums[:, some])

    parallel_for(tile, -(-len(X) // n_rows))
    return sums
