"""Rows in 16-bit fixed point, in pairs: what makes sums over them exact, in any order.

A pair of rows is a 32-bit word for each column, the first row in its low half:

    pairs  [column / 16][row / 2][16]

Products of such rows are summed in 32 bits, which wrap around and so are right wherever the sum
itself fits. By Cauchy and Schwarz that of two columns is at most the root of their energies: a run
of rows in which no column's squares reach 2³¹ cannot overflow, whatever the other column is.
"""

import numpy as np

from gpurbf.layer.backends.numba.microkernels import LANES
from gpurbf.runtime.jit.caching import cached, inner
from gpurbf.runtime.jit.llvm import use_widest_vectors

LARGEST = 32767
UNIT = 16  # pairs whose energies are summed before they are compared with the limit
LONGEST = 1024  # rows of a run at the most: other operands' squares may reach 2²⁰
# Energies are summed in float32: with errors of at most 2⁻²⁰ they still stay below 2³¹.
_LIMIT = 2.0**31 * (1 - 2.0**-16)


@inner(error_model="numpy")
def pack_pairs(H, roots, mean, pairs, beyond):
    """Write round(roots · (H - mean)) into pairs (panel, row / 2, 16), zeros beyond the data.

    H is a tile whose rows are as long as whole panels. ``beyond`` (rows,) becomes 1 where a number
    of a row does not fit; what is written there is no number then.
    """
    use_widest_vectors()
    n, real = H.shape[0], H.dtype.type
    largest, zero = real(LARGEST), real(0)
    for r in range(0, n, 2):
        last = min(r + 1, n - 1)
        low, high = H[r], H[last]
        u, v = roots[r], roots[last] if r + 1 < n else zero
        for p in range(pairs.shape[0]):
            words, left = pairs[p, r // 2], p * LANES
            wide, wider = np.int32(0), np.int32(0)
            for k in range(LANES):
                a = u * (low[left + k] - mean[left + k])
                b = v * (high[left + k] - mean[left + k])
                fits, also = abs(a) <= largest, abs(b) <= largest  # not so for NaN
                wide |= np.int32(not fits)
                wider |= np.int32(not also)
                a, b = np.rint(a if fits else zero), np.rint(b if also else zero)
                words[k] = (np.int32(a) & np.int32(0xFFFF)) | (np.int32(b) << np.int32(16))
            if wide:
                beyond[r] = 1
            if wider and r + 1 < n:
                beyond[r + 1] = 1


@cached(nogil=True)
def pack_rows(begin, end, H, roots, mean, pairs, first, beyond):
    """`pack_pairs` of rows begin … end of H (N, m), m of any size, to `first` … of the pairs."""
    m = H.shape[1]
    line = np.zeros((2, pairs.shape[0] * LANES), H.dtype)
    for r in range(begin, end, 2):
        n, i = min(2, end - r), first + r // 2
        line[:n, :m] = H[r : r + n]
        pack_pairs(line[:n], roots[r : r + n], mean, pairs[:, i : i + 1], beyond[r : r + n])


@inner(fastmath={"reassoc", "contract"})
def _energy(words, total):
    """total += the squares of both rows of each of some pairs, column by column."""
    use_widest_vectors()
    for i in range(words.shape[0]):
        for k in range(LANES):
            word = words[i, k]
            low, high = np.float32(np.int16(word)), np.float32(np.int16(word >> 16))
            total[k] += low * low + high * high


@cached(nogil=True)
def energies(begin, end, pairs, steps, out):
    """Sums of squares of each column over each UNIT of the first pairs: out (panel, units, 16)."""
    out[begin:end] = 0
    for p in range(begin, end):
        for u in range(out.shape[1]):
            _energy(pairs[p, u * UNIT : min((u + 1) * UNIT, steps)], out[p, u])


@cached(nogil=True)
def run_ends(energy, n_pairs):
    """Where runs of pairs begin and end, 0 … n_pairs, none of which can overflow 32 bits."""
    ends = np.empty(n_pairs + 1, np.intp)
    ends[0], count, begin = 0, 1, 0
    total = np.zeros((energy.shape[0], LANES))
    for u in range(energy.shape[1]):
        first, last = u * UNIT, min((u + 1) * UNIT, n_pairs)
        largest = 0.0
        for p in range(energy.shape[0]):
            for k in range(LANES):
                total[p, k] += energy[p, u, k]
                largest = max(largest, total[p, k])
        if first > begin and (largest >= _LIMIT or 2 * (last - begin) > LONGEST):
            ends[count], count, begin = first, count + 1, first
            total[:] = energy[:, u]
            largest = total.max()
        if largest >= _LIMIT:  # two rows always fit: 2 · 32767² < 2³¹
            for i in range(first + 1, last + 1):
                ends[count], count = i, count + 1
            begin = last
            total[:] = 0
    if begin < n_pairs:
        ends[count], count = n_pairs, count + 1
    return ends[:count]
