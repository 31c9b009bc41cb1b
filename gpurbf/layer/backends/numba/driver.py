"""The tile driver: rows packed, products by strips of centers, activated and consumed in cache.

for a block of rows (packed once)           x, in L2
  for BLOCK centers                         c, in L2
    for a strip of centers                  c, in L1
      for a panel of rows: micro-kernel     ─► products   (block × BLOCK)
    for CHUNK rows: finish, activate        ─► H          (CHUNK × BLOCK, in L1)
                    consume                 ─► H stored | H @ W summed | H packed for HᵀH,
                                            as it is or in 16 bits

It moves bytes: whatever depends on a dtype is a C function that it calls by its address, so there
is one driver for all layers. What it is given are words: addresses, and numbers of bytes or rows.
"""

from typing import NamedTuple

import numpy as np

from gpurbf.layer.backends.numba.consumers import CHUNK
from gpurbf.layer.backends.numba.microkernels import BLOCK
from gpurbf.runtime.jit.caching import cached
from gpurbf.runtime.jit.llvm import (
    call_eight,
    call_setup,
    call_seven,
    clear_bytes,
    copy_bytes,
    pointer,
    words,
)


class MicroKernel(NamedTuple):
    """The micro-kernel of the products, and the layout of its operands (`microkernel_table`)."""

    address: int
    enter: int  # called before and after the rows, with `config`; 0: nothing to call
    leave: int
    config: int
    rows: int  # of a panel of samples
    strip: int  # panels of centers a call
    group: int
    width: int  # inputs, padded
    dtype: np.dtype  # of packed rows


class Centers(NamedTuple):
    """Packed centers, and what makes distances or dot products of their products with samples."""

    panels: np.ndarray
    strips: np.ndarray  # which steps each strip of panels takes: see `packing.strips_of`
    places: np.ndarray
    m: int
    terms: np.ndarray  # of each center, padded with zeros like the panels


class Fixed(NamedTuple):
    """Arguments of `evaluate_rows` that a layer fixes, as 64-bit integers."""

    packing: int  # what a function of `packing` is given of all rows
    shift: int
    product: int
    enter: int
    leave: int
    config: int
    rows: int
    panel_bytes: int  # of a panel of rows
    step_bytes: int  # of a step of a panel of centers
    columns: int  # of a strip of centers
    panels: int
    strips: int
    places: int
    m: int
    finish: int  # a function of `activation_kernels`, and what it is given of all tiles
    epilogue: int
    terms: int
    number: int  # bytes of a product and of a term


class Plan(NamedTuple):
    """Arguments of `evaluate_rows` for some rows and their consumer, as 64-bit integers."""

    pack: int  # a function of `packing`
    X: int
    row_bytes: int
    chosen: int  # numbers of the rows; 0: all rows in order
    consume: int  # a function of `consumers`; the words that it is given follow the plan
    sums: int  # bytes of a row of what waits from one tile to the next
    block: int  # rows that are packed at a time
    lines: int  # where in a thread's memory is what, after x
    products: int
    row_terms: int
    H: int
    waiting: int


_FIXED, _WORDS = len(Fixed._fields), len(Plan._fields)


@cached(nogil=True, error_model="numpy")
def evaluate_rows(begin, end, layer, plan, memory):
    """Evaluate rows begin … end, a block at a time, and hand the tiles to their consumer.

    ``layer`` and ``plan`` are addresses of words, ``memory`` that of a thread's own: the last of it
    is cleared, for the score kernel reads rows beyond the last.
    """
    own, p = Fixed(*words(layer, _FIXED)), Plan(*words(plan, _WORDS))
    consumer = plan + 8 * _WORDS
    P, H, waiting = memory + p.products, memory + p.H, memory + p.waiting
    clear_bytes(H, p.waiting - p.H + (p.block + CHUNK) * p.sums)
    strips, number = pointer(own.strips, np.int64), own.number
    if own.enter != 0:
        call_setup(own.enter, own.config)
    for i in range(begin, end, p.block):
        n_rows = min(p.block, end - i)
        X, chosen = p.X, p.chosen
        if chosen != 0:
            chosen += 8 * i
        else:
            X += i * p.row_bytes
        row_terms, lines = memory + p.row_terms, memory + p.lines
        call_eight(p.pack, X, chosen, own.shift, own.packing, n_rows, lines, memory, row_terms)
        for first in range(0, own.m, BLOCK):
            count = min(BLOCK, own.m - first)
            for j in range(0, count, own.columns):
                strip = 3 * ((first + j) // own.columns)
                steps, taken = strips[strip + 1], own.places + 4 * strips[strip]
                c, x, out = own.panels + strips[strip + 2], memory, P + j * number
                for _ in range(0, n_rows, own.rows):
                    call_seven(
                        own.product, x, taken, c, steps * own.step_bytes, steps, out, BLOCK * number
                    )
                    x += own.panel_bytes
                    out += own.rows * BLOCK * number
            for r in range(0, n_rows, CHUNK):
                n = min(CHUNK, n_rows - r)
                call_seven(
                    own.finish, own.epilogue, P + r * BLOCK * number, row_terms + r * number,
                    own.terms + first * number, H, n, count,
                )  # fmt: skip
                call_seven(p.consume, consumer, H, n, count, i + r, first, waiting + r * p.sums)
    if own.leave != 0:
        call_setup(own.leave, own.config)


@cached(nogil=True, error_model="numpy")
def stored_rows(begin, end, A, m, number, consume, consumer, sums, memory):
    """Hand rows begin … end of A (N, m) to a consumer, as the tile driver does.

    ``number`` are bytes of one of A, ``sums`` those of a row that waits; ``memory`` is a tile and
    CHUNK rows of that.
    """
    waiting = memory + CHUNK * BLOCK * number
    clear_bytes(memory, CHUNK * (BLOCK * number + sums))
    for i in range(begin, end, CHUNK):
        n = min(CHUNK, end - i)
        for first in range(0, m, BLOCK):
            count = min(BLOCK, m - first)
            for r in range(n):
                line = memory + r * BLOCK * number
                copy_bytes(line, A + ((i + r) * m + first) * number, count * number)
                clear_bytes(line + count * number, (BLOCK - count) * number)
            call_seven(consume, consumer, memory, n, count, i, first, waiting)
