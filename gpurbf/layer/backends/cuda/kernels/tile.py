"""The BNL tile: a block of B × B threads has M samples × M centers, and sums over all inputs.

Both operands come as rows of whole 64-byte slices. A block walks along them: while it
multiplies one pair of slices in shared memory, the next pair is being copied (two buffers). A
thread keeps R × R outputs, R = M / B, in registers; no product is summed between threads. There the
terms of its row and column are added to each output, which becomes an activation for the consumer:

    H        stored, eight rows of 32 bytes or more at a time
    H @ W    a thread sums its columns times their weights, these sums are added in shared
             memory, and one thread owns the total of a row: no atomics, the same bits every time

A block takes tile after tile of its share of the centers, so H @ W never stores H, for any k.

Each launch chooses M and B; R is 8 or 4 for each product:

    multiply    float32, float64: products; |x|² + |c|² - 2 x·c takes one multiply-add per input,
                direct differences would take two instructions
    manhattan   float32, float64: sums of absolute differences
    mma         8-bit codes on the tensor cores, exact (compute capability 8.0; R = 8)
    dp4a        8-bit codes, four products an instruction, exact
    sad         8-bit codes, four absolute differences an instruction, exact
"""

import functools
from typing import NamedTuple

import numpy as np

from gpurbf.layer.activation import DOT, SQUARED
from gpurbf.layer.backends.cuda.kernels import outputs, registers
from gpurbf.layer.backends.cuda.kernels.profiles import IDENTITY, activate
from gpurbf.runtime.jit.cuda_api import cuda, jit

SLICE, PITCH = registers.SLICE, registers.PITCH


class Shape(NamedTuple):
    """A tile of M × M outputs by B × B threads."""

    M: int
    B: int


# In float32, two blocks of "large" take all registers of a multiprocessor. "medium" is for threads
# with more than 128 registers, "small" makes as many blocks as possible of few outputs.
SHAPES = {"large": Shape(128, 16), "medium": Shape(64, 8), "small": Shape(64, 16)}


def shared_bytes(shape):
    """Dynamic shared memory of a block: two slices of both operands."""
    return 2 * 2 * shape.M * PITCH


def partials_width(shape):
    """Row stride (elements) of the threads' partial sums: the banks of a warp all differ."""
    return shape.B + 4


def _scalar_place(lane):
    """A lane's row and word in A and in C, and its first row and pair of columns of eight.

    Eight neighboring lanes read four rows of A and two of C: few rows, each from different banks.
    """
    a = (lane >> 1) & 7
    c = ((lane >> 3) & 2) | (lane & 1)
    return a, 0, 2 * c, 0, a, c


def _mma_place(lane):
    """Places for mma.m16n8k32: the rows whose addresses a lane gives; its group and member."""
    a, c = lane % 16, lane // 16 * 8 + lane % 8
    return a, lane // 16 * 4, c, lane // 8 % 2 * 4, lane >> 2, lane & 3


def _placing(product, shape):
    """Functions of a thread: its first words of A and C, and where its outputs are.

    These are its first row and column, and its number among the B that have outputs in a row.
    """
    M, R = shape.M, shape.M // shape.B
    warp_rows, warp_columns = 8 * R, 4 * R
    down = M // warp_rows
    place = jit(device=True)(_mma_place if product == "mma" else _scalar_place)

    @jit(device=True)
    def firsts(t, pitch):
        a_row, a_word, c_row, c_word, _, _ = place(t % 32)
        a = (t // 32 % down * warp_rows + a_row) * pitch + a_word
        return a, (M + t // 32 // down * warp_columns + c_row) * pitch + c_word

    @jit(device=True)
    def own(t):
        _, _, _, _, row, pair = place(t % 32)
        across = t // 32 // down
        return t // 32 % down * warp_rows + row, across * warp_columns + 2 * pair, across * 4 + pair

    return firsts, own


def _loading(shape, asynchronous):
    """Functions that bring slices into shared memory, and wait for all of them or all but one.

    Four threads bring a row of a slice, 16 bytes each.
    """
    M, n_threads = shape.M, shape.B**2
    rows = n_threads // 4
    copy16, commit, wait_all, wait_but_one = registers.copies(asynchronous)
    here, address = registers.here, registers.address

    @jit(device=True)
    def start(t, memory, A, band):
        """The address of the first 16 bytes that a thread copies of a tile's rows in A."""
        return address(A, (band * M + t // 4) * A.shape[1] + t % 4 * (16 // memory.itemsize))

    @jit(device=True)
    def load(memory, buffer, A, a, C, c):
        """Bring a slice of M rows of each operand, from these addresses on, into a buffer."""
        t, width = np.int32(here(np.int64(cuda.threadIdx.x))) & (n_threads - 1), A.shape[1]
        pitch, vector = PITCH // memory.itemsize, 16 // memory.itemsize
        at = np.int32(buffer * 2 * M * pitch + t // 4 * pitch + t % 4 * vector)
        for i in range(M // rows):
            further = i * rows * width * memory.itemsize
            copy16(memory, at + i * rows * pitch, A, a + further)
            copy16(memory, at + (M + i * rows) * pitch, C, c + further)
        commit()

    return start, load, wait_all, wait_but_one


def _activating(form, profile):
    """Functions for the epilogue's numbers in the working types, and for an output's activation."""
    here = registers.here
    # The factor of a distance can be merged into gamma.
    in_gamma = form in (SQUARED, DOT) and profile != IDENTITY

    @jit(device=True)
    def numbers_of(epilogue, row_terms, W):
        kind, real = row_terms.dtype.type, W.dtype.type
        factor, gamma = here(epilogue.factor), here(epilogue.gamma)
        if in_gamma:
            gamma *= factor
        return (
            kind(here(epilogue.alpha)), real(factor), real(gamma), real(here(epilogue.coef0)),
            np.int32(here(epilogue.degree)),
        )  # fmt: skip

    @jit(device=True)
    def output(total, row_term, column_term, numbers):
        alpha, factor, gamma, coef0, degree = numbers
        kind, real = type(alpha), type(factor)
        value = real(kind(row_term + column_term + kind(alpha * kind(total))))
        if not in_gamma:
            value = real(factor * value)
        return activate(value, form, profile, gamma, coef0, degree, real)

    return numbers_of, output


def _scoring(shape, itemsize, weighted, spread):
    """A function that adds the activations times W to sums, each of which only one thread owns.

    Threads write the partial sums of their columns for each row, `most` outputs at a time, and then
    add these up.
    """
    M, n_threads = shape.M, shape.B**2
    vector, width, n_owners = 16 // itemsize, partials_width(shape), shape.B
    most = shared_bytes(shape) // (M * width * itemsize)
    here, added = registers.here, outputs.added

    @jit(device=True)
    def sum_up(partials, first, last, band, number, group, scores):
        """Add up partial sums of outputs `first` to `last`; the block's first tile is `group`."""
        t = np.int32(here(np.int64(cuda.threadIdx.x))) & (n_threads - 1)
        while t < (last - first) * M:
            total = np.float64(0)
            for q in range(0, n_owners, vector):
                total = added(total, partials, t * width + q)
            row = here(np.int64(band)) * M + t % M
            if row < scores.shape[1]:
                # Unsigned indices need no check whether they count from the end.
                at = np.uint64(group), np.uint64(row), np.uint64(first + t // M)
                if number != group:
                    total += scores[at]
                scores[at] = total
            t = np.int32(t + n_threads)

    @jit(device=True)
    def score(values, partials, place, band, number, group, W, scores):
        row, column, owner = place
        k, first = np.int32(W.shape[0]), np.int32(0)
        at_weights = here(np.int64(number)) * M + column
        while first < k:
            last = min(np.int32(first + most), k)
            at, o = np.int32(row * width + owner), first
            while o < last:
                spread(weighted(values, W, at_weights), partials, at)
                at_weights += W.shape[1]
                at, o = np.int32(at + M * width), np.int32(o + 1)
            cuda.syncthreads()
            sum_up(partials, first, last, band, number, group, scores)
            cuda.syncthreads()
            first = last

    return score


@functools.cache
def kernel(product, shape, asynchronous, storing, form, profile, itemsize):
    """The tile of a product in a shape, which stores H or scores; compiled at its first launch.

    ``itemsize`` is that of the activations.
    """
    M, R, n_threads = shape.M, shape.M // shape.B, shape.B**2
    start, load, wait_all, wait_but_one = _loading(shape, asynchronous)
    firsts, own = _placing(product, shape)
    numbers_of, output = _activating(form, profile)
    zeros, step = registers.products(product, R)
    at_rows, at_columns, activated, within, stored, *of_scores = outputs.functions(
        R, partials_width(shape)
    )
    score = _scoring(shape, itemsize, *of_scores)
    aligned, here, address = registers.aligned, registers.here, registers.address
    steps = 2 if product == "mma" else 4  # of a slice

    @jit(max_registers=128 if shape.B == 16 and itemsize == 4 else None)
    def tile(A, C, row_terms, column_terms, epilogue, out, W, scores):
        """A grid of (shares of centers, rows of tiles) blocks; a share is every gridDim.x-th tile.

        A (N', ...) and C (m', ...), padded to whole tiles; terms (N',) and (m,); out (N, m);
        W (k, m') with zeros beyond m;
        scores (shares, N, k) of float64.
        """
        memory = aligned(cuda.shared.array(0, A.dtype))
        partials = aligned(cuda.shared.array(0, W.dtype))
        pitch, slice_length = PITCH // memory.itemsize, SLICE // memory.itemsize
        n_slices = np.int32(A.shape[1] // slice_length)
        group, band = cuda.blockIdx.x, cuda.blockIdx.y
        number = np.int64(group)
        while number * M < column_terms.shape[0]:  # a range() would keep a step count, too
            # Numbers pass `here` where they are used; otherwise they would always take registers.
            t = here(np.int64(cuda.threadIdx.x)) & (n_threads - 1)
            a_first, c_first = firsts(t, pitch)
            a, c = start(t, memory, A, band), start(t, memory, C, number)
            load(memory, 0, A, a, C, c)
            acc = zeros(memory)
            s, buffer = np.int32(0), np.int32(0)
            while s < n_slices:
                s, after = np.int32(s + 1), np.int32(1 - buffer)
                a, c = a + SLICE, c + SLICE
                if s < n_slices:
                    load(memory, after, A, a, C, c)
                    wait_but_one()
                else:
                    wait_all()
                cuda.syncthreads()
                for v in range(steps):
                    q = buffer * (2 * M * pitch) + v * (slice_length // steps)
                    acc = step(acc, memory, a_first + q, c_first + q, t % 32)
                cuda.syncthreads()  # before this buffer is filled again
                buffer = after

            place = own(here(np.int64(cuda.threadIdx.x)) & (n_threads - 1))
            m = np.int64(column_terms.shape[0])
            row, column = here(np.int64(band)) * M + place[0], here(number) * M + place[1]
            columns_left = np.int32(min(m - column, np.int64(M)))
            values = activated(
                acc,
                at_rows(row_terms, row),
                at_columns(column_terms, column, columns_left),
                output,
                numbers_of(epilogue, row_terms, W),
            )
            if storing:
                to, rows_left = address(out, row * m + column), out.shape[0] - row
                stored(out, values, to, m, np.int32(min(rows_left, np.int64(M))), columns_left)
            else:
                if number * M + M > m:
                    values = within(values, columns_left)
                score(values, partials, place, band, number, group, W, scores)
            number += cuda.gridDim.x

    return tile
