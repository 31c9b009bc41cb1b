"""The tile's products on Hopper: four warps at a time, operands read from shared memory (sm_90a).

Shared memory holds each operand in cells of 8 rows × 16 bytes, 128 bytes in a row, first all cells
of 16 inputs, then those of the next. That is the PTX manual's K-major layout without swizzle.

The products of a slice are under way while the next one is waited for:

    barrier       slice s is there for all; the products of slice s - 2 are done
    load          slice s + 1, in place of slice s - 2
    products      of slice s begin; those of slice s - 1 are waited for
"""

import numpy as np
from llvmlite import ir

from gpurbf.layer.backends.cuda.kernels.registers import I32, SLICE, asm, shared_address
from gpurbf.runtime.jit.cuda_api import cuda, jit

# Slices in shared memory: one is multiplied, one begins to be, one comes. These are all the 48 KB
# that a block has without asking for more, which numba-cuda does not.
BUFFERS = 3
# Bytes between cells along the inputs, and between those of a row and of 8 rows further down.
ALONG, DOWN = 128 * 16, 128
_PRODUCTS = """{
    .reg .pred more; .reg .b32 down; .reg .b64 a, c;
    setp.eq.u32 more, 0, 0;
    mov.b32 down, HEIGHT; mov.b64 a, {$A, down}; mov.b64 c, {$C, down};
    wgmma.fence.sync.aligned;
    wgmma.mma_async.sync.aligned.m64n128k32.s32.u8.u8 {OUTPUTS}, a, c, more;
    add.s64 a, a, NEXT; add.s64 c, c, NEXT;
    wgmma.mma_async.sync.aligned.m64n128k32.s32.u8.u8 {OUTPUTS}, a, c, more;
    wgmma.commit_group.sync.aligned;
    wgmma.wait_group.sync.aligned 1;
}"""


_FINISHED = "wgmma.wait_group.sync.aligned 0;"


def finished(builder, acc):
    """The sums once all products are done, which before that are nobody's to read."""
    n = len(acc)
    kinds = ["=r"] * n + [str(e) for e in range(n)] + ["~{memory}"]
    result = ir.LiteralStructType([I32] * n)
    D = asm(builder, _FINISHED, result, ",".join(kinds), acc, True)
    return [builder.extract_value(D, e) for e in range(n)]


def steps():
    """64 bytes of 64 rows against 64 bytes of 128 columns, by four warps and from shared memory."""

    def descriptor(builder, pointer):
        """Its lower half: the address in units of 16 bytes, as all of it; no swizzle."""
        start = builder.lshr(shared_address(builder, pointer), ir.Constant(I32, 4))
        return builder.or_(start, ir.Constant(I32, ALONG >> 4 << 16))

    def step(builder, acc, a, c, pitch):
        n = len(acc)
        text = _PRODUCTS.replace("OUTPUTS", ", ".join(f"${e}" for e in range(n)))
        text = text.replace("$A", f"${2 * n}").replace("$C", f"${2 * n + 1}")
        text = text.replace("NEXT", str(2 * ALONG >> 4)).replace("HEIGHT", str(DOWN >> 4))
        kinds = ["=r"] * n + [str(e) for e in range(n)] + ["r", "r", "~{memory}"]
        operands = [*acc, descriptor(builder, a), descriptor(builder, c)]
        result = ir.LiteralStructType([I32] * n)
        D = asm(builder, text, result, ",".join(kinds), operands, True)
        acc[:] = [builder.extract_value(D, e) for e in range(n)]

    return step


def placing(shape):
    """`tile._placing` where four warps share 64 rows, and a warp has 16 of them, all columns."""
    words = SLICE // 4

    @jit(device=True)
    def firsts(t, pitch):
        return t // 128 * 64 * 4, shape.M * words

    @jit(device=True)
    def own(t):
        return t // 32 * 16 + t % 32 // 4, t % 4 * 2, t % 4

    return firsts, own


def loading(shape, source):
    """`tile._loading` for operands in cells of 8 rows × 16 bytes, as wgmma reads them.

    Eight neighbors copy a cell: 128 bytes, all the banks.
    """
    M = shape.M
    words = SLICE // 4  # of a row
    copy16, commit, all_copied, _ = source.copies(True)
    here, seen = source.here, source.seen_by_wgmma
    address, further = source.address, source.further

    @jit(device=True)
    def start(t, memory, A, band):
        row, cell = t // 32 * 8 + t % 8, t % 32 // 8
        return address(A, (band * M + row) * A.shape[1] + cell * 4)

    @jit(device=True)
    def load(memory, buffer, A, a, C, c):
        t, width = np.int32(here(np.int64(cuda.threadIdx.x))) & 255, A.shape[1]
        row, cell = t // 32 * 8 + t % 8, t % 32 // 8
        at = np.int32(buffer * 2 * M * words + cell * M * 4 + row * 4)
        for i in range(M // 64):
            copy16(memory, at + i * 64 * 4, A, further(A, a, i * 64 * width))
            copy16(memory, at + M * words + i * 64 * 4, C, further(C, c, i * 64 * width))
        commit()

    @jit(device=True)
    def wait_all():
        all_copied()
        seen()

    return start, load, wait_all
