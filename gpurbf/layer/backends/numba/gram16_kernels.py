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
from gpurbf.runtime.jit.llvm import moved, number_of, pointer, use_widest_vectors

LARGEST = 32767
UNIT = 16  # pairs whose energies are summed before they are compared with the limit
LONGEST = 1024  # rows of a run at the most: other operands' squares may reach 2²⁰
# Energies are summed in float32: with errors of at most 2⁻²⁰ they still stay below 2³¹.
_LIMIT = 2.0**31 * (1 - 2.0**-16)


@inner(error_model="numpy")
def pack_pairs(low, apart, roots, mean, words, beyond):
    """Write round(roots · (H - mean)) of two rows of 16 numbers of H as a line of pairs.

    The second begins ``apart`` numbers after the first; 0: there is none. ``beyond`` (2,) becomes 1
    where a number of a row does not fit; what is written there is no number then.
    """
    use_widest_vectors()
    high, largest, zero = moved(low, apart), number_of(low, LARGEST), number_of(low, 0)
    u, v = roots[0], zero
    if apart != 0:
        v = roots[1]
    wide, wider = np.int32(0), np.int32(0)
    for k in range(LANES):
        a, b = u * (low[k] - mean[k]), v * (high[k] - mean[k])
        fits, also = abs(a) <= largest, abs(b) <= largest  # not so for NaN
        wide |= np.int32(not fits)
        wider |= np.int32(not also)
        a, b = np.rint(a if fits else zero), np.rint(b if also else zero)
        words[k] = (np.int32(a) & np.int32(0xFFFF)) | (np.int32(b) << np.int32(16))
    if wide:
        beyond[0] = 1
    if wider and apart != 0:
        beyond[1] = 1


@cached(nogil=True, fastmath={"reassoc", "contract"})
def energies(begin, end, pairs, apart, steps, out):
    """Sums of squares of each column over each UNIT of the first pairs: out (panel, units, 16).

    ``pairs`` is their address, and panels are ``apart`` bytes apart.
    """
    use_widest_vectors()
    for p in range(begin, end):
        words = pointer(pairs + p * apart, np.int32)
        for i in range(steps):
            total, line = out[p, i // UNIT], moved(words, i * LANES)
            for k in range(LANES):
                low, high = np.float32(np.int16(line[k])), np.float32(np.int16(line[k] >> 16))
                total[k] += low * low + high * high


@cached(nogil=True)
def find_runs(energy, n_pairs, total, ends):
    """Write where runs of pairs begin and end, 0 … n_pairs; how many numbers these are.

    No run can overflow 32 bits. ``total`` (panels, 16), float64, is scratch.
    """
    ends[0], count, begin, u = 0, 1, 0, 0
    while u < energy.shape[1]:
        first, last, largest = u * UNIT, min((u + 1) * UNIT, n_pairs), 0.0
        for p in range(energy.shape[0]):
            for k in range(LANES):
                before = total[p, k] if begin < first else 0.0
                total[p, k] = before + energy[p, u, k]
                if total[p, k] > largest:
                    largest = total[p, k]
        if first > begin and (largest >= _LIMIT or 2 * (last - begin) > LONGEST):
            ends[count], count, begin = first, count + 1, first
            continue  # it begins a run
        if largest >= _LIMIT:  # two rows always fit: 2 · 32767² < 2³¹
            for i in range(first + 1, last + 1):
                ends[count], count = i, count + 1
            begin = last
        u += 1
    if begin < n_pairs:
        ends[count], count = n_pairs, count + 1
    return count
