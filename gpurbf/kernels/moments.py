"""Sums of rows of small whole numbers and of their squares: exact, in whatever order."""

import numpy as np

from gpurbf.kernels.caching import cached
from gpurbf.kernels.llvm import use_widest_vectors

# Numbers of 8 bits whose squares add up in 32.
_PART = 1 << 16


@cached(nogil=True)
def byte_moments(X, sums):
    """Write Σ_j X[i, j] and Σ_j X[i, j]² of rows X (N, n) of bytes to sums (2, N)."""
    use_widest_vectors()
    for i in range(X.shape[0]):
        total = squares = np.uint64(0)
        for begin in range(0, X.shape[1], _PART):
            part = part_squares = np.uint32(0)
            for value in X[i, begin : begin + _PART]:
                x = np.uint32(value)
                part = np.uint32(part + x)
                part_squares = np.uint32(part_squares + np.uint32(x * x))
            total += np.uint64(part)
            squares += np.uint64(part_squares)
        sums[0, i], sums[1, i] = total, squares
