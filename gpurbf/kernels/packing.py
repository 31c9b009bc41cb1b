"""Operands in the order in which the micro-kernels read them: panels of rows, inputs in groups.

Panel p holds rows p·R … p·R + R − 1 as `[depth / group][R][group]`. The same layout serves samples
(R = the kernel's rows) and centers (R = 16); what is beyond the data is zero.
"""

import numpy as np
from numba import njit


def aligned(size, dtype, alignment=64):
    """An uninitialised array of `size` numbers at an address divisible by 64."""
    dtype = np.dtype(dtype)
    raw = np.empty(size * dtype.itemsize + alignment, np.uint8)
    start = -raw.ctypes.data % alignment
    return raw[start : start + size * dtype.itemsize].view(dtype)


@njit(nogil=True)
def aligned_bytes(size):
    """The same inside a kernel, as bytes."""
    raw = np.empty(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size]


@njit(nogil=True, fastmath={"reassoc", "contract"}, error_model="numpy")
def convert_row(row, shift, line):
    """Write row − shift into line; the sum and the sum of squares of what was written."""
    one = shift.dtype.type(1)
    total, squares = one * 0, one * 0
    for j in range(row.size):
        v = line.dtype.type(row[j] - shift[j])
        line[j] = v
        total += v
        squares += (one * v) * (one * v)
    return total, squares


@njit(nogil=True)
def scatter(words, panel, offset, stride, size):
    """Spread a packed line over its panel: `size` words at a time, `stride` words apart."""
    for s in range(words.size // size):
        for k in range(size):
            panel[offset + s * stride + k] = words[s * size + k]


@njit(nogil=True)
def pack(X, begin, end, shift, rows, group, line, panels):
    """Pack X[begin:end] into `panels`, both padded with zeros; sums and sums of squares by row."""
    width, n_panels = line.size, -(-(end - begin) // rows)
    unit = group * line.itemsize
    totals = np.zeros(n_panels * rows, shift.dtype)
    squares = np.zeros(n_panels * rows, shift.dtype)
    line[X.shape[1] :] = 0
    for r in range(n_panels * rows):
        if begin + r < end:
            totals[r], squares[r] = convert_row(X[begin + r], shift, line[: X.shape[1]])
        else:
            line[:] = 0
        panel = panels[r // rows * rows * width :][: rows * width]
        place = r % rows
        # Whole words where the group is one: a panel's stride is many times its group.
        if unit == 4:
            scatter(line.view(np.uint32), panel.view(np.uint32), place, rows, 1)
        elif unit % 8 == 0:
            size = unit // 8
            scatter(line.view(np.uint64), panel.view(np.uint64), place * size, rows * size, size)
        else:
            scatter(line, panel, place * group, rows * group, group)
    return totals, squares
