"""8-bit codes of rows that lie on an integer lattice."""

import numpy as np

from gpurbf.kernels.caching import cached, inner

# Values of a row that are looked at before it may be given up.
_CHUNK = 512


@inner(error_model="numpy")
def _encode(x, denominator, inverse, zero, codes):
    """Write ``round(x * denominator) + zero`` into codes; how many values are off the lattice."""
    one = denominator * inverse
    off = 0
    for j in range(x.size):
        k = np.rint(x[j] * denominator)
        code = k + zero
        # Bitwise so that the loop has no branch and becomes vector code; NaN fails them all.
        on = ((k / denominator == x[j]) | (k * inverse == x[j])) & (code >= 0) & (code <= 255)
        off += 1 - on
        codes[j] = np.uint8(np.int32(min(max(code, one * 0), one * 0 + 255)))
    return off


@inner(error_model="numpy")
def _encode_rounded(x, denominator, inverse, zero, codes):
    """The same for float64 values that are float32 numbers: float32 rounded them."""
    off = 0
    for j in range(x.size):
        v = np.float32(x[j])
        k = np.rint(v * denominator)
        code = k + zero
        on = ((k / denominator == v) | (k * inverse == v)) & (code >= 0) & (code <= 255)
        off += 1 - (on & (np.float64(v) == x[j]))
        codes[j] = np.uint8(np.int32(min(max(code, np.float32(0)), np.float32(255))))
    return off


@inner(error_model="numpy")
def _encode_row(x, denominator, inverse, zero, codes):
    """The codes of a row; False if it is off the lattice. A row is rounded in one way."""
    exact = True
    for j in range(0, x.size, _CHUNK):
        part, c = x[j : j + _CHUNK], codes[j : j + _CHUNK]
        if exact and _encode(part, denominator, inverse, zero, c) == 0:
            continue
        if x.itemsize == 4:
            return False
        single, inverse_single = np.float32(denominator), np.float32(inverse)
        start = 0 if exact else j
        exact = False
        stop = j + _CHUNK
        if _encode_rounded(
            x[start:stop], single, inverse_single, np.float32(zero), codes[start:stop]
        ):
            return False
    return True


@cached(nogil=True, error_model="numpy")
def encode_rows(X, denominator, inverse, zero, codes, off):
    """Write the codes of each row of X, and into ``off`` whether the row is off the lattice."""
    for i in range(X.shape[0]):
        off[i] = not _encode_row(X[i], denominator, inverse, zero, codes[i])
