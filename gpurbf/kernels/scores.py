"""H @ W in the tile, for few outputs and for many.

From 16 outputs on, a vector holds the sums of 16 outputs: each activation is broadcast and meets
its row of W (`score…`, one of the kernels of `tiles`). Fewer outputs would leave lanes empty, and
an activation would cost as many multiplications for one output as for 16. So a vector holds 16
partial sums of one output: the activations of 16 centers meet their 16 weights, and the sums of a
sample stay in memory from one block of centers to the next (`partial…`, made here).

    H     [rows][BLOCK]              activations
    W     [blocks][outputs][BLOCK]   for `partial`; [panels][m][16] for `score`
    sums  [rows][outputs][16]        for `partial`; [rows][16] for `score`
"""

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from gpurbf.kernels.caching import inner
from gpurbf.kernels.llvm import call_product, use_widest_vectors
from gpurbf.kernels.tiles import (
    AVX2,
    BLOCK,
    LANES,
    OPERATIONS,
    Kind,
    byte_size,
    compile_for,
    pointer_to,
)

# Samples and outputs (`panels`) of a block of registers.
KINDS = {
    "partial32_avx512": Kind("multiply_float32", 16, 4, 5),
    "partial32_avx2": Kind("multiply_float32", 8, 1, 5, target=AVX2),
    "partial32_generic": Kind("multiply_float32", 4, 1, 2),
    "partial64_avx512": Kind("multiply_float64", 8, 2, 5),
    "partial64_avx2": Kind("multiply_float64", 4, 1, 2, target=AVX2),
    "partial64_generic": Kind("multiply_float64", 2, 1, 1),
}
# Blocks of centers whose products a partial sum of the activations' dtype takes (256 terms).
SUMMED = 16


def build(builder, kind, h, w, steps, sums, sums_stride):
    """Write the loop over `steps` · 16 centers, which continues the sums in memory."""
    operation = OPERATIONS[kind.operation]
    vector = ir.VectorType(operation.operand, kind.width)
    size = byte_size(operation.operand)
    word, line = ir.IntType(64), BLOCK * size
    vectors = range(LANES // kind.width)

    def place(r, o, v):
        row = builder.add(sums, builder.mul(sums_stride, word(r)))
        return pointer_to(builder, row, (o * LANES + v * kind.width) * size, vector)

    places = [(r, o, v) for r in range(kind.rows) for o in range(kind.panels) for v in vectors]
    first = [builder.load(place(*p), align=size) for p in places]
    start = builder.block
    loop, end = builder.append_basic_block("steps"), builder.append_basic_block("store")
    builder.branch(loop)

    builder.position_at_end(loop)
    step, offset = builder.phi(word), builder.phi(word)
    old = {p: builder.phi(vector) for p in places}
    h_now, w_now = builder.add(h, offset), builder.add(w, offset)
    new = dict(old)
    for v in vectors:
        across = v * kind.width * size
        activations = [
            builder.load(
                pointer_to(builder, h_now, r * line + across, vector), align=kind.width * size
            )
            for r in range(kind.rows)
        ]
        for o in range(kind.panels):
            weights = pointer_to(builder, w_now, o * line + across, vector)
            weights = builder.load(weights, align=kind.width * size)
            for r in range(kind.rows):
                p = (r, o, v)
                new[p] = operation.combine(builder, new[p], activations[r], weights)
    following = builder.add(step, word(1))
    step.add_incoming(word(0), start)
    step.add_incoming(following, loop)
    offset.add_incoming(word(0), start)
    offset.add_incoming(builder.add(offset, word(LANES * size)), loop)
    for p, before in zip(places, first):
        old[p].add_incoming(before, start)
        old[p].add_incoming(new[p], loop)
    builder.cbranch(builder.icmp_signed("<", following, steps), loop, end)

    builder.position_at_end(end)
    for p in places:
        builder.store(new[p], place(*p), align=size)


@intrinsic(prefer_literal=True)
def partial_tile(typing_context, name, h, w, w_stride, steps, sums, sums_stride):
    """The micro-kernel `KINDS[name]`, inlined here; signature as `tiles` (w_stride is not used)."""
    kind = KINDS[name.literal_value]

    def generate(context, builder, signature, args):
        compile_for(builder, kind.target)
        _, h, w, _, steps, sums, sums_stride = args
        build(builder, kind, h, w, steps, sums, sums_stride)
        return context.get_dummy_value()

    return types.void(name, *(types.intp,) * 6), generate


@inner()
def add_partial(H, n_rows, count, W, kernel, rows, outputs, sums):
    """sums += H[:n_rows, :count] · W, a block of centers; H is 0 up to the next multiple of 16."""
    size = H.itemsize
    steps = -(-count // LANES)
    for o in range(0, W.shape[0], outputs):
        w = W.ctypes.data + o * BLOCK * size
        for r in range(0, n_rows, rows):
            h = H.ctypes.data + r * BLOCK * size
            target = sums.ctypes.data + (r * W.shape[0] + o) * LANES * size
            call_product(kernel, h, w, 0, steps, target, W.shape[0] * LANES * size)


@inner(fastmath={"reassoc"})
def collect(sums, scores):
    """scores += the partial sums, in float64; these begin again at 0."""
    use_widest_vectors()
    for r in range(scores.shape[0]):
        for o in range(scores.shape[1]):
            total = 0.0
            for k in range(LANES):
                total += sums[r, o, k]
            scores[r, o] += total
    sums[:] = 0


@inner()
def add_scores(H, count, W, first, kernel, rows, sums, scores):
    """scores += H[:, :count] @ W[first : first + count], in float64; sums is scratch."""
    size = H.itemsize
    n_rows, m = scores.shape[0], W.shape[1]
    for p in range(W.shape[0]):
        w = W.ctypes.data + (p * m + first) * LANES * size
        outputs = min(LANES, scores.shape[1] - p * LANES)
        for r in range(0, n_rows, rows):
            h = H.ctypes.data + r * BLOCK * size
            call_product(kernel, h, w, 0, count, sums.ctypes.data, LANES * size)
            for q in range(min(rows, n_rows - r)):
                for k in range(outputs):
                    scores[r + q, p * LANES + k] += sums[q, 0, k]
