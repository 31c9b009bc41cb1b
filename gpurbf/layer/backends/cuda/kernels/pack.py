"""Rows made ready for the tiles: shifted, converted, padded to whole slices, with their terms."""

import numpy as np

from gpurbf.runtime.jit.cuda_api import cuda, jit

LANES = 32  # threads that share a row
ROWS = 4  # rows of a block


@jit
def pack(X, shift, quadratic, linear, constant, packed, terms):
    """packed = X - shift in its own dtype, zeros beyond X (N, n); terms of its rows.

    terms[i] = quadratic Σx² + linear Σx + constant over row i of `packed`, summed in float64, which
    is exact for 8-bit codes. An empty shift is none.

    Launched with blocks of (LANES, ROWS) threads; any number of blocks is right.
    """
    sums = cuda.shared.array((ROWS, LANES), np.float64)
    lane, r = cuda.threadIdx.x, cuda.threadIdx.y
    N, n = np.int64(X.shape[0]), np.int64(X.shape[1])
    kind = packed.dtype.type
    # The bound is the same for all threads of a block: all of them meet at the barriers.
    for first in range(np.int64(cuda.blockIdx.x) * ROWS, packed.shape[0], cuda.gridDim.x * ROWS):
        i = first + r
        total = 0.0
        if i < packed.shape[0]:
            for j in range(lane, packed.shape[1], LANES):
                value = kind(0)
                if i < N and j < n:
                    value = kind(X[i, j] - shift[j]) if shift.size else kind(X[i, j])
                packed[i, j] = value
                x = float(value)
                total += (quadratic * x + linear) * x
        sums[r, lane] = total
        cuda.syncthreads()
        if lane == 0 and i < terms.shape[0]:
            total = constant
            for q in range(LANES):
                total += sums[r, q]
            terms[i] = terms.dtype.type(total)
        cuda.syncthreads()
