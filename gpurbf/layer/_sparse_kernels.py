"""Numba kernel of products of sparse rows."""

from gpurbf.runtime.jit.caching import cached


@cached(nogil=True)
def add_products(indptr, indices, values, col_indptr, col_indices, col_values, out):
    """Add A Bᵀ to out (N, m), for A (N, n) as CSR and B (m, n) as CSC; a row's sum is its own."""
    for i in range(out.shape[0]):
        row = out[i]
        for p in range(indptr[i], indptr[i + 1]):
            x, j = values[p], indices[p]
            for q in range(col_indptr[j], col_indptr[j + 1]):
                row[col_indices[q]] += x * col_values[q]
