"""HᵀH and HᵀT of packed rows: the lower triangle only, short sums by tile, long ones in float64.

The panels are float32 or float64 rows, or pairs of rows in 16-bit fixed point, which is what makes
sums over them exact, in any order. A pair is a 32-bit word for each column, the first row in its
low half:

    pairs  [column / 16][row / 2][16]

Products of such rows are summed in 32 bits, which wrap around, so the result is right if the sum
itself fits. By the Cauchy-Schwarz inequality, the sum for two columns is at most the root of the
product of their energies (sums of squares). So a run of rows in which no column's energy reaches
2³¹ cannot overflow, whatever the other column is.

The micro-kernel and the function that adds its tile to the float64 sums are called by address, so
one loop serves all dtypes; the ends of the kernel's own short sums are an argument.
"""

from typing import NamedTuple

import numpy as np

from gpurbf.layer.backends.numba.microkernels import LANES
from gpurbf.runtime.jit.caching import cached, compiled, inner
from gpurbf.runtime.jit.llvm import (
    call_at,
    clear_bytes,
    moved,
    number_of,
    pointer,
    use_widest_vectors,
    words,
)

SIDE = 192  # columns of a block of HᵀH: its float64 sums stay in L2
PANELS = SIDE // LANES
DEPTH = 256  # rows summed in registers, in the dtype of H, before float64 takes over


def padded_panels(columns):
    """Panels of 16 for that many columns, an even number because kernels may take two."""
    return -(-columns // (2 * LANES)) * 2


class GramWords(NamedTuple):
    """Arguments of `add_gram`, as 64-bit integers."""

    panels: int
    panel_bytes: int
    itemsize: int
    h_panels: int  # of H; those of T come after them
    n_panels: int  # of both
    ends: int
    n_ends: int
    address: int  # of the micro-kernel, and its rows and panels
    rows: int
    strip: int
    add: int  # see `add_tile_address`
    m: int
    k: int
    G: int  # float64, and bytes from row to row
    G_bytes: int
    products: int  # TᵀH (k, m), float64


def memory_bytes(kernel, itemsize):
    """Memory for the sums of `add_gram`, and a tile of a micro-kernel after them."""
    return 8 * SIDE * SIDE + kernel.rows * kernel.strip * LANES * itemsize


def _add_tile(tile, apart, rows, columns, sums, sums_apart):
    """sums += tile (rows, columns), with rows ``apart`` and ``sums_apart`` numbers apart."""
    use_widest_vectors()
    for i in range(rows):
        source, target = moved(tile, i * apart), moved(sums, i * sums_apart)
        for j in range(columns):
            target[j] += source[j]


def add_tile_address(dtype):
    """Address of the function that adds tiles of that dtype to float64 sums."""
    return compiled(_add_tile, (dtype, None, None, None, np.dtype(np.float64), None)).address


def blocks_of(h_panels, n_panels, squares):
    """First panels (left, right) of the blocks of TᵀH and, if ``squares``, of HᵀH before them."""
    of_h, of_t = range(0, h_panels, PANELS), range(h_panels, n_panels, PANELS)
    lower = [(i, j) for i in of_h for j in of_h if j <= i]
    return (lower if squares else []) + [(i, j) for i in of_t for j in of_h]


@cached(nogil=True)
def add_gram(left, right, gram_words, scale, memory):
    """A block of G += scale HᵀH (lower triangle) or, if ``left`` is a panel of T, of TᵀH.

    The sums are of the steps from the first to the last of `ends`; each run between two of them is
    summed in the panels' dtype.
    """
    use_widest_vectors()
    p = words(gram_words, GramWords)
    out, row_bytes, top, n_rows, end = p.G, p.G_bytes, left * LANES, p.m, p.h_panels
    if left >= p.h_panels:
        out, row_bytes, top, n_rows, end = p.products, 8 * p.m, top - end * LANES, p.k, p.n_panels
        scale = 1.0
    n_left, n_right = min(PANELS, end - left), min(PANELS, p.h_panels - right)
    tile, ends = memory + 8 * SIDE * SIDE, pointer(p.ends, np.int64)
    clear_bytes(memory, 8 * SIDE * SIDE)
    step, columns = LANES * p.itemsize, p.strip * LANES
    for b in range(0, n_right, p.strip):
        c = p.panels + (right + b) * p.panel_bytes
        for a in range(b if left == right else 0, n_left):  # the lower triangle of a block
            for r in range(0, LANES, p.rows):
                x = p.panels + (left + a) * p.panel_bytes + r * p.itemsize
                for e in range(p.n_ends - 1):
                    k, steps = ends[e] * step, ends[e + 1] - ends[e]
                    call_at(p.address, x + k, c + k, p.panel_bytes, steps, tile, p.strip * step)
                    to = memory + 8 * ((a * LANES + r) * SIDE + b * LANES)
                    call_at(p.add, tile, columns, p.rows, columns, to, SIDE)
    sums, first = pointer(memory, np.float64), right * LANES
    for i in range(min(n_left * LANES, n_rows - top)):
        line = pointer(out + (top + i) * row_bytes + 8 * first, np.float64)
        for j in range(min(n_right * LANES, p.m - first)):
            line[j] += scale * sums[i * SIDE + j]


LARGEST = 32767
UNIT = 16  # pairs whose energies are summed before they are compared with the limit
LONGEST = 1024  # maximum rows of a run: squares of halves of targets may reach 2²⁰
# Energies are summed in float32: with errors of at most 2⁻²⁰ they still stay below 2³¹.
_LIMIT = 2.0**31 * (1 - 2.0**-16)


@inner(error_model="numpy")
def pack_pairs(low, apart, roots, mean, words, energies, beyond):
    """Write round(roots · (H - mean)) of two rows of 16 numbers of H as a line of pairs.

    The second row begins ``apart`` numbers after the first; 0: there is no second row. Squares are
    added to ``energies`` (16,). ``beyond`` (2,) becomes 1 for a row with a number that does not
    fit; the line is not valid for that row.
    """
    use_widest_vectors()
    high, largest, zero = moved(low, apart), number_of(low, LARGEST), number_of(low, 0)
    u, v = roots[0], zero
    if apart != 0:
        v = roots[1]
    wide, wider = np.int32(0), np.int32(0)
    for k in range(LANES):
        a, b = u * (low[k] - mean[k]), v * (high[k] - mean[k])
        fits, also = abs(a) <= largest, abs(b) <= largest  # not so for NaN
        wide |= np.int32(not fits)
        wider |= np.int32(not also)
        a, b = np.rint(a if fits else zero), np.rint(b if also else zero)
        words[k] = (np.int32(a) & np.int32(0xFFFF)) | (np.int32(b) << np.int32(16))
        energies[k] += np.float32(a) * np.float32(a) + np.float32(b) * np.float32(b)
    if wide:
        beyond[0] = 1
    if wider and apart != 0:
        beyond[1] = 1


@cached(nogil=True)
def find_runs(energies, n_pairs, total, ends):
    """Write the ends of runs of pairs, 0 … n_pairs, into ``ends``; return how many there are.

    No run can overflow 32 bits. ``energies`` (panels, units, 16) are the sums of squares of each
    UNIT of pairs; ``total`` (panels, 16), float64, is scratch.
    """
    ends[0], count, begin, u = 0, 1, 0, 0
    while u * UNIT < n_pairs:
        first, last, largest = u * UNIT, min((u + 1) * UNIT, n_pairs), 0.0
        for p in range(energies.shape[0]):
            for k in range(LANES):
                before = total[p, k] if begin < first else 0.0
                total[p, k] = before + energies[p, u, k]
                if total[p, k] > largest:
                    largest = total[p, k]
        if first > begin and (largest >= _LIMIT or 2 * (last - begin) > LONGEST):
            ends[count], count, begin = first, count + 1, first
            continue  # this unit begins a new run
        if largest >= _LIMIT:  # two rows always fit: 2 · 32767² < 2³¹
            for i in range(first + 1, last + 1):
                ends[count], count = i, count + 1
            begin = last
        u += 1
    if begin < n_pairs:
        ends[count], count = n_pairs, count + 1
    return count
