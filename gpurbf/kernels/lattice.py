"""8-bit codes of rows that lie on an integer lattice."""

import numba as nb
import numpy as np


@nb.njit(nogil=True, cache=True, error_model="numpy")
def encode_rows(X, denominator, inverse, zero, codes):
    """Write ``round(X * denominator) + zero`` into codes; False if a value is off the lattice."""
    one = denominator * inverse
    for i in range(X.shape[0]):
        off = 0
        for j in range(X.shape[1]):
            x = X[i, j]
            k = np.rint(x * denominator)
            code = k + zero
            # Bitwise so that the loop has no branch and becomes vector code; NaN fails them all.
            on = ((k / denominator == x) | (k * inverse == x)) & (code >= 0) & (code <= 255)
            off += 1 - on
            codes[i, j] = np.uint8(np.int32(min(max(code, one * 0), one * 0 + 255)))
        if off:
            return False
    return True
