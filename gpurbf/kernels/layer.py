"""The tile driver: rows packed, products by strips of centers, activated and consumed in cache.

for a block of rows (packed once)           x, in L2
  for BLOCK centers                         c, in L2
    for a strip of centers                  c, in L1
      for a panel of rows: micro-kernel     ─► products   (block × BLOCK)
    for CHUNK rows: finish, activate        ─► H          (CHUNK × BLOCK, in L1)
                    consume                 ─► H stored | H @ W summed | H packed for HᵀH, as it is
                                                                or in 16-bit pairs
"""

import numpy as np
from numba import njit

from gpurbf.kernels.activation import activate, finish
from gpurbf.kernels.fixed import pack_pairs
from gpurbf.kernels.llvm import call_product, call_setup, use_widest_vectors
from gpurbf.kernels.packing import aligned_bytes, pack
from gpurbf.kernels.scores import SUMMED, add_partial, add_scores, collect
from gpurbf.kernels.tiles import BLOCK, LANES

STORE, PARTIAL, SCORES, GRAM, PAIRS = range(5)
CHUNK = 12  # rows; those of every score kernel divide it, and those of `partial` every block


@njit(nogil=True)
def store(H, n_rows, n_columns, out, top, left):
    """Copy activations to out[top:, left:]."""
    use_widest_vectors()
    for r in range(n_rows):
        h, target = H[r], out[top + r, left : left + n_columns]
        for j in range(n_columns):
            target[j] = h[j]


@njit(nogil=True)
def pack_gram(H, weights, mean, panels):
    """Write weighted rows of H - mean into panels (panel, row, 16); zeros beyond the data."""
    use_widest_vectors()
    for r in range(H.shape[0]):
        w = weights[r]
        for p in range(panels.shape[0]):
            for k in range(LANES):
                j = p * LANES + k
                panels[p, r, k] = w * (H[r, j] - mean[j]) if j < H.shape[1] else w * 0


@njit(nogil=True, inline="never")
def add_tile(tile, P):
    """P += tile."""
    use_widest_vectors()
    for r in range(tile.shape[0]):
        for j in range(tile.shape[1]):
            P[r, j] += tile[r, j]


@njit(nogil=True, cache=True, error_model="numpy")
def layer_rows(
    begin, end, X, shift, linear, quadratic, blank, product, block, C, terms, m,
    alpha, factor, form, profile, gamma, coef0, degree,
    mode, out, W, score, scores, weights, mean, panels, pairs, beyond,
):  # fmt: skip
    """Evaluate rows begin … end of X and consume them; `backends.numba_` makes the arguments."""
    use_widest_vectors()
    kernel, enter, leave, config, rows, strip, group, width, depth = product
    score_kernel, score_rows, score_outputs = score
    x_size, c_step = blank.itemsize, C.itemsize * LANES * width
    kind, real = terms.dtype, out.dtype
    P = aligned_bytes(block * BLOCK * terms.itemsize).view(kind).reshape(block, BLOCK)
    H = aligned_bytes(CHUNK * BLOCK * out.itemsize).view(real).reshape(CHUNK, BLOCK)
    k = W.shape[1] if mode == PARTIAL else 1
    sums = aligned_bytes(block * k * LANES * out.itemsize).view(real).reshape(block, k, LANES)
    row_terms = np.empty(block, kind)
    later = aligned_bytes(rows * strip * LANES * terms.itemsize).view(kind)
    later = later.reshape(rows, strip * LANES)
    line = aligned_bytes(width * x_size).view(blank.dtype)
    x = aligned_bytes(block * width * x_size).view(blank.dtype)
    H[:] = 0  # the score kernel reads rows beyond the last
    sums[:] = 0
    if enter != 0:
        call_setup(enter, config)
    for i in range(begin, end, block):
        n_rows = min(block, end - i)
        totals, squares = pack(X, i, i + n_rows, shift, rows, group, line, x)
        n_panels = -(-n_rows // rows)
        for r in range(n_rows):
            row_terms[r] = quadratic * squares[r] + linear * totals[r]
        for first in range(0, m, BLOCK):
            count = min(BLOCK, m - first)
            column_terms = terms[first : first + count]
            for j in range(0, count, strip * LANES):
                c = C.ctypes.data + (first + j) // LANES * c_step
                for p in range(n_panels):
                    panel = x.ctypes.data + p * rows * width * x_size
                    call_product(
                        kernel, panel, c, c_step, depth // group,
                        P.ctypes.data + (p * rows * BLOCK + j) * P.itemsize, BLOCK * P.itemsize,
                    )  # fmt: skip
                    for k in range(depth, width, depth):
                        call_product(
                            kernel, panel + k * rows * x_size, c + k * LANES * C.itemsize, c_step,
                            min(depth, width - k) // group,
                            later.ctypes.data, strip * LANES * P.itemsize,
                        )  # fmt: skip
                        add_tile(later, P[p * rows : (p + 1) * rows, j : j + strip * LANES])
            for r in range(0, n_rows, CHUNK):
                n = min(CHUNK, n_rows - r)
                finish(P, r, 0, H, n, count, row_terms, column_terms, alpha, factor, form)
                if count == BLOCK:
                    activate(H[:n].reshape(n * BLOCK), form, profile, gamma, coef0, degree)
                else:
                    for q in range(n):
                        activate(H[q, :count], form, profile, gamma, coef0, degree)
                        H[q, count:] = 0
                top = i + r
                if mode == STORE:
                    store(H, n, count, out, top, first)
                elif mode == SCORES:
                    add_scores(
                        H, count, W, first, score_kernel, score_rows, sums, scores[top : top + n]
                    )
                elif mode == PARTIAL:
                    add_partial(
                        H, n, count, W[first // BLOCK], score_kernel, score_rows, score_outputs,
                        sums[r : r + CHUNK],
                    )  # fmt: skip
                elif (
                    mode == PAIRS
                ):  # tiles begin at even rows: CHUNK and all panels of rows are even
                    p, lanes = first // LANES, -(-count // LANES)
                    pack_pairs(
                        H[:n], weights[top : top + n], mean[first : first + lanes * LANES],
                        pairs[p : p + lanes, top // 2 : (top + n + 1) // 2], beyond[top : top + n],
                    )  # fmt: skip
                else:
                    lanes = -(-count // LANES)
                    pack_gram(
                        H[:n, :count], weights[top : top + n], mean[first : first + count],
                        panels[first // LANES : first // LANES + lanes, top : top + n],
                    )  # fmt: skip
            if mode == PARTIAL and (first // BLOCK % SUMMED == SUMMED - 1 or first + count == m):
                collect(sums, scores[i : i + n_rows])
    if leave != 0:
        call_setup(leave, config)
