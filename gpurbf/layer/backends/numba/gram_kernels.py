"""HᵀH and HᵀT of packed rows: the lower triangle only, short sums by tile, long ones in float64.

The panels are float32 or float64 rows, or pairs of 16-bit rows in 32-bit words (see `fixed`). All
that differs is the micro-kernel and where the runs of steps end that it sums by itself.
"""

import numpy as np

from gpurbf.layer.backends.numba.microkernels import LANES
from gpurbf.layer.backends.numba.packing import aligned_like
from gpurbf.runtime.jit.caching import cached, inner
from gpurbf.runtime.jit.llvm import call_product, use_widest_vectors

SIDE = 192  # columns of a block of HᵀH: its float64 sums stay in L2
PANELS = SIDE // LANES
DEPTH = 256  # rows summed in registers, in the dtype of H, before float64 takes over


def padded_panels(columns):
    """Panels of 16 for that many columns, an even number because kernels may take two."""
    return -(-columns // (2 * LANES)) * 2


_padded_panels = inner()(padded_panels)


@inner()
def add_tile(tile, sums, top, left):
    """sums[top:, left:] += tile, in a function of its own: its slices then need no counting."""
    use_widest_vectors()
    for i in range(tile.shape[0]):
        source, target = tile[i], sums[top + i, left : left + tile.shape[1]]
        for j in range(source.size):
            target[j] += np.float64(source[j])


@inner()
def gram_block(panels, left, n_left, right, n_right, ends, kernel, tile, sums):
    """sums = AᵀB for the panels left … of A and right … of B."""
    size = panels.itemsize
    c_stride = panels.shape[1] * LANES * size
    sums[:] = 0
    for q in range(0, n_right, kernel.strip):
        for p in range(q if left == right else 0, n_left):  # the lower triangle of a block
            for r in range(0, LANES, kernel.rows):
                for i in range(len(ends) - 1):
                    k = ends[i]
                    c = panels.ctypes.data + (right + q) * c_stride + k * LANES * size
                    x = panels.ctypes.data + (left + p) * c_stride + (k * LANES + r) * size
                    call_product(
                        kernel.address, x, c, c_stride, ends[i + 1] - k,
                        tile.ctypes.data, kernel.strip * LANES * size,
                    )  # fmt: skip
                    add_tile(tile, sums, p * LANES + r, q * LANES)


@cached(nogil=True)
def add_gram(block, panels, ends, kernel, m, n_targets, scale, G, B):
    """Block `block` of G += scale HᵀH (lower triangle) or, for the panels after H's, of B += HᵀT.

    The sums are of the steps between `ends`, those of each run in the panels' dtype.
    """
    use_widest_vectors()
    h_panels = panels.shape[0] - _padded_panels(n_targets)
    h_blocks = -(-h_panels // PANELS)
    # Blocks are numbered row by row through the lower triangle; below it come the rows of T.
    i, j = 0, block
    while j > i and i < h_blocks:
        j -= i + 1
        i += 1
    if i >= h_blocks:
        i, j = h_blocks + j // h_blocks, j % h_blocks
    targets = i >= h_blocks
    left = h_panels + (i - h_blocks) * PANELS if targets else i * PANELS
    n_left = min(PANELS, (panels.shape[0] if targets else h_panels) - left)
    right = j * PANELS
    n_right = min(PANELS, h_panels - right)
    sums = aligned_like(G, SIDE * SIDE).reshape(SIDE, SIDE)
    tile = aligned_like(panels, kernel.rows * kernel.strip * LANES)
    tile = tile.reshape(kernel.rows, kernel.strip * LANES)
    gram_block(panels, left, n_left, right, n_right, ends, kernel, tile, sums)
    columns = min(n_right * LANES, m - right * LANES)
    if targets:
        first = (i - h_blocks) * SIDE
        for o in range(min(SIDE, n_targets - first)):
            for q in range(columns):
                B[right * LANES + q, first + o] += sums[o, q]
    else:
        for p in range(min(n_left * LANES, m - left * LANES)):
            line = G[left * LANES + p, right * LANES : right * LANES + columns]
            for q in range(columns):
                line[q] += scale * sums[p, q]


def gram_blocks(m, n_targets):
    """How many blocks `add_gram` knows: those of HᵀH and, after them, those of HᵀT."""
    h = -(-m // SIDE)
    return h * (h + 1) // 2, h * -(-n_targets // SIDE)
