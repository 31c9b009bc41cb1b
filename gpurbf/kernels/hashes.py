"""Sums over the bits of a row's values, of which a hash is made."""

import numpy as np

from gpurbf.kernels.caching import cached
from gpurbf.kernels.llvm import use_widest_vectors


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
    """The same for rows as CSR: what is not stored is 0 and adds nothing."""
    for i in range(len(indptr) - 1):
        total = np.uint64(0)
        for p in range(indptr[i], indptr[i + 1]):
            total += _spread_bits(values[p]) * odd[indices[p]]
        sums[i] = total
