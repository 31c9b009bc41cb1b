"""H @ W of activations that are in memory already; a row's sum is its own."""

import numpy as np

from gpurbf.kernels.caching import cached
from gpurbf.kernels.consumers import CHUNK, Consumer, call_consumer, copy_tile
from gpurbf.kernels.llvm import placed, pointer_to, use_widest_vectors
from gpurbf.kernels.packing import aligned_like
from gpurbf.kernels.tiles import BLOCK


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
