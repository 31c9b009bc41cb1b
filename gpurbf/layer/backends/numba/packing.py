"""Operands in the order in which the micro-kernels read them: panels of rows, inputs in groups.

Panel p holds rows p·R … p·R + R − 1 as `[depth / group][R][group]`. The same layout serves samples
(R = the kernel's rows) and centers (R = 16); what is beyond the data is zero.
"""

import math
from functools import lru_cache

import numpy as np

from gpurbf.layer.backends.numba.matvec_kernels import PARTS
from gpurbf.layer.backends.numba.microkernels import BLOCK, LANES
from gpurbf.runtime.jit.caching import cached, inner
from gpurbf.runtime.jit.gil_spin import begin_kernel, end_kernel
from gpurbf.runtime.jit.llvm import keep_alive, transpose4, use_widest_vectors, without_refcount


def aligned(shape, dtype):
    """An uninitialised array on a cache line's start: vectors that straddle two cost double."""
    size = math.prod(shape) if isinstance(shape, tuple) else shape
    n_bytes = size * np.dtype(dtype).itemsize
    raw = np.empty(n_bytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + n_bytes].view(dtype).reshape(shape)


@inner()
def aligned_like(array, size):
    """Such an array inside a kernel: `size` numbers of the dtype of another one."""
    raw = np.empty(size + 64 // array.itemsize, array.dtype)
    start = -raw.ctypes.data % 64 // array.itemsize
    return raw[start : start + size]


@inner(fastmath={"reassoc", "contract"}, error_model="numpy")
def convert_row(row, shift, line):
    """Write row − shift into line; the sum and the sum of squares of what was written."""
    use_widest_vectors()
    for j in range(row.size):
        line[j] = line.dtype.type(row[j] - shift[j])
    # A loop that writes too would be compiled twice, for arrays that may overlap and others, and
    # which of them runs, in its own order of additions, would depend on where those are in memory.
    one = shift.dtype.type(1)
    total, squares = one * 0, one * 0
    for j in range(row.size):
        v = line[j]
        total += v
        squares += (one * v) * (one * v)
    return total, squares


@inner()
def scatter(line, panel, place, rows, size):
    """Spread a line over its panel, one of so many rows: groups of `size` words."""
    for k in range(size):
        # Slices, whose index LLVM knows to step: three times as fast as one that is computed.
        words, target = line[k::size], panel[place * size + k :: rows * size]
        for s in range(words.size):
            target[s] = words[s]


@inner()
def scatter_four(lines, count, panel, place, rows, word):
    """Spread four lines of `count` groups of a word each, four groups at a time."""
    size = word.itemsize
    source, target = lines.ctypes.data, panel.ctypes.data + place * size
    whole = count // 4 * 4
    for j in range(0, whole, 4):
        transpose4(word, source + j * size, lines.strides[0], target + j * rows * size, rows * size)
    for j in range(whole, count):
        for k in range(4):
            panel[j * rows + place + k] = lines[k].view(word.dtype)[j]


@inner()
def pack(X, begin, end, shift, rows, group, word, lines, panels, chosen=None):
    """Pack X[begin:end] less shift into `panels`; sums and sums of squares of what was packed.

    `lines` is scratch for four padded rows; their length and dtype are those of the panels. Groups
    move in units of the dtype of `word` (see `word_of`). If rows are `chosen`, it is
    X[chosen[begin:end]].
    """
    width, n_panels = lines.shape[1], -(-(end - begin) // rows)
    target = panels.view(word.dtype)
    size = group * lines.itemsize // word.itemsize
    n_words = width * lines.itemsize // word.itemsize
    panel_size = rows * n_words
    totals = np.empty(n_panels * rows, shift.dtype)
    squares = np.empty(n_panels * rows, shift.dtype)
    lines[:, X.shape[1] :] = 0
    for r in range(n_panels * rows):
        place = r % rows
        line = lines[place % 4]
        if begin + r < end:
            row = begin + r
            if chosen is not None and len(chosen):
                row = chosen[row]
            totals[r], squares[r] = convert_row(X[row], shift, line[: X.shape[1]])
        else:
            line[:] = 0
        panel = target[r // rows * panel_size :][:panel_size]
        if size > 1 or place // 4 * 4 + 4 > rows:
            scatter(line.view(word.dtype), panel, place, rows, size)
        elif place % 4 == 3:
            scatter_four(lines, n_words, panel, place - 3, rows, word)
    return totals[: end - begin], squares[: end - begin]


def word_of(group, dtype):
    """The largest unit in which groups can be moved, as the dtype of an empty array."""
    size = group * np.dtype(dtype).itemsize
    return np.empty(0, f"u{next(n for n in (8, 4, 2, 1) if size % n == 0)}")


@cached(nogil=True)
def shift_rows(begin, end, X, shift, Z):
    """Z[begin:end] = X[begin:end] less shift."""
    X, Z, shift = without_refcount(X), without_refcount(Z), without_refcount(shift)
    for i in range(begin, end):
        convert_row(X[i], shift, Z[i])


@cached(nogil=True)
def pack_centers(X, m, chosen, shift, group, word, column, panels, terms):
    """Pack m centers X less shift, or X[chosen], in panels of 16; their terms, zero beyond.

    `column` are the coefficients of a term, see `backends.terms.Coefficients`.
    """
    begin_kernel()
    quadratic, linear, constant = column
    width = panels.size // terms.size
    lines = aligned_like(panels, 4 * width).reshape(4, width)
    totals, squares = pack(
        without_refcount(X), 0, m, without_refcount(shift), LANES, group, word,
        without_refcount(lines), without_refcount(panels), without_refcount(chosen),
    )  # fmt: skip
    keep_alive(lines)
    for j in range(m):
        terms[j] = quadratic * squares[j] + linear * totals[j] + constant
    terms[m:] = 0
    panels[-(-m // LANES) * LANES * width :] = 0
    end_kernel()


def strips_of(kernel, panels, sparse):
    """Which steps of a micro-kernel each strip of packed centers takes.

    All of them; if the centers are sparse, those in which not all of a strip is zero, which are
    moved to its front.

    Returns
    -------
    strips : intp array of shape (n_strips, 3)
        First of its steps in `places`, how many there are, and bytes of `panels` before it.
    places : int32 array
        Bytes between the beginning of a panel of rows and a step.
    """
    n_steps, words = kernel.width // kernel.group, LANES * kernel.group * panels.itemsize // 8
    x_step = kernel.rows * kernel.group * kernel.blank.itemsize
    n_strips = panels.nbytes // (8 * words * n_steps * kernel.strip)
    strips, places = _all_steps(n_strips, n_steps, x_step, 8 * words * n_steps * kernel.strip)
    if sparse:
        strips, places = strips.copy(), np.empty(n_strips * n_steps, np.int32)
        strips[:, 0] = np.arange(n_strips) * n_steps
        leave_out(panels.view(np.uint64), kernel.strip, words, x_step, strips, places)
    return strips, places


@lru_cache(maxsize=64)
def _all_steps(n_strips, n_steps, x_step, strip_bytes):
    """Steps of dense centers, which are all steps; shared by all who want so many."""
    strips = np.zeros((n_strips, 3), np.intp)
    strips[:, 1] = n_steps
    strips[:, 2] = np.arange(n_strips) * strip_bytes
    return strips, np.arange(n_steps, dtype=np.int32) * np.int32(x_step)


@cached(nogil=True)
def leave_out(panels, n_panels, size, x_step, strips, places):
    """Leave out steps in which a strip of centers, so many panels of words, is zero."""
    begin_kernel()
    n_steps = len(places) // len(strips)
    for s in range(len(strips)):
        own, taken = panels[s * n_panels * n_steps * size :], places[s * n_steps :]
        count = 0
        for k in range(n_steps):
            found = np.uint64(0)
            for p in range(n_panels):
                for w in range(size):
                    found |= own[(p * n_steps + k) * size + w]
            if found or (count == 0 and k == n_steps - 1):  # a kernel takes at least one step
                taken[count] = k
                count += 1
        target = 0
        for p in range(n_panels):
            for i in range(count):
                source = (p * n_steps + taken[i]) * size
                for w in range(size):  # never beyond where it comes from
                    own[target] = own[source + w]
                    target += 1
        for i in range(count):
            taken[i] *= x_step
        strips[s, 1] = count
    end_kernel()


def fill_panels(panels, A):
    """Copy A (rows, columns) into panels (p, rows, 16), zeros beyond its columns."""
    for p, panel in enumerate(panels):
        columns = A[:, p * LANES : (p + 1) * LANES]
        panel[:, : columns.shape[1]] = columns
        panel[:, columns.shape[1] :] = 0


def pack_many(W, dtype):
    """W (m, k) as panels [m][16 outputs]."""
    m, k = W.shape
    shape = -(-k // LANES), m, LANES
    panels = aligned(shape, dtype)
    fill_panels(panels, W)
    return panels


def pack_groups(groups, multiple):
    """(first, V, columns) of groups of centers as segments for partial sums.

    V (centers, outputs) are the weights of the centers from the first on, for those columns.

    Returns
    -------
    W : float64 array
        [outputs, up to a multiple][centers] of each segment; zeros beyond the group.
    segments : intp array of shape (n_segments, 6)
        See `scores.Segment`.
    columns : intp array
    """
    blocks, segments, columns = [np.empty(0)], [], [np.empty(0, np.intp)]
    place = column = 0
    for begin, V, own in groups:
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
    W = aligned(place, np.float64)
    np.concatenate(blocks, out=W)
    return W, np.array(segments, np.intp).reshape(-1, 6), np.concatenate(columns)
