"""Numba kernels over rows of samples: codes, sums for hashes, moments of bytes, CSR products."""

import numpy as np

from gpurbf.runtime.jit.caching import cached, compiled
from gpurbf.runtime.jit.llvm import bits_as, moved, number_of, use_widest_vectors

_BYTE, _WORD = np.dtype(np.uint8), np.dtype(np.uint64)


def encode_rows(X, n_rows, n, scale, codes, off):
    """Write the codes ``round(x * denominator) + zero`` of the rows that are marked in ``off``.

    The mark stays where a number is not quantized, or not one of the dtype of ``scale``, which
    holds the denominator, its inverse and the zero point.
    """
    denominator, inverse, zero = scale[0], scale[1], scale[2]
    low, high = number_of(scale, 0), number_of(scale, 255)
    for i in range(n_rows):
        if off[i]:
            x, c, others = moved(X, i * n), moved(codes, i * n), 0
            # Bitwise operators, so that the loop has no branch and is vectorized; NaN fails them.
            for j in range(n):
                value = number_of(scale, x[j])
                k = np.rint(value * denominator)
                code = k + zero
                on = (k / denominator == value) | (k * inverse == value)
                others += 1 - (on & (value == x[j]) & (code >= low) & (code <= high))
                code = low if low > code else code
                c[j] = np.int32(high if high < code else code)
            off[i] = others != 0


def row_sums(X, n_rows, n, odd, sums):
    """Σ_j bits(X[i, j]) odd[j] modulo 2⁶⁴ for the rows of X (float64); `odd` has one per column."""
    use_widest_vectors()
    for i in range(n_rows):
        x, total = moved(X, i * n), np.uint64(0)
        for j in range(n):
            # The bits of a number, where a product with an odd number spreads them: small integers
            # have theirs on the high end. Adding 0.0 makes one zero of two.
            bits = bits_as(x[j] + 0.0, np.uint64)
            total += (bits ^ (bits >> np.uint64(32))) * odd[j]
        sums[i] = total


def encoding_of(dtype, scale):
    """The C function `encode_rows` for rows and a scale of float64 or float32."""
    return compiled(encode_rows, (dtype, None, None, scale, _BYTE, _BYTE))


def sums_of(dtype):
    """The C function `row_sums` for rows of a dtype."""
    return compiled(row_sums, (dtype, None, None, _WORD, _WORD))


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
