"""H @ W in the tile, for few outputs and for many.

From 16 outputs on, a vector holds the sums of 16 outputs: each activation is broadcast and meets
its row of W (`score…`, one of `microkernels`). Fewer outputs would leave lanes empty, and
an activation would cost as many multiplications for one output as for 16. So a vector then holds
partial sums of one output: the activations of 8 centers meet their 8 weights, and the sums of a
sample stay in memory from one block of centers to the next (`partial…`, and `single…` for one or
two outputs, made here). Partial sums are float64 even for float32 activations, because rounding in
float32 sums would be ten times as large as in the activations.

A group of centers may have weights for few outputs only: a support vector takes part only in the
pairs of its own class. A segment is the part of a group in a tile, between multiples of 8 centers.

    H     [rows][BLOCK]         activations
    W     [outputs][centers]    of each segment for partial sums, float64; [panels][m][16] for
                                `score`, as H
    sums  [rows][outputs][8]    for partial sums, float64; [rows][16] for `score`, as H
"""

import numpy as np
from llvmlite import ir

from gpurbf.layer.backends.numba.microkernels import (
    BLOCK,
    OPERATIONS,
    TARGETS,
    VECTORS,
    Kind,
    byte_size,
    loop,
    pointer_to,
)
from gpurbf.runtime.jit.caching import cached, inner
from gpurbf.runtime.jit.llvm import address, clear_bytes, use_widest_vectors

# Samples and outputs (`panels`) of a block of registers, in the order of `VECTORS`.
_BLOCKS = {
    "partial": ((4, 5), (1, 5), (1, 2), (2, 3)),
    "single": ((12, 1), (4, 1), (2, 1), (4, 1)),
}
_OPERATIONS = {32: OPERATIONS["multiply_widened"], 64: OPERATIONS["multiply_float64"]}
KINDS = {
    f"{name}{bits}_{vectors}": Kind(
        operation, size // 8, *block, BLOCK * bits // 8, target=TARGETS.get(vectors)
    )
    for name, blocks in _BLOCKS.items()
    for (vectors, size), block in zip(VECTORS.items(), blocks)
    for bits, operation in _OPERATIONS.items()
}
PARTS = 8  # partial sums of an output


def build(builder, kind, h, w, w_stride, steps, sums, sums_stride):
    """Write the loop over `steps` · 8 centers, which continues the sums in memory."""
    operation = kind.operation
    given = ir.VectorType(operation.operand, kind.width)
    vector = ir.VectorType(operation.total, kind.width)
    h_size, size = byte_size(operation.operand), byte_size(operation.total)
    word = ir.IntType(64)
    vectors = range(PARTS // kind.width)

    def place(r, o, v):
        row = builder.add(sums, builder.mul(sums_stride, word(r)))
        return pointer_to(builder, row, (o * PARTS + v * kind.width) * size, vector)

    def load(address, stride, row, v, vector, size):
        address = builder.add(address, builder.mul(stride, word(row)))
        place = pointer_to(builder, address, v * kind.width * size, vector)
        return builder.load(place, align=kind.width * size)

    places = [(r, o, v) for r in range(kind.rows) for o in range(kind.panels) for v in vectors]
    h_stride = word(kind.row_stride)

    def step(number, h, w, *old):
        new = dict(zip(places, old))
        for v in vectors:
            activations = [load(h, h_stride, r, v, given, h_size) for r in range(kind.rows)]
            if given != vector:
                activations = [builder.fpext(h, vector) for h in activations]
            for o in range(kind.panels):
                weights = load(w, w_stride, o, v, vector, size)
                for r in range(kind.rows):
                    p = (r, o, v)
                    new[p] = operation.combine(builder, new[p], activations[r], weights)
        number = builder.add(number, word(1))
        h, w = builder.add(h, word(PARTS * h_size)), builder.add(w, word(PARTS * size))
        return builder.icmp_signed("<", number, steps), [number, h, w, *new.values()]

    before = [builder.load(place(*p), align=size) for p in places]
    _, _, _, *after = loop(builder, [word(0), h, w, *before], step)
    for p, total in zip(places, after):
        builder.store(total, place(*p), align=size)


@inner(fastmath={"reassoc"})
def collect(sums, n, apart, columns, n_outputs, scores, k):
    """scores[:, columns] += the partial sums of n rows, which are then set to 0.

    All arrays are pointers; rows of sums are ``apart`` numbers apart, and rows of the scores k.
    """
    use_widest_vectors()
    for r in range(n):
        for o in range(n_outputs):
            total = 0.0
            for i in range(PARTS):
                total += sums[r * apart + o * PARTS + i]
            scores[r * k + columns[o]] += total
    clear_bytes(address(sums), 8 * n * apart)


@cached(nogil=True, fastmath={"reassoc", "contract"}, error_model="numpy")
def dot_rows(begin, end, A, W, scores):
    """Add rows of A @ W for a few outputs, W (k, m): reading A takes longer than its products."""
    use_widest_vectors()
    for i in range(begin, end):
        row = A[i]
        for o in range(W.shape[0]):
            w = W[o]
            total = 0.0
            for j in range(row.size):
                total += np.float64(row[j]) * np.float64(w[j])
            scores[i, o] += total
