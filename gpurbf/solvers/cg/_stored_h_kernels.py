"""Products with rows of H that are kept: as 16-bit multiples of a step, or as numbers.

With few vectors, as in a solver, there is little to compute for each number of H. So a tile of H is
converted to float64 and multiplied with all vectors in the micro-kernels while it is in the
first-level cache.

    H V     rows of a tile meet columns of V, eight partial sums an output (`add_times`, "partial")
    Hᵀ U    panels of 16 columns meet columns of U as H meets W in `microkernels`, "score"
"""

import numpy as np

from gpurbf.layer.backends.numba.matvec_kernels import PARTS, collect
from gpurbf.layer.backends.numba.microkernels import BLOCK, LANES
from gpurbf.layer.backends.numba.packing import aligned_like
from gpurbf.runtime.jit.caching import cached, inner
from gpurbf.runtime.jit.llvm import call_at, keep_alive, pointer, use_widest_vectors, widen16

LARGEST = 32767
# Rows of a tile of BLOCK columns; rows and columns of one of panels.
_TOP, _DEPTH, _STRIP = 12, 256, 128


@cached(nogil=True, error_model="numpy")
def round_rows(begin, end, H, shift, step, Q):
    """Write rows begin … end of H - shift to Q, as the nearest multiples of the step, in int16.

    Rows of Q begin with as many numbers as the shift has. Returns the largest multiple, infinity if
    a number is NaN.
    """
    use_widest_vectors()
    real = H.dtype.type
    factor, largest = real(1 / step), real(0)
    for i in range(begin, end):
        h, q = H[i], Q[i]
        beyond = real(0)
        for j in range(shift.size):
            v = (h[j] - shift[j]) * factor
            beyond = max(beyond, abs(v)) if v == v else real(np.inf)
            q[j] = np.int16(np.rint(min(max(v, real(-LARGEST)), real(LARGEST))))
        largest = max(largest, beyond)
    return largest


@inner(error_model="numpy")
def _widen(Q, rows, top, left, n, tile, stride, step, ahead):
    """Write n columns of some rows of Q from (top, left) on as float64, 16 at a time, into a tile.

    In the tile, rows are ``stride`` bytes apart, and groups of 16 columns ``step`` bytes apart.
    Memory ``ahead`` bytes further on in Q is fetched meanwhile.
    """
    for r in range(rows):
        source = Q.ctypes.data + (top + r) * Q.strides[0] + left * Q.itemsize
        target = tile.ctypes.data + r * stride
        for _ in range(0, n, LANES):
            widen16(Q, source, target, ahead)
            source += LANES * Q.itemsize
            target += step


@cached(nogil=True, error_model="numpy")
def add_times(begin, end, Q, W, k, some, single, S):
    """Add rows begin … end of Q W to those of S (N, k), for Q (N, m) and W (k' outputs, m').

    ``some`` is a micro-kernel for several outputs, ``single`` that for one.
    """
    use_widest_vectors()
    tile = aligned_like(W, _TOP * BLOCK).reshape(_TOP, BLOCK)
    sums = aligned_like(W, (end - begin + _TOP) * W.shape[0] * PARTS)
    sums = sums.reshape(end - begin + _TOP, W.shape[0], PARTS)
    tile[:] = 0
    sums[:] = 0
    for left in range(0, Q.shape[1], BLOCK):
        n = min(BLOCK, Q.shape[1] - left)
        for i in range(begin, end, _TOP):
            rows = min(_TOP, end - i)
            _widen(Q, rows, i, left, n, tile, BLOCK * 8, LANES * 8, _TOP * Q.strides[0])
            o = 0
            while o < k:
                kernel = single if k - o < 3 else some
                w = W.ctypes.data + o * W.strides[0] + left * 8
                for r in range(0, rows, kernel.rows):
                    to = sums.ctypes.data + (i - begin + r) * sums.strides[0] + o * sums.strides[1]
                    call_at(
                        kernel.address, tile.ctypes.data + r * BLOCK * 8, w, W.strides[0],
                        -(-n // PARTS), to, sums.strides[0],
                    )  # fmt: skip
                o += kernel.strip
    rows = pointer(S.ctypes.data + begin * S.strides[0], S)
    columns = np.arange(k)
    collect(
        pointer(sums.ctypes.data, sums), end - begin, W.shape[0] * PARTS,
        pointer(columns.ctypes.data, columns), k, rows, k,
    )  # fmt: skip
    keep_alive(columns)
    keep_alive(sums)


@cached(nogil=True, error_model="numpy")
def add_transposed(begin, end, Q, U, k, kernel, Z):
    """Add Uᵀ Q to columns begin … end of Z (k, m), for Q (N, m).

    U is in blocks (·, k', BLOCK), each with k' columns of BLOCK rows; columns beyond k are zero.
    """
    use_widest_vectors()
    panels = aligned_like(U, _STRIP * _DEPTH).reshape(_STRIP // LANES, _DEPTH, LANES)
    tile = aligned_like(U, kernel.rows * LANES).reshape(kernel.rows, LANES)
    for left in range(begin, end, _STRIP):
        n = min(_STRIP, end - left)
        for top in range(0, Q.shape[0], _DEPTH):
            rows = min(_DEPTH, Q.shape[0] - top)
            ahead = _DEPTH * Q.strides[0]
            _widen(Q, rows, top, left, n, panels, LANES * 8, panels.strides[0], ahead)
            for p in range(-(-n // LANES)):
                c, at = panels.ctypes.data + p * panels.strides[0], left + p * LANES
                for o in range(0, k, kernel.rows):
                    x = U.ctypes.data + top // BLOCK * U.strides[0] + o * U.strides[1]
                    x += top % BLOCK * 8
                    call_at(kernel.address, x, c, 0, rows, tile.ctypes.data, LANES * 8)
                    for q in range(min(kernel.rows, k - o)):
                        for j in range(min(LANES, left + n - at)):
                            Z[o + q, at + j] += tile[q, j]
