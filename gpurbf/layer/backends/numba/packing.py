"""Operands in the order in which the micro-kernels read them: panels of rows, inputs in groups.

Panel p holds rows p·R … p·R + R − 1 as `[depth / group][R][group]`. The same layout serves samples
(R = the kernel's rows) and centers (R = 16); padding is zero.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import types
from numba.extending import intrinsic

from gpurbf.layer.backends.numba.driver import LayerWords
from gpurbf.layer.backends.numba.matvec_kernels import PARTS
from gpurbf.layer.backends.numba.microkernels import BLOCK, LANES
from gpurbf.runtime.jit.caching import cached, compiled, inner
from gpurbf.runtime.jit.llvm import (
    address,
    call_at,
    clear_bytes,
    copy_bytes,
    moved,
    number_of,
    pointer,
    transpose4,
    use_widest_vectors,
    words,
)


def aligned(shape, dtype):
    """An uninitialised array at a cache line's start: vectors that straddle two cost double."""
    n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    raw = np.empty(n_bytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + n_bytes].view(dtype).reshape(shape)


@inner()
def aligned_like(array, size):
    """Like `aligned`, inside a kernel: `size` numbers of the dtype of another array."""
    raw = np.empty(size + 64 // array.itemsize, array.dtype)
    start = -raw.ctypes.data % 64 // array.itemsize
    return raw[start : start + size]


@inner(fastmath={"reassoc", "contract"}, error_model="numpy")
def convert_row(row, shift, line, n):
    """Write a row of n numbers less shift into line; return the sum and the sum of squares of line.

    For codes, both sums are of the codes before the shift: a line stores unsigned bytes as signed.
    """
    use_widest_vectors()
    for j in range(n):
        line[j] = number_of(line, row[j] - shift[j])
    # A loop that also writes would be compiled twice, for arrays that may overlap and for others,
    # with different orders of additions. Which one runs would depend on the arrays' addresses.
    terms = summed(row, line)
    total, squares = number_of(shift, 0), number_of(shift, 0)
    for j in range(n):
        v = number_of(shift, terms[j])
        total = number_of(shift, total + v)
        squares = number_of(shift, squares + v * v)
    return total, squares


@intrinsic
def summed(typing_context, row, line):
    """The row if the line holds integers (codes), else the line."""
    place = 0 if isinstance(line.dtype, types.Integer) else 1

    def generate(context, builder, signature, args):
        return args[place]

    return (row, line)[place](row, line), generate


def pack(X, chosen, shift, sizes, count, lines, panels, terms):
    """Pack ``count`` rows of X less shift into ``panels``, and write their terms of distances.

    X has contiguous rows of integers, float64 or float32. ``chosen`` is the address of the numbers
    of the rows to pack; 0: the first rows. `sizes` is the address of those of `Packing`. After the
    numbers of ``shift`` come the coefficients of a term, see `distance.Coefficients`. ``lines`` is
    scratch for four padded rows of the panels' dtype; their groups are moved as words.
    """
    n, rows, width, size = words(sizes, 4)
    numbers = pointer(chosen, np.int64)
    quadratic, linear, constant = shift[n], shift[n + 1], shift[n + 2]
    line_bytes = address(moved(lines, width)) - address(lines)
    word = address(moved(panels, 1)) - address(panels)
    n_words = line_bytes // word
    clear_bytes(address(lines), 4 * line_bytes)
    for r in range(-(-count // rows) * rows):
        place = r % rows
        line = moved(lines, place % 4 * width)
        if r < count:
            i = r
            if chosen != 0:
                i = numbers[r]
            total, squares = convert_row(moved(X, i * n), shift, line, n)
            terms[r] = number_of(terms, quadratic * squares + linear * total + constant)
        else:
            clear_bytes(address(line), line_bytes)
        panel = moved(panels, r // rows * rows * n_words)
        if size > 1:  # groups of several words
            for g in range(n_words // size):
                to = address(moved(panel, (g * rows + place) * size))
                copy_bytes(to, address(line) + g * size * word, size * word)
        elif place // 4 * 4 + 4 > rows:
            of = pointer(address(line), panels)
            for g in range(n_words):
                panel[g * rows + place] = of[g]
        elif place % 4 == 3:
            scatter_four(address(lines), line_bytes, n_words, moved(panel, place - 3), rows, word)


@inner()
def scatter_four(lines, line_bytes, count, panel, rows, word):
    """Spread four lines of ``count`` words over a panel of ``rows`` rows, four words at a time."""
    whole, to = count // 4 * 4, address(panel)
    for j in range(0, whole, 4):
        transpose4(panel, lines + j * word, line_bytes, to + j * rows * word, rows * word)
    for j in range(whole, count):
        for k in range(4):
            panel[j * rows + k] = pointer(lines + k * line_bytes, panel)[j]


class Packing(NamedTuple):
    """How rows become panels and terms: the arguments of `pack` that all rows share."""

    shift: np.ndarray  # and the coefficients of a term, as `pack` takes them
    sizes: np.ndarray  # inputs, rows of a panel, inputs padded, words of a group
    line: np.dtype
    word: np.dtype
    terms: np.dtype

    def address(self, X):
        """Address of the function that packs rows X."""
        dtypes = X, None, self.shift.dtype, None, None, self.line, self.word, self.terms
        return compiled(pack, dtypes).address

    def unshifted(self):
        """The packing of rows that are shifted already."""
        n = int(self.sizes[0])
        return self._replace(shift=np.append(np.zeros(n, self.shift.dtype), self.shift[n:]))


def packing_of(shift, coefficients, rows, width, group, dtype, terms):
    """The `Packing` in panels of ``rows`` rows of a dtype, in groups; sums are of `shift`'s dtype.

    For integers the shift (n,) is one number, so sums of shifted codes follow from sums of codes.
    """
    dtype, n = np.dtype(dtype), len(shift)
    line, (quadratic, linear, constant) = dtype, coefficients
    if dtype.kind != "f":
        s = int(shift[0]) if n else 0
        linear, constant = linear - 2 * s * quadratic, constant + n * s * (s * quadratic - linear)
        line = np.dtype(f"i{dtype.itemsize}")
    size = group * dtype.itemsize
    # A group is one word if there is such a type; several words are copied as bytes, which needs no
    # kernel of its own.
    word = np.dtype(f"u{next(n for n in (size, 4, 2, 1) if n in (1, 2, 4, 8) and size % n == 0)}")
    sizes = np.array([n, rows, width, size // word.itemsize], np.intp)
    shift = np.concatenate([shift, np.array([quadratic, linear, constant]).astype(shift.dtype)])
    return Packing(shift, sizes, line, word, np.dtype(terms))


def strips_of(kind, width, n_strips, sparse):
    """Which steps of a micro-kernel each strip of centers, of ``width`` inputs, takes: all of them.

    If the centers are sparse, each has its own places, for `leave_out`.

    Returns
    -------
    strips : intp array of shape (n_strips, 3)
        For each strip its first step in `places`, how many steps, and bytes of panels before it.
    places : int32 array
        Byte offsets of steps in a panel of rows.
    """
    of = kind.operation
    n_steps = width // of.group
    strips, places = np.zeros((n_strips, 3), np.intp), np.arange(n_steps, dtype=np.int32)
    places *= kind.rows * of.group * of.x.itemsize
    if sparse:
        strips[:, 0] = np.arange(n_strips) * n_steps
        places = np.tile(places, n_strips)
    strips[:, 1] = n_steps
    strips[:, 2] = np.arange(n_strips) * (kind.panels * LANES * width * of.c.itemsize)
    return strips, places


def leave_out(layer_words, first, n_strips):
    """Leave out the steps in which a strip of centers, from the ``first`` strip on, is zero.

    The others are moved to the strip's front.
    """
    layer = words(layer_words, LayerWords)
    n_panels, n_steps, size = layer.columns // LANES, layer.steps, layer.step_bytes // 8
    x_step, strips = layer.panel_bytes // n_steps, pointer(layer.strips, np.int64)
    for s in range(first, first + n_strips):
        taken = pointer(layer.places + 4 * strips[3 * s], np.int32)
        line = pointer(layer.panels + strips[3 * s + 2], np.uint64)
        count = 0
        for k in range(n_steps):
            found = np.uint64(0)
            for p in range(n_panels):
                for w in range(size):
                    found |= line[(p * n_steps + k) * size + w]
            if found or (count == 0 and k == n_steps - 1):  # a kernel takes at least one step
                taken[count] = k
                count += 1
        target = 0
        for p in range(n_panels):
            for i in range(count):
                source = (p * n_steps + taken[i]) * size
                for w in range(size):  # the target never passes the source
                    line[target] = line[source + w]
                    target += 1
        for i in range(count):
            taken[i] *= x_step
        strips[3 * s + 1] = count


def leave_out_address():
    """Address of `leave_out`."""
    return compiled(leave_out, (None,) * 3).address


class Columns(NamedTuple):
    """Arguments that, beside `driver.LayerWords`, pack a layer's centers; as 64-bit integers."""

    pack: int  # see `Packing.address`; then its arguments
    X: int
    shift: int
    sizes: int
    leave_out: int  # address of the function; 0: strips take all steps


@cached(nogil=True, error_model="numpy")
def pack_centers(columns, layer_words, chosen, begin, end, lines):
    """Pack centers begin … end; begin is the first of a strip, end is the end of one or of all.

    ``chosen`` is the address of the numbers of all centers in X; 0: all of X in order, and begin is
    0. ``lines`` is the address of scratch for four rows.
    """
    c, layer = words(columns, Columns), words(layer_words, LayerWords)
    count, rows, center_bytes = end - begin, layer.columns, layer.step_bytes * layer.steps // LANES
    n_strips, filled = -(-count // rows), -(-count // LANES) * LANES
    panels, terms = layer.panels + begin * center_bytes, layer.terms + begin * layer.itemsize
    if chosen != 0:
        chosen += 8 * begin
    call_at(c.pack, c.X, chosen, c.shift, c.sizes, count, lines, panels, terms)
    clear_bytes(panels + filled * center_bytes, (n_strips * rows - filled) * center_bytes)
    clear_bytes(terms + count * layer.itemsize, (n_strips * rows - count) * layer.itemsize)
    if c.leave_out != 0:
        call_at(c.leave_out, layer_words, begin // rows, n_strips)


def fill_panels(panels, A):
    """Copy A (rows, columns) into panels (p, rows, 16), zeros beyond its columns."""
    for p, panel in enumerate(panels):
        columns = A[:, p * LANES : (p + 1) * LANES]
        panel[:, : columns.shape[1]] = columns
        panel[:, columns.shape[1] :] = 0


def pack_groups(groups, multiple):
    """Pack groups (first, V, columns) of centers as segments for partial sums.

    V (centers, outputs) are the weights of the centers from ``first`` on, for these columns.

    Returns
    -------
    W : float64 array
        [outputs, up to a multiple][centers] of each segment; zeros beyond the group.
    segments : intp array of shape (n_segments, 6)
        First center, steps, place in W, place in `columns`, number of outputs, and whether it is
        the last of its group.
    columns : intp array
    """
    blocks, segments, columns = [np.empty(0)], [], [np.empty(0, np.intp)]
    place = column = 0
    for begin, V, own in groups:
        if not len(V):
            continue
        end = begin + len(V)
        low, high = begin // PARTS * PARTS, -(-end // PARTS) * PARTS
        padded = np.zeros((-(-len(own) // multiple) * multiple, high - low))
        padded[: len(own), begin - low : end - low] = V.T
        for first in (low, *range(low // BLOCK * BLOCK + BLOCK, high, BLOCK)):
            stop = min(first // BLOCK * BLOCK + BLOCK, high)
            steps, last = (stop - first) // PARTS, stop == high
            segments.append((first, steps, place, column, len(own), last))
            blocks.append(padded[:, first - low : stop - low].ravel())
            place += blocks[-1].size
        columns.append(own)
        column += len(own)
    W = aligned((place,), np.float64)
    np.concatenate(blocks, out=W)
    return W, np.array(segments, np.intp).reshape(-1, 6), np.concatenate(columns)
