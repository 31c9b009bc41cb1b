"""Bilinear forms of inverse tridiagonal matrices, a few rows at a time for all shifts."""

import numba as nb
import numpy as np

ROWS = 16  # at a time: side by side in vectors, and all of them in the second-level cache


@nb.njit(nogil=True, cache=True, fastmath={"contract"})
def bilinear_forms(first, Y, Z, factors, pivots, forms):
    """forms[s, i] = y_i·(T + shift_s)⁻¹ z_i for the rows from `first` on, ROWS at the most.

    T + shift_s is L D Lᵀ, `factors[s]` what is below the diagonal of L and `pivots[s]` D; so it is
    the product of L⁻¹y and L⁻¹z under D⁻¹, both found in one sweep.
    """
    last, m = min(first + ROWS, len(Z)), Z.shape[1]
    y, z = np.zeros((m, ROWS)), np.zeros((m, ROWS))
    for i in range(first, last):
        for j in range(m):
            y[j, i - first] = Y[i, j]
            z[j, i - first] = Z[i, j]
    for s in range(len(pivots)):
        left, right, total = np.zeros(ROWS), np.zeros(ROWS), np.zeros(ROWS)
        factor = 0.0
        for j in range(m):
            inverse = 1.0 / pivots[s, j]
            for i in range(ROWS):
                left[i] = y[j, i] - factor * left[i]
                right[i] = z[j, i] - factor * right[i]
                total[i] += left[i] * right[i] * inverse
            factor = factors[s, j] if j < m - 1 else 0.0
        for i in range(first, last):
            forms[s, i] = total[i - first]
