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

from gpurbf.layer.activation import Epilogue
from gpurbf.layer.backends.numba.activation_kernels import activate, finish
from gpurbf.layer.backends.numba.consumers import CHUNK, Consumer, call_consumer, copy_tile
from gpurbf.layer.backends.numba.microkernels import BLOCK, LANES
from gpurbf.layer.backends.numba.packing import aligned_like, pack
from gpurbf.runtime.jit.caching import cached, inner
from gpurbf.runtime.jit.gil_spin import begin_kernel, end_kernel
from gpurbf.runtime.jit.llvm import (
    call_listed,
    call_setup,
    keep_alive,
    placed,
    pointer_to,
    use_widest_vectors,
    without_refcount,
)


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
    blank: np.ndarray  # empty: carries the dtype of packed rows
    word: np.ndarray  # empty: carries that of the units in which they are moved


class Centers(NamedTuple):
    """Packed centers, and what makes distances or dot products of their products with samples."""

    panels: np.ndarray
    strips: np.ndarray  # which steps each strip of panels takes: see `packing.strips_of`
    places: np.ndarray
    m: int
    terms: np.ndarray  # of each center, padded with zeros like the panels
    shift: np.ndarray  # what samples lose before they are packed; its dtype is that of their sums
    linear: np.number  # coefficients of a row's sum and sum of squares in its term
    quadratic: np.number


@inner()
def multiply(x, n_panels, kernel, centers, first, count, P):
    """P = products of packed rows x with `count` centers from `first` on.

    `centers` are the panels, strips and places of `Centers`.
    """
    panels, strips, places = centers
    panel = kernel.rows * kernel.width * x.itemsize
    step = LANES * kernel.group * panels.itemsize
    columns = kernel.strip * LANES
    for j in range(0, count, columns):
        strip = (first + j) // columns
        steps = strips[strip, 1]
        taken = places.ctypes.data + strips[strip, 0] * places.itemsize
        c = panels.ctypes.data + strips[strip, 2]
        for p in range(n_panels):
            call_listed(
                kernel.address, x.ctypes.data + p * panel, taken, c, steps * step, steps,
                P.ctypes.data + (p * kernel.rows * BLOCK + j) * P.itemsize, BLOCK * P.itemsize,
            )  # fmt: skip


@cached(nogil=True, error_model="numpy")
def evaluate_rows(begin, end, X, chosen, block, kernel, centers, epilogue, consumer):
    """Evaluate rows begin … end of X, `block` at a time, and hand the tiles to their consumer.

    They are those that are `chosen`, or all in order if that is empty.

    The groups come as plain tuples: Numba finds the type of one several times faster, which a
    layer of a few samples would notice.
    """
    use_widest_vectors()
    begin_kernel()
    kernel, centers = MicroKernel(*kernel), Centers(*centers)
    own = placed(consumer)
    epilogue, consumer = Epilogue(*epilogue), Consumer(*consumer)
    m, x_type, kind, real = centers.m, kernel.blank, centers.terms, consumer.out
    x = aligned_like(x_type, block * kernel.width)
    length = max(kernel.width, X.shape[1])
    lines = aligned_like(x_type, 4 * length).reshape(4, length)
    P = aligned_like(kind, block * BLOCK).reshape(block, BLOCK)
    row_terms = np.empty(block, kind.dtype)
    H = aligned_like(real, CHUNK * BLOCK).reshape(CHUNK, BLOCK)
    sums = aligned_like(consumer.scores, (block + CHUNK) * consumer.sums)
    H[:] = 0  # the score kernel reads rows beyond the last
    sums[:] = 0
    memory = x, lines, P, row_terms, H
    x, lines, P, row_terms, H = (
        without_refcount(x), without_refcount(lines), without_refcount(P),
        without_refcount(row_terms), without_refcount(H),
    )  # fmt: skip
    X, chosen, shift = (
        without_refcount(X),
        without_refcount(chosen),
        without_refcount(centers.shift),
    )
    all_terms = without_refcount(centers.terms)
    packed = (
        without_refcount(centers.panels),
        without_refcount(centers.strips),
        without_refcount(centers.places),
    )
    if kernel.enter != 0:
        call_setup(kernel.enter, kernel.config)
    for i in range(begin, end, block):
        n_rows = min(block, end - i)
        totals, squares = pack(
            X,
            i,
            i + n_rows,
            shift,
            kernel.rows,
            kernel.group,
            kernel.word,
            lines,
            x,
            chosen,
        )
        for r in range(n_rows):
            row_terms[r] = centers.quadratic * squares[r] + centers.linear * totals[r]
        for first in range(0, m, BLOCK):
            count = min(BLOCK, m - first)
            n_panels = -(-n_rows // kernel.rows)
            multiply(x, n_panels, kernel, packed, first, count, P)
            terms = all_terms[first : first + count]
            for r in range(0, n_rows, CHUNK):
                n = min(CHUNK, n_rows - r)
                finish(P, r, 0, H, n, count, row_terms, terms, epilogue)
                if count == BLOCK:
                    activate(H[:n].reshape(n * BLOCK), epilogue)
                else:
                    for q in range(n):
                        activate(H[q, :count], epilogue)
                        H[q, count:] = 0
                call_consumer(
                    consumer.address, own, pointer_to(H, 0), n, count, i + r, first,
                    pointer_to(sums, r * consumer.sums),
                )  # fmt: skip
    if kernel.leave != 0:
        call_setup(kernel.leave, kernel.config)
    keep_alive(memory)
    end_kernel()


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
