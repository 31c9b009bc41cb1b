"""Decomposition for SVC's solver: working sets, places of kernel rows in memory, extrapolation.

Functions that take some microseconds, less than a thread takes to wake up, keep the GIL (`_short`):
without it, two pairs of classes side by side would wait for each other more often than they work
here. A set is chosen without the GIL, in one call.
"""

from typing import NamedTuple

import numpy as np

from gpurbf.runtime.jit.caching import cached, inner
from gpurbf.runtime.jit.llvm import transpose4, use_widest_vectors
from gpurbf.svm import _smo_kernels

_LOWEST, _HIGHEST = -(2**63), 2**63 - 1
# A change so many times shorter than the way to a plane's top has lost its direction to rounding:
# f would no longer be that of beta, nor would the sum of beta be 0. (Up to 30 times were seen.)
_MAX_AHEAD = 1000.0
# The sum of beta may change by this part of the sum of magnitudes in a step ahead.
_SUM_ROUNDING = 2.0**-46
_TILE = 16  # 32 rows of 2 KiB would evict each other from the first-level cache

_key = _smo_kernels._key  # an integer ordered as a float64 is
_compiled = cached(nogil=True, error_model="numpy")
_short = cached(error_model="numpy")
_inner = inner(error_model="numpy")


@inner()
def _largest(keys, n, out):
    """Write the places of the n largest keys, without `_LOWEST`, equals in order; their number."""
    use_widest_vectors()
    low, high, positive = np.int64(_HIGHEST), np.int64(_LOWEST), 0
    for k in range(len(keys)):
        there = keys[k] > _LOWEST
        positive += there
        high = max(high, keys[k])
        low = min(low, keys[k] if there else np.int64(_HIGHEST))
    n = min(n, positive)
    if n == 0:
        return 0
    # The n-th largest, by bisection: counting is done in vectors.
    while low < high:
        middle = (low | high) - ((low ^ high) >> 1)  # their mean, rounded up, without overflow
        count = 0
        for k in range(len(keys)):
            count += keys[k] >= middle
        if count >= n:
            low = middle
        else:
            high = middle - 1
        if count == n:
            break
    above = 0
    for k in range(len(keys)):
        above += keys[k] > low
    equal, found = n - above, 0
    for k in range(len(keys)):
        if keys[k] > low or (keys[k] == low and equal > 0):
            equal -= keys[k] == low
            out[found] = k
            found += 1
    return n


@_inner
def _worst(up, down, kept, n):
    """Places of the n largest of `up`, then of the n smallest of `down`, without kept places.

    Infinite numbers, -inf in `up` and inf in `down`, are left out.
    """
    use_widest_vectors()
    keys, found = np.empty(len(up), np.int64), np.empty(2 * n, np.intp)
    for k in range(len(up)):
        keys[k] = _key(up[k]) if up[k] > -np.inf else np.int64(_LOWEST)
    for k in kept:
        keys[k] = _LOWEST
    rising = _largest(keys, n, found)
    for k in range(len(down)):
        keys[k] = ~_key(down[k]) if down[k] < np.inf else np.int64(_LOWEST)
    for k in kept:
        keys[k] = _LOWEST
    for k in found[:rising]:
        keys[k] = _LOWEST
    falling = _largest(keys, n, found[rising:])
    return found[: rising + falling]


@_short
def beginning(samples, n_a, diagonal, bounds):
    """The numbers of a pair before its first step, in rows; ``n_a`` samples are +1.

    They are those of `_smo_kernels.solve_block`: diagonal, low, high, beta, f, and two rows of
    scratch. Six more have room for three points of beta and f (`binary.TwoStep`).
    """
    numbers = np.empty((13, len(samples)))
    for k in range(len(samples)):
        i = samples[k]
        numbers[0, k], numbers[3, k], numbers[4, k] = diagonal[i], 0.0, 1.0 if k < n_a else -1.0
        numbers[1, k], numbers[2, k] = (0.0, bounds[i]) if k < n_a else (-bounds[i], 0.0)
    return numbers


@_compiled
def next_set(numbers, previous, last, size, goal):
    """The working set after the previous one: its newer half, and the worst of all others.

    Keeping half stops the sets from alternating: each would undo what the last one solved. The
    newer half stays where it is, and new members take the place of the older half.

    Parameters
    ----------
    numbers : float64 array of shape (7 or more, n)
        Of all samples of the pair, see `beginning`.
    previous : intp array
        The members of the last set.
    last : bool
        Whether its newer half is at the end.
    size : int
        Maximum number of members.
    goal : float
        No set is chosen if the violation is below this.

    Returns
    -------
    violation : float
        Of all samples; not a number if an f is not finite.
    members : intp array
    begin, end : int
        Members from begin to end are not from the previous set.
    inside : float64 array of shape (7, len(members))
        Their numbers.
    """
    up, down = numbers[5], numbers[6]
    violation = _smo_kernels.kkt_violation(numbers)
    if not violation >= goal:
        return violation, np.empty(0, np.intp), 0, 0, np.empty((7, 0))
    half = len(previous) // 2
    kept = previous[half:] if last else previous[:half]
    others = _worst(up, down, kept, (size - len(kept)) // 2)
    begin = 0 if last else len(kept)
    end = begin + len(others)
    members = np.empty(len(kept) + len(others), np.intp)
    # Assigning slices would compile error messages for shapes, which takes longer than all else.
    for k in range(len(others)):
        members[begin + k] = others[k]
    for k in range(len(kept)):
        members[(end if last else 0) + k] = kept[k]
    inside = np.empty((7, len(members)))
    for row in range(5):
        for k in range(len(members)):
            inside[row, k] = numbers[row, members[k]]
    return violation, members, begin, end, inside


@_short
def remember(point, beta, f):
    """Copy beta and f into the point (2, n)."""
    use_widest_vectors()
    for k in range(len(beta)):
        point[0, k], point[1, k] = beta[k], f[k]


@_compiled
def mirror_rows(K, begin, end, first, last):
    """Write columns begin … end of rows first … last of K (n, n), copied from rows begin … end.

    Written tile by tile, so that both sides stay in the first cache.
    """
    word, address, stride = K[0, :0], K.ctypes.data, K.strides[0]
    for top in range(first, last, _TILE):
        for left in range(begin, end, _TILE):
            bottom, right = min(top + _TILE, last), min(left + _TILE, end)
            if (bottom - top) % 4 or (right - left) % 4:
                for i in range(top, bottom):
                    for j in range(left, right):
                        K[i, j] = K[j, i]
                continue
            for i in range(top, bottom, 4):
                for j in range(left, right, 4):
                    source = address + j * stride + i * K.itemsize
                    target = address + i * stride + j * K.itemsize
                    transpose4(word, source, stride, target, stride)


@_short
def scatter(members, inside, beta):
    """Write beta of the members; returns those that change, their changes, the sum of squares."""
    changed, change, n = np.empty_like(members), np.empty_like(inside), 0
    squares = 0.0
    for k in range(len(members)):
        i = members[k]
        changed[n], change[n] = i, inside[k] - beta[i]
        squares += change[n] * change[n]
        n += inside[k] != beta[i]
        beta[i] = inside[k]
    return changed[:n], change[:n], squares


class Slots(NamedTuple):
    """Rows of K in memory: see `row_cache.RowCache`."""

    row: np.ndarray  # of each slot its row in memory,
    owner: np.ndarray  # its member or -1,
    used: np.ndarray  # and when that was asked for last
    slot_of: np.ndarray  # of each member its slot or -1, with room for the largest pair
    counts: np.ndarray  # the time of the last request, vacant slots, all slots


@_short
def pair_slots(own, before, n_own, start):
    """Begin the next pair: the class's ``n_own`` members are now from `start` on.

    They were from `before` on. Slots of other members become vacant.
    """
    for k in range(len(own.slot_of)):
        own.slot_of[k] = -1
    for s in range(own.counts[2]):
        k = own.owner[s] - before
        if 0 <= k < n_own:
            own.owner[s] = start + k
            own.slot_of[start + k] = s
        elif k >= -before:
            own.owner[s] = own.used[s] = -1
            own.counts[1] += 1


@_short
def slots_wanted(members, own):
    """How many slots (`Slots`) are missing for the members' rows, if none is to be evicted."""
    absent = 0
    for i in members:
        absent += own.slot_of[i] < 0
    return max(0, absent - own.counts[1])


@_short
def place(members, samples, own):
    """Find rows in memory for the members, or for the first of them if there are too few slots.

    Members without a slot get vacant slots first (time of last use -1), then the longest unused.
    Returns the row in memory of each of these members; and of those whose values are not there
    yet, their samples and rows.
    """
    row, owner, used, slot_of, counts = own
    counts[0] += 1
    clock, filled = counts[0], counts[2]
    if filled < len(members):  # sums are of four rows at a time
        members = members[: max(1, filled // 4 * 4)]
    slots, n = slot_of[members], 0
    for s in slots:
        if s < 0:
            n += 1
        else:
            used[s] = clock
    where, missing, keys = np.empty(n, np.intp), np.empty(n, np.intp), np.empty(filled, np.int64)
    for s in range(filled):
        keys[s] = ~used[s]
    _largest(keys, n, where)
    for s in where:
        if owner[s] >= 0:
            slot_of[owner[s]] = -1
    found = 0
    for k in range(len(members)):
        s = slots[k]
        if s < 0:
            s = where[found]
            owner[s], used[s], slot_of[members[k]] = members[k], clock, s
            missing[found], where[found] = samples[members[k]], row[s]
            found += 1
        slots[k] = row[s]
    counts[1] = max(0, counts[1] - n)
    return slots, missing, where


@_short
def look_ahead(new, old, oldest, low, high, ridge, point, back):
    """Find the best point, within the bounds, of the plane through three (2, n) of beta and f.

    It is written to `point`. Samples beyond their bounds are put back to them, by `back`, which f
    of the point does not include. Returns how many were put back, and how much larger the sum of
    beta is than that of `new`, 0 if by little; -1 if no point is better than `new`.
    """
    use_widest_vectors()
    first, second = _plane_factors(new, old, oldest, ridge)
    if first == 0 and second == 0:
        return -1, 0.0
    left, size, count = 0.0, 0.0, 0
    for k in range(new.shape[1]):
        b, g = new[0, k], new[1, k]
        wanted = b + first * (b - old[0, k])
        wanted += second * (old[0, k] - oldest[0, k])
        reached = min(max(wanted, low[k]), high[k])
        point[0, k], back[k] = reached, reached - wanted
        left += reached - b
        size += abs(reached)
        count += back[k] != 0
        point[1, k] = g + first * (g - old[1, k]) + second * (old[1, k] - oldest[1, k])
    # Each step ahead multiplies what rounding has made of the sums of the points.
    return count, left if abs(left) > _SUM_ROUNDING * size else 0.0


@_inner
def _plane_factors(new, old, oldest, ridge):
    """How far to go along the last two changes to the top of their plane; 0, 0 if there is none."""
    use_widest_vectors()
    aa, ab, bb, a, b = 0.0, 0.0, 0.0, 0.0, 0.0
    sum_a, sum_b, level, size = 0.0, 0.0, 0.0, 0.0
    for k in range(new.shape[1]):
        f = new[1, k]
        change_a, change_b = new[0, k] - old[0, k], old[0, k] - oldest[0, k]
        effect_a, effect_b = f - old[1, k], old[1, k] - oldest[1, k]
        aa -= change_a * effect_a
        ab -= (change_a * effect_b + change_b * effect_a) / 2
        bb -= change_b * effect_b
        a += change_a * f
        b += change_b * f
        sum_a += change_a
        sum_b += change_b
        moved = abs(change_a) + abs(change_b)
        level += moved * f
        size += moved
    # Less a constant in f, which changes of no sum do not see; sums of rounding would be a way up.
    a -= level / size * sum_a
    b -= level / size * sum_b
    if not (aa > 0 and bb > 0):
        return 0.0, 0.0
    cosine = ab / np.sqrt(aa * bb)
    a, b = a / np.sqrt(aa), b / np.sqrt(bb)
    determinant = (1 + ridge) ** 2 - cosine**2
    if not determinant > 0:
        return 0.0, 0.0
    first = ((1 + ridge) * a - cosine * b) / determinant / np.sqrt(aa)
    second = ((1 + ridge) * b - cosine * a) / determinant / np.sqrt(bb)
    if max(abs(first), abs(second)) > _MAX_AHEAD:
        return 0.0, 0.0
    return first, second
