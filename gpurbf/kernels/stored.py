"""H @ W of activations that are in memory already; a row's sum is its own."""

import numpy as np

from gpurbf.kernels.caching import cached
from gpurbf.kernels.layer import CHUNK, PARTIAL, Consumer, store
from gpurbf.kernels.llvm import use_widest_vectors
from gpurbf.kernels.packing import aligned_like
from gpurbf.kernels.scores import SUMMED, add_partial, add_scores, collect
from gpurbf.kernels.tiles import BLOCK, LANES


@cached(nogil=True, error_model="numpy")
def stored_rows(begin, end, A, consumer):
    """Add rows begin … end of A @ W to the consumer's scores, as the tile driver does."""
    use_widest_vectors()
    consumer = Consumer(*consumer)
    mode, W, m = consumer.mode, consumer.W, A.shape[1]
    H = aligned_like(A, CHUNK * BLOCK).reshape(CHUNK, BLOCK)
    k = W.shape[1] if mode == PARTIAL else 1
    sums = aligned_like(A, CHUNK * k * LANES).reshape(CHUNK, k, LANES)
    H[:] = 0
    sums[:] = 0
    for i in range(begin, end, CHUNK):
        n = min(CHUNK, end - i)
        scores = consumer.scores[i : i + n]
        for first in range(0, m, BLOCK):
            count = min(BLOCK, m - first)
            store(A[i : i + n, first : first + count], n, count, H, 0, 0)
            H[:n, count:] = 0
            if mode == PARTIAL:
                add_partial(
                    H, n, count, W[first // BLOCK],
                    consumer.kernel, consumer.rows, consumer.outputs, sums,
                )  # fmt: skip
                if first // BLOCK % SUMMED == SUMMED - 1 or first + count == m:
                    collect(sums[:n], scores)
            else:
                add_scores(H, count, W, first, consumer.kernel, consumer.rows, sums, scores)


@cached(nogil=True, fastmath={"reassoc", "contract"}, error_model="numpy")
def dot_rows(begin, end, A, W, scores):
    """The same for a few outputs, W (k, m): reading A takes longer than its few products."""
    use_widest_vectors()
    for i in range(begin, end):
        row = A[i]
        for o in range(W.shape[0]):
            w = W[o]
            total = 0.0
            for j in range(row.size):
                total += np.float64(row[j]) * np.float64(w[j])
            scores[i, o] += total
