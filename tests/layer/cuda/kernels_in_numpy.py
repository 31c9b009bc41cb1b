"""The functions of `registers.py` and `outputs.py` in NumPy, for Numba's simulator.

They take the same arguments and return the same results. The scalar products read the same
elements of shared memory as the real ones. The tensor cores' instruction is followed to the letter:
the registers of all 32 lanes are gathered from the addresses that the real kernel reads, dealt into
A (16 × 32) and B (32 × 8) as the PTX manual states, and multiplied; a lane keeps its own outputs.
"""

import functools

import numpy as np

from gpurbf.layer.backends.cuda.kernels.outputs import column_of
from gpurbf.layer.backends.cuda.kernels.registers import PITCH

# First row and word of each matrix of `ldmatrix`: of A's 16 rows, and of 16 columns of B.
LOAD_A, LOAD_B = ((0, 0), (8, 0), (0, 4), (8, 4)), ((0, 0), (0, 4), (8, 0), (8, 4))


def address(array, at):
    return at * array.itemsize  # from its beginning


def added(total, array, at):
    return total + array[at : at + 16 // array.itemsize].sum(dtype=np.float64)


def exponential(rate, x):
    """exp(-rate x), 0 where that is below the smallest normal number."""
    value = np.exp(-(rate * x))
    return value.dtype.type(0) if value < np.finfo(value.dtype).tiny else value


def here(x):
    return x  # nothing is moved in the simulator


aligned = here  # and its memory needs no alignment
root = np.sqrt


def _copy16(to, at, source, start):
    count = 16 // to.itemsize
    row, column = np.unravel_index(int(start) // source.itemsize, source.shape)
    to[at : at + count] = source[row, column : column + count]


def copies(asynchronous):
    """Copies are done when they return."""
    return _copy16, *[lambda: None] * 3


def _codes(words):
    """The four unsigned bytes of each word, as integers."""
    return np.ascontiguousarray(words).view(np.uint8).astype(np.int32)


OPERATIONS = {
    "multiply": lambda a, c: a @ c.T,
    "manhattan": lambda a, c: np.abs(a[:, None] - c).sum(axis=2),
    "dp4a": lambda a, c: _codes(a) @ _codes(c).T,
    "sad": lambda a, c: np.abs(_codes(a)[:, None] - _codes(c)).sum(axis=2),
}


def _scalar(product, R):
    def step(acc, memory, a, c, lane):
        pitch, count = PITCH // memory.itemsize, np.arange(16 // memory.itemsize)
        i = np.arange(R)[:, None]
        rows, columns = 8 * i * pitch, column_of(i) * pitch
        total = acc + OPERATIONS[product](memory[a + rows + count], memory[c + columns + count])
        return total.astype(memory.dtype)

    return step


def places(pitch, load):
    """The words from which a lane's row is, of each of the 32."""
    row, word = np.repeat(load, 8, axis=0).T
    return (row + np.arange(32) % 8) * pitch + word


def _deal(words, first, pitch, load):
    """The registers of all lanes from `ldmatrix`: bytes (32 lanes, 4 registers, 4).

    PTX manual, "ldmatrix": lanes 8 i to 8 i + 7 give the rows of matrix i, of which lane l has word
    l % 4 of row l / 4.
    """
    rows = (first + places(pitch, load)).reshape(4, 8)
    lanes = np.arange(32)
    at = rows[:, lanes >> 2] + (lanes & 3)
    return _codes(words[at.T]).reshape(32, 4, 4)


def fragments(lane):
    """Rows and columns of the elements of A (16 × 32), of B (32 × 8) and of D (16 × 8) in a lane.

    PTX manual, "Matrix Fragments for mma.m16n8k32", 8-bit types.
    """
    group, member = lane >> 2, lane & 3
    i = np.arange(16)
    A = group + 8 * (i // 4 % 2), 4 * member + i % 4 + 16 * (i // 8)
    B = 4 * member + i[:8] % 4 + 16 * (i[:8] // 4), group + 0 * i[:8]
    return A, B, (group + 8 * (i[:4] // 2), 2 * member + i[:4] % 2)


def mma(a, b):
    """D (16, 8) of the instruction from the registers of the lanes, (32, 4, 4) and (32, 2, 4)."""
    A, B = np.zeros((16, 32), np.int64), np.zeros((32, 8), np.int64)
    in_A, in_B, _ = fragments(np.arange(32)[:, None])
    A[in_A], B[in_B] = a.reshape(32, 16), b.reshape(32, 8)
    return A @ B


@functools.lru_cache(8)
def _of_warp(memory, a, c):
    """All that a warp multiplies, (4, 4, 16, 8), from the bytes of shared memory.

    Its lanes come one after the other, each for the same.
    """
    words, pitch = np.frombuffer(memory, np.int32), PITCH // 4
    A = [_deal(words, a + 16 * i * pitch, pitch, LOAD_A) for i in range(4)]
    twice = [_deal(words, c + 16 * j * pitch, pitch, LOAD_B) for j in range(2)]
    B = [both[:, e : e + 2] for both in twice for e in (0, 2)]
    return np.array([[mma(rows, columns) for columns in B] for rows in A])


def _tensor_cores(acc, memory, a, c, lane):
    first_a, first_c = (places(PITCH // 4, load)[lane] for load in (LOAD_A, LOAD_B))
    own = _of_warp(memory.tobytes(), a - first_a, c - first_c)[:, :, *fragments(lane)[2]]
    # Of each product two of one row, two of another.
    return acc + own.reshape(4, 4, 2, 2).swapaxes(1, 2).reshape(8, 8).astype(acc.dtype)


def products(product, R):
    """zeros and step, as in `registers.py`; a thread's outputs are an array."""

    def zeros(memory):
        return np.zeros((R, R), memory.dtype)

    return zeros, _tensor_cores if product == "mma" else _scalar(product, R)


def functions(R, width):
    """The functions of `outputs.py`; values, terms and sums are arrays."""
    columns = column_of(np.arange(R))

    def at_rows(array, at):
        return array[at + 8 * np.arange(R)]

    def at_columns(array, at, left):
        return array[at + np.minimum(columns, left - 1)]

    def activated(acc, row_terms, column_terms, function, numbers):
        values = [
            [function(total, term, own, numbers) for total, own in zip(totals, column_terms)]
            for totals, term in zip(acc, row_terms)
        ]
        return np.array(values)

    def within(values, left):
        return np.where(columns < left, values, values.dtype.type(0))

    def stored(out, values, place, width, rows_left, columns_left):
        for i, row in enumerate(values):
            for column, value in zip(columns, row):
                if 8 * i < rows_left and column < columns_left:
                    out.flat[place // out.itemsize + 8 * i * width + column] = value

    def weighted(values, W, at):
        output, first = np.unravel_index(int(at), W.shape)
        return (values @ W[output, first + columns]).astype(values.dtype)

    def spread(sums, array, at):
        array[at + 8 * width * np.arange(R)] = sums

    return at_rows, at_columns, activated, within, stored, weighted, spread
