"""Numba kernels over rows of samples: codes, sums for hashes, moments of bytes, CSR products."""

import numpy as np

from gpurbf.runtime.jit.caching import cached, inner
from gpurbf.runtime.jit.llvm import bits_as, moved, number_of, pointer, use_widest_vectors


@inner(error_model="numpy")
def _encode(x, n, scale, codes):
    """Write ``round(x * denominator) + zero`` to codes; return how many are not quantized.

    ``scale`` holds the denominator, its inverse and the zero point, in the dtype of x.
    """
    denominator, inverse, zero = scale[0], scale[1], scale[2]
    low, high = number_of(scale, 0), number_of(scale, 255)
    off = 0
    for j in range(n):
        k = np.rint(x[j] * denominator)
        code = k + zero
        # Bitwise operators, so that the loop has no branch and is vectorized; NaN fails them all.
        on = ((k / denominator == x[j]) | (k * inverse == x[j])) & (code >= low) & (code <= high)
        off += 1 - on
        code = low if low > code else code
        codes[j] = np.int32(high if high < code else code)
    return off


@cached(nogil=True, error_model="numpy")
def encode_rows(X, n_rows, n, row, wide, single, codes, off):
    """Write the codes of rows of n numbers, and whether each row is not quantized.

    Arrays are passed as addresses. X holds float32 numbers if ``row`` is 0. Else it holds float64
    numbers, and a row that is not quantized is tried again as float32 numbers, which are written
    to ``row``. ``wide`` and ``single`` are the scales for `_encode` in float64 and in float32.
    """
    codes, off = pointer(codes, np.uint8), pointer(off, np.uint8)
    for i in range(n_rows):
        x, c = moved(pointer(X, np.float32), i * n), moved(codes, i * n)
        rounded = 0  # numbers that float32 does not hold
        if row:
            x, x64 = pointer(row, np.float32), moved(pointer(X, np.float64), i * n)
            off[i] = _encode(x64, n, pointer(wide, np.float64), c) != 0
            if not off[i]:
                continue
            for j in range(n):
                x[j] = x64[j]
                rounded += x[j] != x64[j]
        if not rounded:
            off[i] = _encode(x, n, pointer(single, np.float32), c) != 0


@cached(nogil=True)
def row_sums(X, odd, sums):
    """Σ_j bits(X[i, j]) odd[j] modulo 2⁶⁴ for the rows of X (float64); `odd` has one per column."""
    use_widest_vectors()
    for i in range(X.shape[0]):
        total = np.uint64(0)
        for j in range(X.shape[1]):
            # The bits of a number, where a product with an odd number spreads them: small integers
            # have theirs on the high end. Adding 0.0 makes one zero of two.
            bits = bits_as(X[i, j] + 0.0, np.uint64)
            total += (bits ^ (bits >> np.uint64(32))) * odd[j]
        sums[i] = total


# Maximum number of squares of 8-bit numbers whose sum fits into 32 bits.
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


@cached(nogil=True)
def add_products(indptr, indices, values, col_indptr, col_indices, col_values, out):
    """Add A Bᵀ to out (N, m), for A (N, n) as CSR and B (m, n) as CSC; each row on its own."""
    for i in range(out.shape[0]):
        row = out[i]
        for p in range(indptr[i], indptr[i + 1]):
            x, j = values[p], indices[p]
            for q in range(col_indptr[j], col_indptr[j + 1]):
                row[col_indices[q]] += x * col_values[q]


@cached(nogil=True)
def add_dense_products(indptr, indices, values, B, out):
    """Add A B to out (N, m), for A (N, n) as CSR and B (n, m), in the order of `add_products`."""
    for i in range(out.shape[0]):
        row = out[i]
        for p in range(indptr[i], indptr[i + 1]):
            x, line = values[p], B[indices[p]]
            for j in range(row.size):
                row[j] += x * line[j]
