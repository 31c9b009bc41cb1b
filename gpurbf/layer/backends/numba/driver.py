"""The tile driver: rows packed, products by strips of centers, activated and consumed in cache.

for a block of rows (packed once)           x, in L2
  for BLOCK centers                         c, in L2
    for a part of the inputs                (all, if they are not very many)
      for a strip of centers                c, in L1 or L2
        for a panel of rows: micro-kernel   ─► products   (block × BLOCK)
    for CHUNK rows: finish, activate        ─► H          (CHUNK × BLOCK, in L1)
                    consume                 ─► H stored | H @ W summed | H packed for HᵀH,
                                            as it is or in 16 bits

The driver moves bytes: everything that depends on a dtype is a C function that it calls by address,
so one driver serves all layers. Its arguments are words: addresses, and numbers of bytes or rows.
"""

from typing import NamedTuple

import numpy as np

from gpurbf.layer.backends.numba.consumers import CHUNK
from gpurbf.layer.backends.numba.microkernels import BLOCK
from gpurbf.runtime.jit.caching import cached
from gpurbf.runtime.jit.llvm import call_at, clear_bytes, copy_bytes, pointer, words


class LayerWords(NamedTuple):
    """Arguments of `evaluate_rows` that depend only on the layer, as 64-bit integers."""

    product: int  # address of the micro-kernel
    enter: int  # called before and after the rows, with `config`; 0: nothing to call
    leave: int
    config: int
    rows: int  # of a panel of samples
    packing: int  # this and `shift`: arguments of the packing function
    shift: int
    panel_bytes: int  # of a panel of rows
    step_bytes: int  # of a step of a panel of centers
    steps: int  # of all inputs, and of the part of them that is taken at a time
    part: int
    columns: int  # of a strip of centers
    panels: int
    strips: int  # which steps each strip takes: see `packing.strips_of`
    places: int
    m: int
    finish: int  # address of `activation_kernels.finish`; then its arguments
    epilogue: int
    terms: int  # of each center, padded with zeros like the panels
    itemsize: int  # of a product and of a term


class CallWords(NamedTuple):
    """Arguments of `evaluate_rows` for some rows and their consumer, as 64-bit integers."""

    pack: int  # a function of `packing`
    X: int
    row_bytes: int
    chosen: int  # numbers of the rows; 0: all rows in order
    consume: int  # a function of `consumers`; its own words follow these
    sums: int  # bytes that a row keeps from one tile to the next
    block: int  # rows that are packed at a time
    lines: int  # this and the following: offsets in a thread's memory, after x
    products: int
    row_terms: int
    H: int
    waiting: int


@cached(nogil=True, error_model="numpy")
def evaluate_rows(begin, end, layer_words, call_words, memory):
    """Evaluate rows begin … end, a block at a time, and hand the tiles to their consumer.

    ``memory`` is the address of the thread's own memory. Its end is cleared, because the score
    kernel reads rows beyond the last.
    """
    layer, call = words(layer_words, LayerWords), words(call_words, CallWords)
    consumer = call_words + 8 * len(call)
    P, H, waiting = memory + call.products, memory + call.H, memory + call.waiting
    clear_bytes(H, call.waiting - call.H + (call.block + CHUNK) * call.sums)
    strips, item = pointer(layer.strips, np.int64), layer.itemsize
    if layer.enter != 0:
        call_at(layer.enter, layer.config)
    for i in range(begin, end, call.block):
        n_rows = min(call.block, end - i)
        X, chosen = call.X, call.chosen
        if chosen != 0:
            chosen += 8 * i
        else:
            X += i * call.row_bytes
        row_terms, lines = memory + call.row_terms, memory + call.lines
        call_at(call.pack, X, chosen, layer.shift, layer.packing, n_rows, lines, memory, row_terms)
        for first in range(0, layer.m, BLOCK):
            count = min(BLOCK, layer.m - first)
            for begun in range(0, layer.steps, layer.part):
                for j in range(0, count, layer.columns):
                    strip = 3 * ((first + j) // layer.columns)
                    stride = strips[strip + 1] * layer.step_bytes
                    steps = min(layer.part, strips[strip + 1] - begun)
                    if steps <= 0:
                        continue
                    taken = layer.places + 4 * (strips[strip] + begun)
                    c = layer.panels + strips[strip + 2] + begun * layer.step_bytes
                    x, out = memory, P + j * item
                    for _ in range(0, n_rows, layer.rows):
                        call_at(layer.product, x, taken, c, stride, steps, out, begun)
                        x += layer.panel_bytes
                        out += layer.rows * BLOCK * item
            for r in range(0, n_rows, CHUNK):
                n = min(CHUNK, n_rows - r)
                call_at(
                    layer.finish, layer.epilogue, P + r * BLOCK * item, row_terms + r * item,
                    layer.terms + first * item, H, n, count,
                )  # fmt: skip
                call_at(call.consume, consumer, H, n, count, i + r, first, waiting + r * call.sums)
    if layer.leave != 0:
        call_at(layer.leave, layer.config)


@cached(nogil=True, error_model="numpy")
def stored_rows(begin, end, A, m, item, consume, consumer, sums, memory):
    """Hand rows begin … end of A (N, m) to a consumer, as the tile driver does.

    ``item`` is the itemsize of A, ``sums`` are the bytes that a row keeps between tiles; ``memory``
    has room for a tile and for CHUNK times these bytes.
    """
    waiting = memory + CHUNK * BLOCK * item
    clear_bytes(memory, CHUNK * (BLOCK * item + sums))
    for i in range(begin, end, CHUNK):
        n = min(CHUNK, end - i)
        for first in range(0, m, BLOCK):
            count = min(BLOCK, m - first)
            for r in range(n):
                line = memory + r * BLOCK * item
                copy_bytes(line, A + ((i + r) * m + first) * item, count * item)
                clear_bytes(line + count * item, (BLOCK - count) * item)
            call_at(consume, consumer, memory, n, count, i, first, waiting)
