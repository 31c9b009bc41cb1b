"""The tile driver: rows packed, products by strips of centers, activated and consumed in cache.

for a block of rows (packed once)           x, in L2
  for BLOCK centers                         c, in L2
    for a strip of centers                  c, in L1
      for a panel of rows: micro-kernel     ─► products   (block × BLOCK)
    for CHUNK rows: finish, activate        ─► H          (CHUNK × BLOCK, in L1)
                    consume                 ─► H stored | H @ W summed | H packed for HᵀH,
                                            as it is or in 16 bits
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from gpurbf.kernels.activation import activate, finish
from gpurbf.kernels.caching import cached
from gpurbf.kernels.epilogue import Epilogue
from gpurbf.kernels.fixed import pack_pairs
from gpurbf.kernels.llvm import call_product, call_setup, use_widest_vectors
from gpurbf.kernels.packing import aligned_like, pack
from gpurbf.kernels.scores import SUMMED, add_partial, add_scores, collect
from gpurbf.kernels.tiles import BLOCK, LANES

STORE, PARTIAL, SCORES, GRAM, PAIRS = range(5)
CHUNK = 12  # rows; those of every score kernel divide it, and those of `partial` every block


class MicroKernel(NamedTuple):
    """The micro-kernel of the products, and how it wants its operands (see `products.Layout`)."""

    address: int
    enter: int  # called before and after the rows, with `config`; 0: nothing to call
    leave: int
    config: int
    rows: int  # of a panel of samples
    strip: int  # panels of centers a call
    group: int
    width: int  # inputs, padded
    depth: int  # inputs a call; longer sums are added up
    blank: np.ndarray  # empty: carries the dtype of packed rows


class Centers(NamedTuple):
    """Packed centers, and what makes distances or dot products of their products with samples."""

    panels: np.ndarray
    m: int
    terms: np.ndarray  # of each center, padded with zeros like the panels
    shift: np.ndarray  # what samples lose before they are packed; its dtype is that of their sums
    linear: np.number  # coefficients of a row's sum and sum of squares in its term
    quadratic: np.number
    kept: np.ndarray  # inputs that are packed, if not all: centers are equal in the others


class Consumer(NamedTuple):
    """Who takes the tiles; arrays that a mode has no use for are empty, so all have one type."""

    out: np.ndarray  # STORE: H (N, m)
    places: np.ndarray  # STORE: the rows of `out` that are written, if not in order
    weights: np.ndarray  # GRAM, PAIRS: roots of the samples' weights (N,), times a scale
    mean: np.ndarray  # what H loses (m,), for PAIRS as long as whole panels
    panels: np.ndarray  # GRAM: the result (m / 16, N, 16)
    pairs: np.ndarray  # PAIRS: the result (m / 16, N / 2, 16), and which rows it cannot hold
    beyond: np.ndarray
    scores: np.ndarray  # PARTIAL, SCORES: the sums H @ W (N, k), float64
    mode: int
    W: np.ndarray  # output weights, packed
    kernel: int = 0  # the address of the micro-kernel for them, and its rows and outputs
    rows: int = 1
    outputs: int = 1


@njit(nogil=True)
def store(H, n_rows, n_columns, out, top, left, places=None):
    """Copy activations to out[top:, left:], or to rows places[top:] of it."""
    use_widest_vectors()
    for r in range(n_rows):
        row = top + r
        if places is not None and len(places):
            row = places[row]
        h, target = H[r], out[row, left : left + n_columns]
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


@njit(nogil=True)
def multiply(x, n_panels, kernel, C, first, count, P, later):
    """P = products of packed rows x with `count` centers from `first` on; scratch: `later`."""
    x_size, c_step = kernel.blank.itemsize, C.itemsize * LANES * kernel.width
    rows, columns, depth = kernel.rows, kernel.strip * LANES, kernel.depth
    for j in range(0, count, columns):
        c = C.ctypes.data + (first + j) // LANES * c_step
        for p in range(n_panels):
            panel = x.ctypes.data + p * rows * kernel.width * x_size
            call_product(
                kernel.address, panel, c, c_step, depth // kernel.group,
                P.ctypes.data + (p * rows * BLOCK + j) * P.itemsize, BLOCK * P.itemsize,
            )  # fmt: skip
            for k in range(depth, kernel.width, depth):
                call_product(
                    kernel.address, panel + k * rows * x_size, c + k * LANES * C.itemsize, c_step,
                    min(depth, kernel.width - k) // kernel.group,
                    later.ctypes.data, columns * P.itemsize,
                )  # fmt: skip
                add_tile(later, P[p * rows : (p + 1) * rows, j : j + columns])


@cached(nogil=True, error_model="numpy")
def layer_rows(begin, end, X, chosen, block, kernel, centers, epilogue, consumer):
    """Evaluate rows begin … end of X, `block` at a time, and hand the tiles to their consumer.

    They are those that are `chosen`, or all in order if that is empty.

    The groups come as plain tuples: Numba finds the type of one several times faster, which a
    layer of a few samples would notice.
    """
    use_widest_vectors()
    kernel, centers = MicroKernel(*kernel), Centers(*centers)
    epilogue, consumer = Epilogue(*epilogue), Consumer(*consumer)
    m, x_type, kind, real = centers.m, kernel.blank, centers.terms, consumer.out
    mode, W = consumer.mode, consumer.W
    k = W.shape[1] if mode == PARTIAL else 1
    x = aligned_like(x_type, block * kernel.width)
    line = aligned_like(x_type, max(kernel.width, X.shape[1]))
    P = aligned_like(kind, block * BLOCK).reshape(block, BLOCK)
    later = aligned_like(kind, kernel.rows * kernel.strip * LANES)
    later = later.reshape(kernel.rows, kernel.strip * LANES)
    row_terms = np.empty(block, kind.dtype)
    H = aligned_like(real, CHUNK * BLOCK).reshape(CHUNK, BLOCK)
    sums = aligned_like(real, block * k * LANES).reshape(block, k, LANES)
    H[:] = 0  # the score kernel reads rows beyond the last
    sums[:] = 0
    if kernel.enter != 0:
        call_setup(kernel.enter, kernel.config)
    for i in range(begin, end, block):
        n_rows = min(block, end - i)
        totals, squares = pack(
            X,
            i,
            i + n_rows,
            centers.shift,
            kernel.rows,
            kernel.group,
            line,
            x,
            chosen,
            centers.kept,
        )
        for r in range(n_rows):
            row_terms[r] = centers.quadratic * squares[r] + centers.linear * totals[r]
        for first in range(0, m, BLOCK):
            count = min(BLOCK, m - first)
            n_panels = -(-n_rows // kernel.rows)
            multiply(x, n_panels, kernel, centers.panels, first, count, P, later)
            terms = centers.terms[first : first + count]
            for r in range(0, n_rows, CHUNK):
                n = min(CHUNK, n_rows - r)
                finish(P, r, 0, H, n, count, row_terms, terms, epilogue)
                if count == BLOCK:
                    activate(H[:n].reshape(n * BLOCK), epilogue)
                else:
                    for q in range(n):
                        activate(H[q, :count], epilogue)
                        H[q, count:] = 0
                top = i + r
                # Not in a function of its own, which layers of few inputs would notice.
                if mode == STORE:
                    store(H, n, count, consumer.out, top, first, consumer.places)
                elif mode == SCORES:
                    add_scores(
                        H, count, W, first, consumer.kernel, consumer.rows, sums,
                        consumer.scores[top : top + n],
                    )  # fmt: skip
                elif mode == PARTIAL:
                    add_partial(
                        H, n, count, W[first // BLOCK],
                        consumer.kernel, consumer.rows, consumer.outputs, sums[r : r + CHUNK],
                    )  # fmt: skip
                elif mode == PAIRS:  # top is even: so are CHUNK, blocks and panels of rows
                    p, lanes = first // LANES, -(-count // LANES)
                    pack_pairs(
                        H[:n], consumer.weights[top : top + n],
                        consumer.mean[first : first + lanes * LANES],
                        consumer.pairs[p : p + lanes, top // 2 : (top + n + 1) // 2],
                        consumer.beyond[top : top + n],
                    )  # fmt: skip
                else:
                    p, lanes = first // LANES, -(-count // LANES)
                    pack_gram(
                        H[:n, :count], consumer.weights[top : top + n],
                        consumer.mean[first : first + count],
                        consumer.panels[p : p + lanes, top : top + n],
                    )  # fmt: skip
            if mode == PARTIAL and (first // BLOCK % SUMMED == SUMMED - 1 or first + count == m):
                collect(sums, consumer.scores[i : i + n_rows])
    if kernel.leave != 0:
        call_setup(kernel.leave, kernel.config)
