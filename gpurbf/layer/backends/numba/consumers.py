"""Consumers of the tiles: H stored, H @ W summed, H packed for HᵀH as it is or in 16 bits.

A consumer is a C function `(consumer, H, n, count, top, first, sums)`: the first n rows and `count`
columns of a tile H (CHUNK × BLOCK) are rows from `top` and columns from `first` of all activations.
It is called by its address, so a driver is compiled once for all of them and a fit compiles those
that it calls. `sums` is the rows' memory from one tile to the next, float64, 0 at the beginning.
"""

import functools
from typing import NamedTuple

import numpy as np
from numba import carray, from_dtype, types
from numba.extending import intrinsic

from gpurbf.layer.backends.numba.gram16_kernels import pack_pairs
from gpurbf.layer.backends.numba.matvec_kernels import (
    PARTS,
    Segment,
    add_partial,
    add_scores,
    collect,
)
from gpurbf.layer.backends.numba.microkernels import BLOCK, LANES
from gpurbf.runtime.jit.caching import cached_cfunc, inner
from gpurbf.runtime.jit.llvm import call_by_address, use_widest_vectors, without_refcount
from gpurbf.runtime.once import once

CHUNK = 12  # rows; those of every kernel for H @ W divide it


class Consumer(NamedTuple):
    """A consumer of tiles; arrays that it has no use for are empty, so all have one type."""

    out: np.ndarray  # store: H (N, m)
    places: np.ndarray  # store: the rows of `out` that are written, if not in order
    weights: np.ndarray  # gram, pairs: roots of the samples' weights (N,), times a scale
    mean: np.ndarray  # what H loses (m,), for pairs as long as whole panels
    panels: np.ndarray  # gram: the result (m / 16, N, 16)
    wide: np.ndarray  # wide: the same in float64
    pairs: np.ndarray  # pairs: the result (m / 16, N / 2, 16), and which rows it cannot hold
    beyond: np.ndarray
    scores: np.ndarray  # partial, scores: the sums H @ W (N, k), float64
    W: np.ndarray  # output weights, packed: the bytes of the numbers that the micro-kernel takes
    segments: np.ndarray  # partial: each a `scores.Segment`, in order
    columns: np.ndarray  # partial: the outputs of the segments, one after the other
    address: int
    sums: int = 0  # numbers of a row in `sums`
    kernel: int = 0  # the address of the micro-kernel for W, and its rows and outputs
    rows: int = 1
    outputs: int = 1


@functools.cache
def type_of(real):
    """The type of a consumer of activations of that type, as the plain tuple of its fields."""
    once, twice, thrice = (types.Array(real, n, "C") for n in (1, 2, 3))
    return types.Tuple(
        (
            twice, types.Array(types.intp, 1, "C"), once, once, thrice,
            types.Array(types.float64, 3, "C"), types.Array(types.int32, 3, "C"),
            types.Array(types.uint8, 1, "C"), types.Array(types.float64, 2, "C"),
            types.Array(types.uint8, 3, "C"), types.Array(types.intp, 2, "C"),
            types.Array(types.intp, 1, "C"), *(types.intp,) * 5,
        )
    )  # fmt: skip


@inner()
def copy_tile(H, n_rows, n_columns, out, top, left, places=None):
    """Copy activations to out[top:, left:], or to rows places[top:] of it."""
    use_widest_vectors()
    for r in range(n_rows):
        row = top + r
        if places is not None and len(places):
            row = places[row]
        h, target = H[r], out[row, left : left + n_columns]
        for j in range(n_columns):
            target[j] = h[j]


@inner()
def pack_gram(H, weights, mean, panels, top, first):
    """Write weighted rows of H - mean into panels (panel, row, 16); zeros beyond the data."""
    use_widest_vectors()
    n, count = H.shape
    one, p = panels.dtype.type(1), first // LANES
    weights, mean = weights[top : top + n], mean[first : first + count]
    panels = panels[p : p - (-count // LANES), top : top + n]
    for r in range(n):
        w = one * weights[r]
        for p in range(panels.shape[0]):
            for k in range(LANES):
                j = p * LANES + k
                panels[p, r, k] = w * (one * H[r, j] - mean[j]) if j < count else w * 0


def store(consumer, H, n, count, top, first, sums):
    """H into `out`."""
    c = Consumer(*consumer[0])
    out = without_refcount(c.out)
    copy_tile(carray(H, (CHUNK, BLOCK)), n, count, out, top, first, without_refcount(c.places))


def scores(consumer, H, n, count, top, first, sums):
    """scores += H @ W, for many outputs."""
    c = Consumer(*consumer[0])
    H = carray(H, (CHUNK, BLOCK))
    add_scores(
        H, count, c.W, first, c.kernel, c.rows,
        carray(sums, (CHUNK, 1, LANES)).view(H.dtype), c.scores[top : top + n],
    )  # fmt: skip


def partial(consumer, H, n, count, top, first, sums):
    """Sum H @ W for few outputs, by sums that wait for the last center that has these."""
    c = Consumer(*consumer[0])
    H, segments, columns = (
        carray(H, (CHUNK, BLOCK)),
        without_refcount(c.segments),
        without_refcount(c.columns),
    )
    waiting = carray(sums, (CHUNK, c.sums // PARTS, PARTS))
    # Every tile before this one has a segment or more.
    for s in range(first // BLOCK, len(segments)):
        row = segments[s]
        if row[0] < first:
            continue
        if row[0] >= first + BLOCK:
            break
        segment = Segment(row[0], row[1], row[2], row[3], row[4], row[5])
        begin = segment.first - first
        add_partial(H, begin, n, c.W, segment, c.kernel, c.rows, c.outputs, waiting)
        if segment.last:
            own = columns[segment.column : segment.column + segment.n_outputs]
            collect(waiting, own, c.scores[top : top + n])


def gram(consumer, H, n, count, top, first, sums):
    """Weighted H - mean into `panels`."""
    c = Consumer(*consumer[0])
    pack_gram(carray(H, (CHUNK, BLOCK))[:n, :count], c.weights, c.mean, c.panels, top, first)


def wide(consumer, H, n, count, top, first, sums):
    """Weighted H - mean into `wide`."""
    c = Consumer(*consumer[0])
    pack_gram(carray(H, (CHUNK, BLOCK))[:n, :count], c.weights, c.mean, c.wide, top, first)


def pairs(consumer, H, n, count, top, first, sums):
    """Pack H in 16 bits into `pairs`; `top` is even: so are CHUNK, blocks and panels of rows."""
    c = Consumer(*consumer[0])
    p, lanes = first // LANES, -(-count // LANES)
    pack_pairs(
        carray(H, (CHUNK, BLOCK))[:n], c.weights[top : top + n],
        c.mean[first : first + lanes * LANES],
        c.pairs[p : p + lanes, top // 2 : (top + n + 1) // 2], c.beyond[top : top + n],
    )  # fmt: skip


def _signature(real):
    own, sums = types.CPointer(type_of(real)), types.CPointer(types.float64)
    return types.void(own, types.CPointer(real), *(types.intp,) * 4, sums)


@intrinsic
def call_consumer(typing_context, address, consumer, H, n, count, top, first, sums):
    """Call a consumer by its address; operands of other types are an error."""
    own = _signature(H.dtype)
    if (consumer, sums) == (own.args[0], own.args[-1]):
        return types.void(types.intp, *own.args), call_by_address


CONSUMERS = {consume.__name__: consume for consume in (store, scores, partial, gram, wide, pairs)}


@once
def _compiled(name, dtype):
    signature = _signature(from_dtype(dtype))
    return cached_cfunc(signature, error_model="numpy")(CONSUMERS[name])


def consumer_address(name, dtype):
    """Address of a consumer of activations of that dtype."""
    return _compiled(name, np.dtype(dtype)).address
