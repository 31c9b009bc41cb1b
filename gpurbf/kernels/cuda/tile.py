"""The BNL tile: M samples × M centers a block of B × B threads, the inputs summed inside.

Both operands come from `pack` as rows of whole 64-byte slices. A block walks along them: while it
multiplies one pair of slices in shared memory the next one is on its way (two buffers). A thread
keeps R × R outputs, R = M / B, in registers; nothing is reduced between threads. At the end the
tile passes through shared memory in four parts, where each output meets the terms of its row and
column and becomes an activation, and where the consumer takes it:

    STORE    H, written in whole rows
    SCORES   H @ W, added to sums that one thread alone owns: no atomics, the same bits every time

A block takes tile after tile of its share of the centers, so H @ W never stores H, for any k.

M and B are arguments of a launch; compiled are R = 8 and R = 4 of each product:

    multiply    float32, float64: products; of |x|² + |c|² - 2 x·c one multiply-add an input, where
                direct differences take two instructions
    manhattan   float32, float64: sums of absolute differences
    mma         8-bit codes on the tensor cores, exact (compute capability 8.0; R = 8)
    dp4a        8-bit codes, four products an instruction, exact
    sad         8-bit codes, four absolute differences an instruction, exact
    wgmma       8-bit codes, four warps at a time from shared memory, exact (compute capability 9.0
                as sm_90a; M = 128, B = 16)
"""

import functools
from typing import NamedTuple

import numpy as np

from gpurbf.kernels.cuda import api, registers, simulated, wgmma
from gpurbf.kernels.cuda.api import cuda
from gpurbf.kernels.cuda.profiles import activate

STORE, SCORES = range(2)
SLICE, PITCH = registers.SLICE, registers.PITCH
PARTS = 4
# Elements from row to row of the staged outputs beyond M: rows start in different banks.
PAD = 4


class Shape(NamedTuple):
    """A tile of M × M outputs by B × B threads."""

    M: int
    B: int


class Consumer(NamedTuple):
    """What a tile is compiled for: who takes the activations, form, profile, and their size."""

    mode: int
    form: int
    profile: int
    itemsize: int


# Two blocks of the first have a multiprocessor's registers in float32. The second is for threads
# with more than 128 registers, the third for as many blocks as there can be where outputs are few.
SHAPES = {"large": Shape(128, 16), "medium": Shape(64, 8), "small": Shape(64, 16)}


def shared_bytes(product, shape, itemsize):
    """Dynamic shared memory of a block whose activations have that size."""
    operands = 2 * 2 * shape.M * PITCH
    if product == "wgmma":
        operands = wgmma.BUFFERS * 2 * shape.M * SLICE
    return max(operands, shape.M // PARTS * (shape.M + PAD) * itemsize)


def _scalar_place(lane):
    """A lane's row and word in A, row and word in C, and staged row and column.

    Eight neighbors read four rows of A and two of C: few of them, and each from banks of its own.
    """
    a = (lane >> 1) & 7
    c = ((lane >> 3) & 2) | (lane & 1)
    return a, 0, c, 0, a, c


def _mma_place(lane):
    """The same for mma.m16n8k32: the rows whose addresses a lane gives; its group and member."""
    a, c = lane % 16, lane // 16 * 8 + lane % 8
    return a, lane // 16 * 4, c, lane // 8 % 2 * 4, lane >> 2, 2 * (lane & 3)


def _placing(product, shape):
    """Functions of a thread: its first words of A and C, where it stages outputs, and its part.

    The last tells which part of its own outputs a thread has in part p of the tile.
    """
    M, R = shape.M, shape.M // shape.B
    warp_rows, warp_columns = 8 * R, 4 * R
    down, part_rows = M // warp_rows, warp_rows // PARTS
    place = cuda.jit(device=True)(_mma_place if product == "mma" else _scalar_place)

    @cuda.jit(device=True)
    def firsts(t, pitch):
        a_row, a_word, c_row, c_word, _, _ = place(t % 32)
        a = (t // 32 % down * warp_rows + a_row) * pitch + a_word
        return a, (M + t // 32 // down * warp_columns + c_row) * pitch + c_word

    @cuda.jit(device=True)
    def staged(t, width):
        _, _, _, _, row, column = place(t % 32)
        row += t // 32 % down * part_rows
        return row * width + t // 32 // down * warp_columns + column

    @cuda.jit(device=True)
    def own_part(p, t):
        return p

    return firsts, staged, own_part


def _loading(shape, source, asynchronous):
    """Functions that bring slices into shared memory, and wait for all of them or all but one."""
    M, n_threads = shape.M, shape.B**2
    load_rows = n_threads // 4  # four threads a row, 16 bytes each
    copy16, commit, wait_all, wait_but_one = source.copies(asynchronous)
    here = source.here

    @cuda.jit(device=True)
    def load(memory, s, A, band, C, number):
        """Bring slice s of M rows of each operand into its buffer; four threads a row."""
        t, width = here(np.int64(cuda.threadIdx.x)) & (n_threads - 1), here(np.int64(A.shape[1]))
        pitch, vector = PITCH // memory.itemsize, 16 // memory.itemsize
        at = (s % 2 * 2 * M + t // 4) * pitch + t % 4 * vector
        start = t // 4 * width + (4 * np.int64(s) + t % 4) * vector
        a, c = np.int64(band) * M * width + start, np.int64(number) * M * width + start
        for i in range(M // load_rows):
            copy16(memory, at + i * load_rows * pitch, A, a + i * load_rows * width)
            copy16(memory, at + (M + i * load_rows) * pitch, C, c + i * load_rows * width)
        commit()

    return load, wait_all, wait_but_one


def _sampling(shape):
    """A function that tells the sample in row r of the staged part p of a tile."""
    warp_rows = 8 * (shape.M // shape.B)
    part_rows = warp_rows // PARTS

    @cuda.jit(device=True)
    def sample(top, p, r):
        return top + r // part_rows * warp_rows + p * part_rows + r % part_rows

    return sample


def _activating(shape, source, consumer):
    """A function that turns a staged part of a tile into activations, and stores them."""
    mode, form, profile, _ = consumer
    M, n_threads, width = shape.M, shape.B**2, shape.M + PAD
    warp_rows = 8 * (M // shape.B)
    part_rows, step = warp_rows // PARTS, max(1, n_threads // M)  # rows that threads take at once
    here, peek, poke, columns = source.here, source.peek, source.poke, max(1, M // n_threads)
    address, further, put_at = source.address, source.further, source.put_at

    @cuda.jit(device=True)
    def activate_part(stage, H, p, band, number, row_terms, column_terms, epilogue, out):
        real, kind = H.dtype.type, row_terms.dtype.type
        t = here(np.int64(cuda.threadIdx.x)) & (n_threads - 1)
        # Terms of rows are there for whole tiles.
        N, m = (out.shape[0] if mode == STORE else 0), np.int64(column_terms.shape[0])
        top = here(np.int64(band)) * M
        alpha, scale, g, c0 = (
            kind(here(epilogue.alpha)), real(here(epilogue.factor)), real(here(epilogue.gamma)),
            real(here(epilogue.coef0)),
        )  # fmt: skip
        for c in range(columns):
            own = t % M + c * n_threads
            column = here(np.int64(number)) * M + own
            column_term = peek(column_terms, column if column < m else np.int64(0))
            for w in range(M // warp_rows):
                # Of the warps' rows one after the other those that are staged.
                row, at = top + t // M + w * warp_rows + p * part_rows, t // M + w * part_rows
                at, to = at * width + own, address(out, row * m + column)
                left = np.int32(min(N - row, part_rows) if column < m else 0)
                for i in range(0, part_rows, step):
                    total = kind(alpha * peek(stage, at))
                    total = kind(peek(row_terms, row + i) + column_term + total)
                    value = real(scale * real(total))
                    value = activate(value, form, profile, g, c0, epilogue.degree, real)
                    if mode == STORE:
                        if np.int32(i) < left:
                            put_at(out, to, value)
                    else:
                        poke(H, at, value if column < m else real(0))
                    at += step * width
                    to = further(out, to, step * m)

    return activate_part


def _scoring(shape, source, itemsize):
    """A function that adds a part of the activations times W to the sums."""
    M, B, R, width = shape.M, shape.B, shape.M // shape.B, shape.M + PAD
    n_threads, vector = B * B, 16 // itemsize
    here, peek, poke, inner = source.here, source.peek, source.poke, source.inner
    sample = _sampling(shape)

    @cuda.jit(device=True)
    def add(scores, value, number, group, row, o):
        """Add to a sum that this thread alone owns; its share begins with tile `group`."""
        if row < scores.shape[1]:
            at = (group * scores.shape[1] + row) * scores.shape[2] + o
            total = np.float64(value)
            if number != group:
                total += peek(scores, at)
            poke(scores, at, total)

    @cuda.jit(device=True)
    def score_part(H, p, band, number, group, W, scores):
        real = W.dtype.type
        t = here(np.int64(cuda.threadIdx.x)) & (n_threads - 1)
        r = t // B
        o = t % B
        while o < W.shape[1]:
            first, second = real(0), real(0)
            h, w = r * width, (np.int64(number) * M * W.shape[1] + o * vector)
            for _ in range(M // vector):
                first = inner(first, H, h, W, w)
                if R == 8:
                    second = inner(second, H, h + B * width, W, w)
                h, w = here(h + vector), here(w + W.shape[1] * vector)
            top = here(np.int64(band)) * M
            add(scores, first, number, group, sample(top, p, r), o)
            if R == 8:
                add(scores, second, number, group, sample(top, p, r + B), o)
            o += B

    return score_part


@functools.cache
def kernel(product, shape, asynchronous, consumer, max_registers=None):
    """The tile of a product in a shape, for a consumer; compiled when it is first launched."""
    # The simulator knows no registers.
    options = {} if api.SIMULATED else {"max_registers": max_registers}
    source = simulated if api.SIMULATED else registers
    M, R, n_threads = shape.M, shape.M // shape.B, shape.B**2
    together = product == "wgmma"  # warps that have their operands in common
    if together:
        load, wait_all = wgmma.loading(shape, source)
        buffers = wgmma.BUFFERS
    else:
        load, wait_all, wait_but_one = _loading(shape, source, asynchronous)
        buffers = 2
    firsts, staged, own_part = wgmma.placing(shape) if together else _placing(product, shape)
    activate_part, score_part = (
        _activating(shape, source, consumer),
        _scoring(shape, source, consumer.itemsize),
    )
    scoring = consumer.mode == SCORES
    zeros, step, finish, put = source.functions(product, R)
    aligned, here = source.aligned, source.here
    steps = {"mma": 2, "wgmma": 1}.get(product, 4)  # of a slice
    row_bytes, fellows = (SLICE, 128) if together else (PITCH, 32)  # threads with one product
    width = M + PAD

    @cuda.jit(**options)
    def tile(A, C, row_terms, column_terms, epilogue, out, W, scores):
        """A grid of (shares of the centers, rows of tiles) blocks; a share is every so many tiles.

        A (N', ...) and C (m', ...), padded to whole tiles; terms (N',) and (m,); out (N, m);
        W (m' / v, k, v), v outputs in 16 bytes and zeros beyond m;
        scores (shares, N, k) of float64.
        """
        memory = aligned(cuda.shared.array(0, A.dtype))
        stage = aligned(cuda.shared.array(0, row_terms.dtype))
        H = aligned(cuda.shared.array(0, W.dtype))
        pitch, slice_length = row_bytes // memory.itemsize, SLICE // memory.itemsize
        n_slices = np.int32(A.shape[1] // slice_length)
        group, band = cuda.blockIdx.x, cuda.blockIdx.y
        number = np.int64(group)
        while number * M < column_terms.shape[0]:  # a range() would count its steps, and keep both
            # Numbers pass `here` where they are used, or they would take registers all along.
            t = here(np.int64(cuda.threadIdx.x)) & (n_threads - 1)
            a_first, c_first = firsts(t, pitch)
            load(memory, 0, A, band, C, number)
            acc = zeros(memory)
            s = np.int32(0)
            while s < n_slices:
                if together:
                    wait_all()
                    cuda.syncthreads()
                    if s + 1 < n_slices:
                        load(memory, s + 1, A, band, C, number)
                elif s + 1 < n_slices:
                    load(memory, s + 1, A, band, C, number)
                    wait_but_one()
                    cuda.syncthreads()
                else:
                    wait_all()
                    cuda.syncthreads()
                for v in range(steps):
                    q = s % buffers * 2 * M * pitch + v * (slice_length // steps)
                    acc = step(acc, memory, a_first + q, c_first + q, t % fellows)
                if not together:
                    cuda.syncthreads()  # before this buffer is filled again
                s = np.int32(s + 1)
            acc = finish(acc)
            if together:
                cuda.syncthreads()  # before the outputs of some are where others still read

            for p in range(PARTS):
                t = here(np.int64(cuda.threadIdx.x)) & (n_threads - 1)
                put(acc, own_part(p, t), stage, staged(t, width), width)
                cuda.syncthreads()
                activate_part(stage, H, p, band, number, row_terms, column_terms, epilogue, out)
                cuda.syncthreads()
                if scoring:
                    # Where registers are left, nothing that this part needs is computed above.
                    part = here(np.int64(p)) if together else np.int64(p)
                    score_part(H, part, band, number, group, W, scores)
                    cuda.syncthreads()
            number += cuda.gridDim.x

    return tile
