"""Numba kernels over rows of samples: quantized codes, sums of bits for hashes, sums of bytes."""

import numpy as np

from gpurbf.runtime.jit.caching import cached, inner
from gpurbf.runtime.jit.llvm import use_widest_vectors

# Values of a row that are looked at before it may be given up.
_CHUNK = 512


@inner(error_model="numpy")
def _encode(x, denominator, inverse, zero, codes):
    """Write ``round(x * denominator) + zero`` into codes; how many values are not quantized."""
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
    """`_encode` of float64 values that are float32 numbers: float32 rounded them."""
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
    """The codes of a row; False if it is not quantized. A row is rounded in one way."""
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
    """Write the codes of each row of X, and into ``off`` whether the row is not quantized."""
    for i in range(X.shape[0]):
        off[i] = not _encode_row(X[i], denominator, inverse, zero, codes[i])


@cached(nogil=True)
def _spread_bits(x):
    """The bits of a number, 0 for both zeros, where a product with an odd number spreads them."""
    # Adding 0.0 makes one zero of two; small integers have their bits on the high end.
    bits = np.float64(x + 0.0).view(np.uint64)
    return bits ^ (bits >> np.uint64(32))


@cached(nogil=True)
def row_sums(X, odd, sums):
    """Σ_j bits(X[i, j]) odd[j] modulo 2⁶⁴ for the rows of X (float64); `odd` is one a column."""
    use_widest_vectors()
    for i in range(X.shape[0]):
        total = np.uint64(0)
        for j in range(X.shape[1]):
            total += _spread_bits(X[i, j]) * odd[j]
        sums[i] = total


@cached(nogil=True)
def csr_row_sums(indptr, indices, values, odd, sums):
    """`row_sums` of rows as CSR: what is not stored is 0 and adds nothing."""
    for i in range(len(indptr) - 1):
        total = np.uint64(0)
        for p in range(indptr[i], indptr[i + 1]):
            total += _spread_bits(values[p]) * odd[indices[p]]
        sums[i] = total


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
