"""SVC's steps on a GPU, all pairs of classes side by side, in rounds of four launches.

    select   a block a pair: what is left of the violation, and the pair's working set
    gather   kernel values between the members of each set
    inner    a block a pair: steps inside the set, as `_smo_kernels.solve_block` makes them
    update   what the members' changes do to f of all samples of the pair

A pair that is its own working set takes bit for bit the CPU's path, as long as the CPU leaves no
samples out (`binary.py`) and rounding of the kernel does not matter: samples are chosen by the same
keys, the last of equals wins, and no product is fused with a sum.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from gpurbf.layer.backends.cuda.kernels.warps import WARPS, best, best_beside, product
from gpurbf.runtime.jit.cuda_api import cuda, jit
from gpurbf.svm import _smo_kernels
from gpurbf.svm._smo_kernels import CREEPING_SETS, CREEPING_TOLERANCE, INNER_TOLERANCE, TAU

# Maximum number of samples in a working set, and of threads in a block.
SIZE, THREADS = 2048, 512
# Columns of the table of the pairs' progress.
STATE, STEPS, VIOLATION, ROUNDS, SQUARES, STUCK = range(6)
# States: pairs that are not RUNNING are skipped. DOUBTED: f must be evaluated again.
RUNNING, ENDED, DOUBTED, NOT_FINITE = range(4)

_LOWEST, _HIGHEST = np.int64(-(2**63)), np.int64(2**63 - 1)
_RISES, _FALLS = 1, 2

_key = jit(device=True)(_smo_kernels._key.py_func)
_gain = jit(device=True)(_smo_kernels._gain.py_func)


class Pairs(NamedTuple):
    """All pairs' problems end to end: pair p is at starts[p] to starts[p + 1] of the other arrays.

    ``samples``: numbers of samples in the kernel. ``bounds``: y C. ``beta``, ``f``: the state.
    ``keys``: scratch memory for choosing samples. ``sizes``: sizes of working sets; a pair that is
    no larger is its own set. ``members``: numbers of a pair's samples in its set (pairs, `SIZE` or
    less), and ``counts`` of them.

    ``K``: values of all samples. For each pair at work: ``blocks`` of values between its members,
    the blocks' own ``diagonals`` in float64, and changes of their beta.
    """

    starts: Any
    samples: Any
    bounds: Any
    beta: Any
    f: Any
    keys: Any
    sizes: Any
    members: Any
    counts: Any
    K: Any
    blocks: Any
    diagonals: Any
    changes: Any


class Rules(NamedTuple):
    """When to stop: violation, steps of a pair, steps of a launch.

    f is in doubt if ``doubt`` times the root of the sum of squares of all changes exceeds the
    violation.
    """

    tol: float
    max_iter: int
    most: int
    doubt: float


@jit(device=True)
def _number(key):
    """The float64 number that a key stands for."""
    return np.int64(key ^ ((key >> 63) & _HIGHEST)).view(np.float64)


@jit(device=True)
def _ends(beta, bound):
    """Whether beta may rise and may fall, as two bits."""
    rises = _RISES if beta < max(bound, 0.0) else 0
    return rises | (_FALLS if beta > min(bound, 0.0) else 0)


@jit
def select(wave, pairs, progress, rules):
    """Judge each pair of a wave; for a pair that goes on, choose the members of its next set.

    These are the newer half of the last set, then the samples of largest f that may rise, then the
    samples of smallest f that may fall; the first among equals.
    """
    keys = cuda.shared.array(WARPS, np.int64)
    places = cuda.shared.array(WARPS, np.int32)
    others = cuda.shared.array(WARPS, np.int64)
    p, first, T = wave[cuda.blockIdx.x], np.int64(cuda.threadIdx.x), np.int64(cuda.blockDim.x)
    if progress[p, STATE] != RUNNING:
        return
    begin, size = pairs.starts[p], np.int64(pairs.sizes[p])
    n = pairs.starts[p + 1] - begin
    top, bottom = _LOWEST, _LOWEST
    for k in range(first, n, T):
        f = pairs.f[begin + k]
        ends = _ends(pairs.beta[begin + k], pairs.bounds[begin + k])
        if not abs(f) < math.inf:
            top = _HIGHEST
        else:
            top = max(top, _key(f if ends & _RISES else -math.inf))
            bottom = max(bottom, ~_key(f if ends & _FALLS else math.inf))
    top, _, bottom = best_beside(keys, places, others, top, np.int32(0), bottom)
    violation = _number(top) - _number(~bottom)
    error = rules.doubt * math.sqrt(progress[p, SQUARES])
    state = RUNNING
    if top == _HIGHEST:
        state = NOT_FINITE
    elif error > max(violation, rules.tol):
        state = DOUBTED
    elif violation < rules.tol or progress[p, STUCK] != 0 or progress[p, STEPS] == rules.max_iter:
        state = ENDED
    cuda.syncthreads()
    if first == 0:
        progress[p, STATE], progress[p, VIOLATION] = state, violation
    if state != RUNNING:
        return
    if n <= size:
        for k in range(first, n, T):
            pairs.members[p, k] = k
        count = n
    else:
        # The newer half of the last set moves to the front; it is one longer than the older half
        # if their sum is odd.
        last = np.int64(pairs.counts[p])
        older = last // 2
        for k in range(first, older, T):
            pairs.members[p, k] = pairs.members[p, older + k]
        cuda.syncthreads()
        if first == 0 and last % 2:
            pairs.members[p, older] = pairs.members[p, last - 1]
        count = last - older
        half = (size - count) // 2
        for side in (_RISES, _FALLS):
            for k in range(first, n, T):
                ends = _ends(pairs.beta[begin + k], pairs.bounds[begin + k])
                key = _key(pairs.f[begin + k] + 0.0)
                key = key if side == _RISES else ~key
                pairs.keys[begin + k] = key if ends & side else _LOWEST
            cuda.syncthreads()
            for k in range(first, count, T):
                pairs.keys[begin + pairs.members[p, k]] = _LOWEST
            cuda.syncthreads()
            count = _take(pairs.keys[begin : begin + n], pairs.members[p], count, half)
    if first == 0:
        pairs.counts[p] = count


@jit(device=True)
def _take(keys, members, count, wanted):
    """Append the numbers of the ``wanted`` largest keys, but of none that is `_LOWEST`.

    Returns the new number of members.

    The smallest key to take is found digit by digit, eight bits each. Larger keys come first, then
    equal ones, each in ascending order of their numbers, so that the result does not depend on the
    timing of threads.
    """
    histogram = cuda.shared.array(256, np.int32)
    larger = cuda.shared.array(THREADS, np.int32)
    equal = cuda.shared.array(THREADS, np.int32)
    first, T, n = np.int64(cuda.threadIdx.x), np.int64(cuda.blockDim.x), np.int64(len(keys))
    least, left = np.int64(0), np.int64(wanted)
    for shift in range(56, -1, -8):
        for d in range(first, 256, T):
            histogram[d] = 0
        cuda.syncthreads()
        for k in range(first, n, T):
            key = keys[k] ^ _LOWEST
            if shift == 56 or (key ^ least) >> (shift + 8) == 0:
                cuda.atomic.add(histogram, (key >> shift) & 255, 1)
        cuda.syncthreads()
        digit = np.int64(255)
        while digit > 0 and histogram[digit] < left:
            left -= histogram[digit]
            digit -= 1
        least |= digit << shift
        cuda.syncthreads()
    ties = left if least != 0 else np.int64(0)
    least ^= _LOWEST
    begin, end = n * first // T, n * (first + 1) // T
    above, same = 0, 0
    for k in range(begin, end):
        above += keys[k] > least
        same += keys[k] == least
    larger[first], equal[first] = above, same
    cuda.syncthreads()
    above, same = np.int64(0), np.int64(0)
    for t in range(first):
        above += larger[t]
        same += equal[t]
    for k in range(begin, end):
        if keys[k] > least:
            members[count + above] = k
            above += 1
        elif keys[k] == least:
            if same < ties:
                members[count + wanted - left + same] = k
            same += 1
    cuda.syncthreads()
    return count + wanted - left + ties


@jit
def gather(wave, pairs, progress):
    """K between the members of each pair of a wave. Launched with any number of blocks per pair."""
    p, slot = wave[cuda.blockIdx.x], cuda.blockIdx.x
    if progress[p, STATE] != RUNNING:
        return
    begin, count = pairs.starts[p], np.int64(pairs.counts[p])
    for i in range(np.int64(cuda.blockIdx.y), count, cuda.gridDim.y):
        sample = pairs.samples[begin + pairs.members[p, i]]
        for k in range(np.int64(cuda.threadIdx.x), count, cuda.blockDim.x):
            column = pairs.samples[begin + pairs.members[p, k]]
            pairs.blocks[slot, i, k] = pairs.K[sample, column]
        if cuda.threadIdx.x == 0:
            pairs.diagonals[slot, i] = pairs.K[sample, sample]


@jit
def inner(wave, pairs, progress, rules):
    """Steps inside the sets of a wave; see :func:`gpurbf.svm._smo_kernels.solve_block`."""
    # The simulator identifies a shared array by its line.
    beta = cuda.shared.array(SIZE, np.float64)
    f = cuda.shared.array(SIZE, np.float64)
    ends = cuda.shared.array(SIZE, np.uint8)
    keys = cuda.shared.array((2, WARPS), np.int64)
    places = cuda.shared.array((2, WARPS), np.int32)
    others = cuda.shared.array(WARPS, np.int64)
    squares = cuda.shared.array(THREADS, np.float64)
    # Unsigned indices need no check whether they count from the end.
    first, T = np.uint32(cuda.threadIdx.x), np.uint32(cuda.blockDim.x)
    p, slot = wave[cuda.blockIdx.x], cuda.blockIdx.x
    if progress[p, STATE] != RUNNING:
        return
    begin, count = pairs.starts[p], np.uint32(pairs.counts[p])
    whole = pairs.starts[p + 1] - begin <= pairs.sizes[p]
    K, diagonal, members = pairs.blocks[slot], pairs.diagonals[slot], pairs.members[p]
    for k in range(first, count, T):
        at = begin + members[k]
        beta[k], f[k] = pairs.beta[at], pairs.f[at]
        ends[k] = _ends(beta[k], pairs.bounds[at])
    part = INNER_TOLERANCE if progress[p, ROUNDS] < CREEPING_SETS else CREEPING_TOLERANCE
    goal = rules.tol if whole else max(rules.tol, part * progress[p, VIOLATION])
    done = np.int64(progress[p, STEPS])
    most = min(np.int64(rules.most), np.int64(rules.max_iter) - done)
    steps = np.int64(0)
    # What other threads have written is read only after a barrier: the one in `best`.
    while True:
        key, place = _LOWEST, np.int32(-1)
        k = first
        while k < count:  # a range() would divide to count its steps
            there = _key(f[k] + (0.0 if ends[k] & _RISES else -math.inf))
            if there >= key:
                key, place = there, np.int32(k)
            k = np.uint32(k + T)
        _, place = best(keys[0], places[0], key, place)
        i = np.uint32(place)
        if not ends[i] & _RISES:
            break
        f_i, diagonal_i, row_i = f[i], diagonal[i], K[i]
        key, place, lowest = np.int64(0), np.int32(-1), _LOWEST
        k = first
        while k < count:
            value = f[k] + (0.0 if ends[k] & _FALLS else math.inf)
            lowest = max(lowest, ~_key(value))
            there = _gain(f_i - value, diagonal_i + diagonal[k] - 2.0 * np.float64(row_i[k]))
            if there > 0 and there >= key:
                key, place = there, np.int32(k)
            k = np.uint32(k + T)
        _, place, lowest = best_beside(keys[1], places[1], others, key, place, lowest)
        if f_i - _number(~lowest) < goal or place < 0 or steps >= most:
            break
        j = np.uint32(place)
        row_j = K[j]
        bound_i, bound_j = pairs.bounds[begin + members[i]], pairs.bounds[begin + members[j]]
        high, low = max(bound_i, 0.0), min(bound_j, 0.0)
        curvature = diagonal_i + diagonal[j] - 2.0 * np.float64(row_i[j])
        rise, fall = high - beta[i], beta[j] - low
        step = min((f_i - f[j]) / (curvature if curvature > 0.0 else TAU), rise, fall)
        at_i = high if step == rise else beta[i] + step
        at_j = low if step == fall else beta[j] - step
        if at_i == beta[i] and at_j == beta[j]:
            break
        steps += 1
        cuda.syncthreads()
        k = first
        while k < count:
            if k == i:
                beta[k], ends[k] = at_i, _ends(at_i, bound_i)
            elif k == j:
                beta[k], ends[k] = at_j, _ends(at_j, bound_j)
            f[k] -= product(step, np.float64(row_i[k]) - np.float64(row_j[k]))
            k = np.uint32(k + T)
    total = 0.0
    for k in range(first, count, T):
        at = begin + members[k]
        change = beta[k] - pairs.beta[at]
        pairs.changes[slot, k], pairs.beta[at] = change, beta[k]
        total += change * change
        if whole:
            pairs.f[at] = f[k]
    squares[first] = total
    cuda.syncthreads()
    if first == 0:
        total = progress[p, SQUARES]
        for t in range(T):
            total += squares[t]
        progress[p, SQUARES] = total
        progress[p, STEPS] = done + steps
        progress[p, ROUNDS] += 1
        progress[p, STUCK] = steps == 0


@jit
def update(wave, pairs, progress):
    """``f -= change @ K[members]`` of the pairs of a wave, in float64 and in the members' order.

    Launched with any number of blocks per pair. A pair that is its own set has its new f already.
    """
    first, T = np.int64(cuda.threadIdx.x), np.int64(cuda.blockDim.x)
    p, slot = wave[cuda.blockIdx.x], cuda.blockIdx.x
    begin, count = pairs.starts[p], np.int64(pairs.counts[p])
    n = pairs.starts[p + 1] - begin
    if progress[p, STATE] != RUNNING or n <= pairs.sizes[p]:
        return
    for k in range(cuda.blockIdx.y * T + first, n, cuda.gridDim.y * T):
        sample, total = pairs.samples[begin + k], 0.0
        for r in range(count):
            change = pairs.changes[slot, r]  # the same for all threads of a warp
            if change != 0.0:
                row = pairs.samples[begin + pairs.members[p, r]]
                total += change * pairs.K[row, sample]
        pairs.f[begin + k] -= total
