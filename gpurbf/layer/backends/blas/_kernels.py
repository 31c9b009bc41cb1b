"""Numba kernels of stored activations and of sparse rows."""

import numpy as np

from gpurbf.layer.backends.numba.consumers import CHUNK, Consumer, call_consumer, copy_tile
from gpurbf.layer.backends.numba.microkernels import BLOCK
from gpurbf.layer.backends.numba.packing import aligned_like
from gpurbf.runtime.jit.caching import cached
from gpurbf.runtime.jit.llvm import placed, pointer_to, use_widest_vectors


@cached(nogil=True, error_model="numpy")
def stored_rows(begin, end, A, consumer):
    """Add rows begin … end of A @ W to the consumer's scores, as the tile driver does."""
    use_widest_vectors()
    own = placed(consumer)
    consumer = Consumer(*consumer)
    H = aligned_like(A, CHUNK * BLOCK).reshape(CHUNK, BLOCK)
    sums = aligned_like(consumer.scores, CHUNK * consumer.sums)
    H[:] = 0
    sums[:] = 0
    for i in range(begin, end, CHUNK):
        n = min(CHUNK, end - i)
        for first in range(0, A.shape[1], BLOCK):
            count = min(BLOCK, A.shape[1] - first)
            copy_tile(A[i : i + n, first : first + count], n, count, H, 0, 0)
            H[:n, count:] = 0
            call_consumer(
                consumer.address, own, pointer_to(H, 0), n, count, i, first, pointer_to(sums, 0)
            )


@cached(nogil=True, fastmath={"reassoc", "contract"}, error_model="numpy")
def dot_rows(begin, end, A, W, scores):
    """Add rows of A @ W for a few outputs, W (k, m): reading A takes longer than its products."""
    use_widest_vectors()
    for i in range(begin, end):
        row = A[i]
        for o in range(W.shape[0]):
            w = W[o]
            total = 0.0
            for j in range(row.size):
                total += np.float64(row[j]) * np.float64(w[j])
            scores[i, o] += total


@cached(nogil=True)
def add_products(indptr, indices, values, col_indptr, col_indices, col_values, out):
    """Add A Bᵀ to out (N, m), for A (N, n) as CSR and B (m, n) as CSC; a row's sum is its own."""
    for i in range(out.shape[0]):
        row = out[i]
        for p in range(indptr[i], indptr[i + 1]):
            x, j = values[p], indices[p]
            for q in range(col_indptr[j], col_indptr[j + 1]):
                row[col_indices[q]] += x * col_values[q]
