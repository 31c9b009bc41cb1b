"""The on-line delta rule over rows of activations, with one sweep of the weights per group of rows.

One step per row would read and write all weights for four operations on each, so memory would limit
the speed. Instead, the steps of a group of rows z_1 … z_4 are computed in order from the outputs of
its rows for the weights before the group and from the products z_p·z_q (step p moves the output for
z_q by step_p z_p·z_q). One sweep then updates the weights by these rows and computes the outputs
for the next group. The result is that of the plain loop, up to rounding.
"""

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from gpurbf.runtime.jit.caching import cached
from gpurbf.runtime.jit.llvm import prefetch

ROWS = 4  # in a group
LANES = 8
_TILE = 512  # columns whose rows of activations stay in the first-level cache for all outputs

_SIZE, _REAL = ir.IntType(64), ir.DoubleType()
_VECTOR = ir.VectorType(_REAL, LANES)
_ZEROS = ir.Constant(_VECTOR, [0.0] * LANES)
_CONTRACT = ("contract",)


def _load(builder, base, index, element):
    """Eight numbers of type `element` from address `base` on as float64, and their address."""
    bytes_ = 8 if element == _REAL else 4
    place = builder.add(base, builder.mul(index, _SIZE(bytes_)))
    pointer = builder.inttoptr(place, ir.VectorType(element, LANES).as_pointer())
    value = builder.load(pointer, align=bytes_)
    return (value if element == _REAL else builder.fpext(value, _VECTOR)), pointer


def _store_sum(builder, lanes, base, index):
    """Add the sum of a vector's eight numbers, taken in halves, to the number at an address."""
    for half in (4, 2, 1):
        swap = [lane ^ half for lane in range(LANES)]
        mask = ir.Constant(ir.VectorType(ir.IntType(32), LANES), swap)
        lanes = builder.fadd(lanes, builder.shuffle_vector(lanes, _ZEROS, mask))
    place = builder.inttoptr(builder.add(base, _SIZE(8 * index)), _REAL.as_pointer())
    total = builder.fadd(builder.load(place), builder.extract_element(lanes, ir.IntType(32)(0)))
    builder.store(total, place)


def _splat(builder, base, index):
    """The number at an address, eight times."""
    place = builder.inttoptr(builder.add(base, _SIZE(8 * index)), _REAL.as_pointer())
    first = builder.insert_element(_ZEROS, builder.load(place), ir.IntType(32)(0))
    mask = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
    return builder.shuffle_vector(first, _ZEROS, mask)


def _add_product(builder, total, a, b):
    """total += a * b, in one instruction where there is one."""
    product = builder.fmul(a, b, flags=_CONTRACT)
    builder.store(builder.fadd(builder.load(total), product, flags=_CONTRACT), total)


def _sweep(n_outputs):
    """Make the intrinsic for ``n_outputs`` rows of weights, which share loads of activations."""

    @intrinsic
    def sweep(typing_context, w, w_stride, before, now, stride, chunks, like, steps, outputs):
        """w += Σ_p steps[p] before[p], outputs[q] += w·now[q], over `chunks` times 8 columns.

        All arrays are passed as addresses, so that vectorizing needs no proof that nothing
        overlaps. Rows of activations are `stride` elements of the type of `like` apart; all else is
        float64.
        """

        def generate(context, builder, signature, args):
            w, w_stride, before, now, stride, chunks, _, steps, outputs = args
            element = context.get_value_type(signature.args[6])
            splats = [_splat(builder, steps, n) for n in range(n_outputs * ROWS)]
            starts = [builder.mul(stride, _SIZE(row)) for row in range(ROWS)]
            rows = [builder.mul(w_stride, _SIZE(c)) for c in range(n_outputs)]
            values = [cgutils.alloca_once(builder, _VECTOR) for _ in rows]
            sums = [cgutils.alloca_once_value(builder, _ZEROS) for _ in splats]
            with cgutils.for_range(builder, chunks) as loop:
                column = builder.mul(loop.index, _SIZE(LANES))
                places = []
                for row, value in zip(rows, values):
                    weights, place = _load(builder, w, builder.add(row, column), _REAL)
                    builder.store(weights, value)
                    places.append(place)
                for p, start in enumerate(starts):
                    z, _ = _load(builder, before, builder.add(start, column), element)
                    for c, value in enumerate(values):
                        _add_product(builder, value, splats[c * ROWS + p], z)
                updated = [builder.load(value) for value in values]
                for value, place in zip(updated, places):
                    builder.store(value, place, align=8)
                for q, start in enumerate(starts):
                    z, _ = _load(builder, now, builder.add(start, column), element)
                    for c, value in enumerate(updated):
                        _add_product(builder, sums[c * ROWS + q], value, z)
            for n, total in enumerate(sums):
                _store_sum(builder, builder.load(total), outputs, n)

        return types.void(*[types.intp] * 6, like, types.intp, types.intp), generate

    return sweep


sweep_one, sweep_two = _sweep(1), _sweep(2)


@intrinsic
def products(typing_context, z, stride, chunks, like, gram):
    """gram[p, q] += z[p]·z[q], p <= q, for a group of rows over `chunks` times 8 columns."""
    pairs = [(p, q) for p in range(ROWS) for q in range(p, ROWS)]

    def generate(context, builder, signature, args):
        z, stride, chunks, _, gram = args
        element = context.get_value_type(signature.args[3])
        size = _SIZE(context.get_abi_sizeof(element))
        sums = [cgutils.alloca_once_value(builder, _ZEROS) for _ in pairs]
        with cgutils.for_range(builder, chunks) as loop:
            column = builder.mul(loop.index, _SIZE(LANES))
            starts = [builder.add(builder.mul(stride, _SIZE(r)), column) for r in range(ROWS)]
            ahead = builder.mul(stride, _SIZE(ROWS))
            rows = [_load(builder, z, start, element)[0] for start in starts]
            for start in starts:  # rows are too short for the CPU to predict what comes next
                place = builder.add(z, builder.mul(builder.add(start, ahead), size))
                prefetch(builder, place, locality=2)
            for total, (p, q) in zip(sums, pairs):
                _add_product(builder, total, rows[p], rows[q])
        for total, (p, q) in zip(sums, pairs):
            _store_sum(builder, builder.load(total), gram, p * ROWS + q)

    return types.void(*[types.intp] * 3, like, types.intp), generate


@cached(nogil=True, error_model="numpy")
def effective_rate(square, learning_rate, weight):
    """The rate of the one step that equals all steps for a row of that weight together.

    A step of rate r at z leaves the fraction 1 - r z·z of the error (`square` is z·z). A step that
    leaves the product of these fractions has the rate (1 - product) / z·z.
    """
    if weight == 1.0:
        return learning_rate
    if square == 0.0:
        return 0.0
    whole = np.floor(weight)
    step, rest = learning_rate * square, learning_rate * square * (weight - whole)
    if step < 0.5:  # in 1 - step a small step loses its digits
        return -np.expm1(whole * np.log1p(-step) + np.log1p(-rest)) / square
    return (1 - (1 - step) ** whole * (1 - rest)) / square


@cached(nogil=True, error_model="numpy")
def sweep_rows(W, H, before, now, steps, outputs, gram):
    """Update W by the group of rows that starts at `before`; write what the group at `now` needs.

    These are W·z for each output and each row of that group, and z_p·z_q, p <= q, for its rows.
    """
    k, m = steps.shape[0], H.shape[1]
    address, item, w_stride = H.ctypes.data, H.itemsize, W.shape[1]
    outputs[:] = 0.0
    gram[:] = 0.0
    for start in range(0, m, _TILE):
        old, new = address + item * (before * m + start), address + item * (now * m + start)
        chunks = min(_TILE, m - start) // LANES
        for c in range(0, k, 2):
            w = W.ctypes.data + 8 * (c * w_stride + start)
            step = steps.ctypes.data + 8 * ROWS * c
            output = outputs.ctypes.data + 8 * ROWS * c
            if c + 1 < k:
                sweep_two(w, w_stride, old, new, m, chunks, H[0, 0], step, output)
            else:
                sweep_one(w, w_stride, old, new, m, chunks, H[0, 0], step, output)
        products(new, m, chunks, H[0, 0], gram.ctypes.data)


@cached(nogil=True, error_model="numpy")
def rows(H, T, W, learning_rate, weights):
    """For each row z of H in order: W[c] += rate * (t[c] - W[c]·z) * z for all outputs c.

    Parameters
    ----------
    H : array of shape (b, m), padded with zeros, float32 or float64, C-contiguous
        Activations; its rows are a multiple of `ROWS`, its columns of `LANES`.
    T : float64 array of shape (b, k)
        Targets.
    W : float64 array of shape (k, columns of H), C-contiguous
        Weights, one row per output; updated in place.
    learning_rate : float
    weights : float64 array of shape (b,)
        A row of weight w counts as floor(w) equal rows in succession and one more that learns at
        ``learning_rate * (w - floor(w))``.
    """
    b, k = T.shape
    steps, outputs, gram = np.zeros((k, ROWS)), np.empty((k, ROWS)), np.empty((ROWS, ROWS))
    for first in range(0, b, ROWS):
        sweep_rows(W, H, max(first - ROWS, 0), first, steps, outputs, gram)
        for q in range(ROWS):
            if first + q >= b:
                steps[:, q] = 0.0
                continue
            rate = effective_rate(gram[q, q], learning_rate, weights[first + q])
            for c in range(k):
                output = outputs[c, q]
                for p in range(q):
                    output += steps[c, p] * gram[p, q]
                steps[c, q] = rate * (T[first + q, c] - output)
    last = (b - 1) // ROWS * ROWS
    sweep_rows(W, H, last, last, steps, outputs, gram)
