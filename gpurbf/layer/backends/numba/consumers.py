"""Consumers of the tiles: H stored, H @ W summed, H packed for HᵀH as it is or in 16 bits.

A consumer is a C function `(consumer, H, n, count, top, first, sums)`: the first n rows and `count`
columns of a tile H (CHUNK × BLOCK) are rows from `top` and columns from `first` of all activations.
It is called by its address, so one compiled driver serves all consumers, and a fit compiles only
those that it calls. `consumer` is the address of its parameters as words; each consumer has a
NamedTuple of them. `sums` is memory of each row, 0 before its first tile, kept until its last.
`store` and `partial` move bytes of any dtype.
"""

from typing import Any, NamedTuple

import numpy as np

from gpurbf.layer.backends.numba.gram_kernels import UNIT, pack_pairs
from gpurbf.layer.backends.numba.matvec_kernels import PARTS, collect
from gpurbf.layer.backends.numba.microkernels import BLOCK, LANES
from gpurbf.runtime.jit.caching import compiled
from gpurbf.runtime.jit.llvm import (
    address,
    call_at,
    copy_bytes,
    moved,
    number_of,
    pointer,
    use_widest_vectors,
    words,
)

CHUNK = 12  # rows; those of every kernel for H @ W divide it


class Consumer(NamedTuple):
    """A consumer as the driver calls it."""

    address: int
    words: list[int]
    sums: int  # bytes of a row in `sums`
    together: int  # one thread must take so many rows together, counted from the first
    arrays: dict[str, Any]  # arrays whose addresses are in the words


class Store(NamedTuple):
    """H into `out` (N, m), or into its rows `places`."""

    out: int
    places: int  # 0: in order
    row_bytes: int
    itemsize: int  # of an activation


def store(consumer, H, n, count, top, first, sums):
    """See `Store`."""
    c = words(consumer, Store)
    places = pointer(c.places, np.int64)
    for r in range(n):
        row = top + r
        if c.places != 0:
            row = places[row]
        to = c.out + row * c.row_bytes + first * c.itemsize
        copy_bytes(to, H + r * BLOCK * c.itemsize, count * c.itemsize)


class Scores(NamedTuple):
    """scores (N, k) += H @ W, in float64, for many outputs."""

    scores: int
    k: int
    W: int  # packed for the micro-kernel
    panel_bytes: int  # of 16 outputs
    row_bytes: int
    kernel: int
    rows: int


def scores(consumer, H, n, count, top, first, sums):
    """See `Scores`; `sums` is scratch for some rows of products."""
    c = words(consumer, Scores)
    stride = address(moved(H, BLOCK)) - address(H)
    for left in range(0, c.k, LANES):
        w = c.W + left // LANES * c.panel_bytes + first * c.row_bytes
        outputs = min(LANES, c.k - left)
        for r in range(0, n, c.rows):
            line = pointer(sums, H)
            call_at(c.kernel, address(H) + r * stride, w, 0, count, sums, stride // BLOCK * LANES)
            for q in range(min(c.rows, n - r)):
                to = pointer(c.scores + 8 * ((top + r + q) * c.k + left), np.float64)
                for k in range(outputs):
                    to[k] += line[q * LANES + k]


class Partial(NamedTuple):
    """scores (N, k) += H @ W for few outputs; partial sums wait for a group's last center."""

    scores: int
    k: int
    W: int
    segments: int  # each of six numbers, see `packing.pack_groups`, in order
    n_segments: int
    columns: int  # the outputs of the segments, one after the other
    kernel: int
    rows: int
    outputs: int
    n_sums: int  # numbers of a row in `sums`
    itemsize: int  # of an activation


def partial(consumer, H, n, count, top, first, sums):
    """See `Partial`. H is 0 in columns beyond the last center, up to the next multiple of 8."""
    c = words(consumer, Partial)
    for s in range(first // BLOCK, c.n_segments):  # each tile before has at least one segment
        begin, steps, place, column, n_outputs, last = words(c.segments + 48 * s, 6)
        if begin < first:
            continue
        if begin >= first + BLOCK:
            break
        w, w_stride = c.W + 8 * place, steps * PARTS * 8
        for o in range(0, n_outputs, c.outputs):
            h, to = H + (begin - first) * c.itemsize, sums + o * PARTS * 8
            for _ in range(0, n, c.rows):
                call_at(c.kernel, h, w, w_stride, steps, to, 8 * c.n_sums)
                h += c.rows * BLOCK * c.itemsize
                to += c.rows * 8 * c.n_sums
            w += c.outputs * w_stride
        if last != 0:
            collect(
                pointer(sums, np.float64), n, c.n_sums, pointer(c.columns + 8 * column, np.int64),
                n_outputs, pointer(c.scores + 8 * top * c.k, np.float64), c.k,
            )  # fmt: skip


class Panels(NamedTuple):
    """Weighted H - mean as panels (m / 16, N, 16) of a dtype."""

    panels: int
    panel_bytes: int
    weights: int  # square roots of sample weights (N,); like the mean (m,) in the dtype of H
    mean: int


def gram(consumer, H, n, count, top, first, like):
    """See `Panels`; zeros beyond the data."""
    use_widest_vectors()
    c = words(consumer, Panels)
    weights, mean = moved(pointer(c.weights, H), top), moved(pointer(c.mean, H), first)
    for left in range(0, count, LANES):
        panel = pointer(c.panels + (first + left) // LANES * c.panel_bytes, like)
        own, columns = moved(mean, left), min(LANES, count - left)
        for r in range(n):
            h, line = moved(H, r * BLOCK + left), moved(panel, (top + r) * LANES)
            w = number_of(line, weights[r])
            for k in range(LANES):
                line[k] = w * (number_of(line, h[k]) - own[k]) if k < columns else w * 0


class Pairs(NamedTuple):
    """H in 16 bits as pairs (m / 16, N / 2, 16), and the sums of squares of UNIT pairs.

    The mean is padded to whole panels.
    """

    pairs: int
    panel_bytes: int
    energies: int  # float32 (m / 16, units, 16), which the squares are added to
    energy_bytes: int  # of a panel
    weights: int  # roots of the samples' weights, times a scale
    mean: int
    beyond: int  # which rows have numbers that do not fit


def pairs(consumer, H, n, count, top, first, sums):
    """See `Pairs`; `top` is even: so are CHUNK, blocks and panels of rows."""
    c = words(consumer, Pairs)
    weights, mean = moved(pointer(c.weights, H), top), moved(pointer(c.mean, H), first)
    beyond = pointer(c.beyond + top, np.uint8)
    for left in range(0, count, LANES):
        p = (first + left) // LANES
        lines = pointer(c.pairs + p * c.panel_bytes, np.int32)
        energies = pointer(c.energies + p * c.energy_bytes, np.float32)
        for r in range(0, n, 2):
            pair = (top + r) // 2
            pack_pairs(
                moved(H, r * BLOCK + left), BLOCK if r + 1 < n else 0, moved(weights, r),
                moved(mean, left), moved(lines, pair * LANES),
                moved(energies, pair // UNIT * LANES), moved(beyond, r),
            )  # fmt: skip


_WORDS = {"store": Store, "scores": Scores, "partial": Partial, "gram": Panels, "pairs": Pairs}
CONSUMERS = {consume.__name__: consume for consume in (store, scores, partial, gram, pairs)}


def consumer_address(name, dtype, panels=None):
    """Address of a consumer of activations of that dtype; ``panels`` is the dtype of `Panels`."""
    dtype = None if name in ("store", "partial") else np.dtype(dtype)
    return compiled(CONSUMERS[name], (None, dtype, *(None,) * 4, panels)).address


def consumer(name, dtype, *, sums=0, together=1, **given):
    """A consumer of activations of that dtype; ``given`` are its words, or arrays for addresses.

    ``sums`` are the bytes that a row keeps from one tile to the next. The address of an empty array
    is 0.
    """
    listed = [_word(given[field]) for field in _WORDS[name]._fields]
    panels = given["panels"].dtype if name == "gram" else None
    return Consumer(consumer_address(name, dtype, panels), listed, sums, together, given)


def _word(value):
    """A number, or the address of an array."""
    if isinstance(value, np.ndarray):
        return value.ctypes.data if value.size else 0
    return value
