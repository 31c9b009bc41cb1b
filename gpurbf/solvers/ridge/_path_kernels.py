"""Bilinear forms of inverse tridiagonal matrices, a few rows at a time for all shifts."""

import numpy as np

from gpurbf.runtime.jit.caching import cached

ROWS = 16  # at a time: side by side in vectors, and all of them in the second-level cache


@cached(nogil=True, fastmath={"contract"})
def bilinear_forms(first, Y, Z, factors, pivots, forms):
    """Write yᵀMy, yᵀMz and zᵀMz for M = (T + shift_s)⁻¹, for up to ROWS rows from `first` on.

    T + shift_s is L D Lᵀ, so the forms are products of L⁻¹y and L⁻¹z under D⁻¹, both found in one
    sweep.

    Parameters
    ----------
    first : int
    Y, Z : float64 arrays of shape (n, m)
        The rows y and z.
    factors : float64 array of shape (p, m - 1)
        The numbers below the diagonal of L, for each shift.
    pivots : float64 array of shape (p, m)
        D, for each shift.
    forms : float64 array of shape (3, p, n)
    """
    last, m = min(first + ROWS, len(Z)), Z.shape[1]
    y, z = np.zeros((m, ROWS)), np.zeros((m, ROWS))
    for i in range(first, last):
        for j in range(m):
            y[j, i - first] = Y[i, j]
            z[j, i - first] = Z[i, j]
    for s in range(len(pivots)):
        left, right = np.zeros(ROWS), np.zeros(ROWS)
        squares, products, others = np.zeros(ROWS), np.zeros(ROWS), np.zeros(ROWS)
        factor = 0.0
        for j in range(m):
            inverse = 1.0 / pivots[s, j]
            for i in range(ROWS):
                left[i] = y[j, i] - factor * left[i]
                right[i] = z[j, i] - factor * right[i]
                weighted = right[i] * inverse
                squares[i] += left[i] * left[i] * inverse
                products[i] += left[i] * weighted
                others[i] += right[i] * weighted
            factor = factors[s, j] if j < m - 1 else 0.0
        for i in range(first, last):
            forms[0, s, i] = squares[i - first]
            forms[1, s, i] = products[i - first]
            forms[2, s, i] = others[i - first]
