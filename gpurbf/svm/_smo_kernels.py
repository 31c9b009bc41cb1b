"""Sequential minimal optimization on a dense kernel block, and the update of f from rows of K.

The dual of a binary SVC in the variables ``beta_i = y_i alpha_i``: with ``f = y - K beta`` (minus
y times LIBSVM's gradient), maximize ``y·beta - beta·K beta / 2`` for ``sum(beta) = 0`` and
``low <= beta <= high``. A step moves `step` from one beta to another; it raises the objective as
long as f of the receiver (beta < high) exceeds f of the giver (beta > low).
"""

from typing import NamedTuple

import numpy as np

from gpurbf.runtime.jit.caching import cached, compiled, inner
from gpurbf.runtime.jit.llvm import (
    address,
    bits_as,
    call_at,
    copy_bytes,
    larger,
    moved,
    pointer,
    smaller,
    use_widest_vectors,
    words,
)
from gpurbf.runtime.stages import time_unlocked

# Minimum number of steps that a call may make (one per sample if that is more), and maximum number
# of kernel values that an uninterrupted call may read: about 20 ms.
MIN_STEPS_PER_CALL, MAX_VALUES_PER_CALL = 500, 50_000_000
# The inner loop ends when the violation is this part of what it was over all samples. A problem
# creeps along a valley if CREEPING_SETS sets do not solve it, or if its last set took
# CREEPING_STEPS_PER_MEMBER steps per member: then steps ahead help more than steps inside a set.
INNER_TOLERANCE, CREEPING_TOLERANCE = 0.05, 0.2
CREEPING_SETS, CREEPING_STEPS_PER_MEMBER = 32, 3
# LIBSVM's replacement for a curvature that is not positive (indefinite kernels, equal samples).
TAU = 1e-12
# The rounding of a coefficient, a sum of many steps, is at most this part of the largest one.
_ROUNDING = 2.0**-40
_STRIP = 64
COLUMNS = 2048

_HIGHEST, _NUMBER = 2**63 - 1, np.dtype(np.float64)

_short = cached(error_model="numpy")  # see `_working_set_kernels`
_inner = inner(error_model="numpy")


class RowWords(NamedTuple):
    """Where the rows of a kernel matrix K (n, n) are copied from, as 64-bit integers.

    A problem of few steps reads a fraction of its rows. If the classes of a pair are parts of a
    larger matrix, rows that are not read are not copied.
    """

    there: int  # address of bytes: whether each row is there
    source: int  # address of the matrix that K is a part of, and its size; 0: all rows are there
    n_source: int
    first: int  # `n_first` rows and columns from here on,
    n_first: int
    second: int  # and the others from here on
    n: int


# A pair in `begin_pairs`: from which number of 64 bits on it has results, and how many in all.
RESULTS_AT = len(RowWords._fields)
PAIR_WORDS = RESULTS_AT + 6


@_inner
def _row(K, rows, i):
    """A pointer to row i of K, which is copied first if it is not there."""
    n, head, there = rows.n, rows.n_first, pointer(rows.there, np.uint8)
    line = moved(K, i * n)
    if rows.n_source and not there[i]:
        there[i] = 1
        row = rows.first + i if i < head else rows.second + i - head
        of = moved(pointer(rows.source, K), row * rows.n_source)
        size = address(moved(line, 1)) - address(line)
        copy_bytes(address(line), address(moved(of, rows.first)), head * size)
        copy_bytes(address(moved(line, head)), address(moved(of, rows.second)), (n - head) * size)
    return line


@_inner
def _key(x):
    """An integer with the order of the float64 x: LLVM vectorizes the maximum of integers."""
    bits = bits_as(x, np.int64)
    return bits ^ ((bits >> 63) & np.int64(_HIGHEST))


@_inner
def _gain(difference, curvature):
    """Twice what the objective gains by a pair's best step, not negative, as an integer key."""
    difference = difference if difference > 0.0 else 0.0
    curvature = curvature if curvature > 0.0 else TAU
    return bits_as(difference * difference / curvature, np.int64)


@_inner
def _receiver(f, closed_up, n):
    """Last index of the largest f among those that may rise (``closed_up`` 0, not -inf)."""
    use_widest_vectors()
    best, strip, found = -np.inf, 0, -1
    for start in range(0, n, _STRIP):
        g, closed, top = moved(f, start), moved(closed_up, start), -np.inf
        for k in range(_STRIP if start + _STRIP < n else n - start):
            top = larger(top, g[k] + closed[k])
        if top >= best:
            best, strip = top, start
    # Its place in the strip, vectorized too: there is no unpredictable branch.
    g, closed = moved(f, strip), moved(closed_up, strip)
    for k in range(_STRIP if strip + _STRIP < n else n - strip):
        place = k if g[k] + closed[k] == best else -1
        found = place if place > found else found
    return strip + found if found >= 0 else -1


@_inner
def _giver(f, closed_down, n, row, diagonal, diagonal_i, f_i):
    """Last index of the largest gain against f_i, and the smallest f, of those that may fall."""
    use_widest_vectors()
    best, strip, smallest, found = np.int64(0), -1, np.inf, -1
    for start in range(0, n, _STRIP):
        g, closed = moved(f, start), moved(closed_down, start)
        r, d = moved(row, start), moved(diagonal, start)
        top, least = np.int64(0), np.inf
        for k in range(_STRIP if start + _STRIP < n else n - start):
            value = g[k] + closed[k]
            least = smaller(least, value)
            gain = _gain(f_i - value, diagonal_i + d[k] - 2.0 * r[k])
            top = gain if gain > top else top
        smallest = least if least < smallest else smallest
        if top >= best and top > 0:
            best, strip = top, start
    if strip < 0:
        return -1, smallest
    g, closed = moved(f, strip), moved(closed_down, strip)
    r, d = moved(row, strip), moved(diagonal, strip)
    for k in range(_STRIP if strip + _STRIP < n else n - strip):
        gain = _gain(f_i - (g[k] + closed[k]), diagonal_i + d[k] - 2.0 * r[k])
        place = k if gain == best else -1
        found = place if place > found else found
    return strip + found if found >= 0 else -1, smallest


def _steps(K, given, numbers, goal, max_steps, about):
    """See `solve_block`; ``given`` is the address of the `RowWords`."""
    use_widest_vectors()
    rows = words(given, RowWords)
    n = rows.n
    diagonal, low, high = numbers, moved(numbers, n), moved(numbers, 2 * n)
    beta, f = moved(numbers, 3 * n), moved(numbers, 4 * n)
    up, down = moved(numbers, 5 * n), moved(numbers, 6 * n)
    for k in range(n):
        up[k] = 0.0 if beta[k] < high[k] else -np.inf
        down[k] = 0.0 if beta[k] > low[k] else np.inf
    steps, violation, stuck = 0, np.inf, False
    while True:
        i = _receiver(f, up, n)
        if i < 0 or not beta[i] < high[i]:
            violation = -np.inf
            break
        f_i, row_i = f[i], _row(K, rows, i)
        j, smallest = _giver(f, down, n, row_i, diagonal, diagonal[i], f_i)
        violation = f_i - smallest
        if violation < goal or j < 0 or steps >= max_steps:
            break
        curvature = diagonal[i] + diagonal[j] - 2.0 * row_i[j]
        # The best step within the bounds: whoever comes to its bound is exactly there.
        step = (f_i - f[j]) / (curvature if curvature > 0.0 else TAU)
        rise, fall = high[i] - beta[i], beta[j] - low[j]
        least = rise if rise < fall else fall
        step = step if step < least else least
        at_i = high[i] if step == rise else beta[i] + step
        at_j = low[j] if step == fall else beta[j] - step
        stuck = at_i == beta[i] and at_j == beta[j]
        if stuck:
            break
        beta[i], beta[j] = at_i, at_j
        steps += 1
        for k in (i, j):  # a step may be lost to rounding in one of them, which is at a bound then
            up[k] = 0.0 if beta[k] < high[k] else -np.inf
            down[k] = 0.0 if beta[k] > low[k] else np.inf
        row_j = _row(K, rows, j)
        for k in range(n):
            f[k] -= step * (np.float64(row_i[k]) - np.float64(row_j[k]))
    for k in range(n):
        violation = violation if np.isfinite(f[k]) else np.nan
    about[0], about[1], about[2] = steps, violation, stuck


def steps_of(dtype):
    """The C function of the steps, for kernel values of a dtype."""
    return compiled(_steps, (dtype, None, _NUMBER, float, None, _NUMBER))


def solve_block(rows, numbers, goal, max_steps):
    """Step until the violation is below `goal`, in LIBSVM's order of choice (Fan et al. 2005).

    Parameters
    ----------
    rows : tuple
        Kernel between the samples of the block, see `pair_kernel.rows_of`.
    numbers : float64 array of shape (7 or more, n)
        Diagonal of the kernel, low, high, beta, f, and two rows of scratch. Beta and f are updated
        in place, so that a call goes on where the last one ended.
    goal : float
    max_steps : int

    Returns
    -------
    steps : int
    violation : float
        ``max f (may rise) - min f (may fall)`` at the end, minus infinity if no sample may rise,
        not a number if an f is not finite.
    stuck : bool
        Whether the best step is too small for the floating-point numbers at hand.
    """
    about = np.empty(3)
    given = (array.ctypes.data for array in (*rows[:2], numbers))
    time_unlocked(steps_of(rows[0].dtype).ctypes)(*given, goal, max_steps, about.ctypes.data)
    steps, violation, stuck = about.tolist()
    return int(steps), violation, bool(stuck)


@cached(nogil=True, error_model="numpy")
def begin_pairs(n_pairs, pairs, part, diagonal, C, numbers, step, goal, limits):
    """The first steps of pairs of classes in a ready matrix, all of them if those are enough.

    Arrays are passed as addresses.

    Parameters
    ----------
    n_pairs : int
    pairs : array of shape (pairs, PAIR_WORDS)
        The `RowWords` of each pair, which is all of its source if there is nothing to copy. Behind
        them it becomes, in float64, steps, violation and whether the pair is stuck, see
        `solve_block`, and the summary of `kkt_summary`.
    part : array of shape (largest n, largest n)
        Scratch, of the dtype of the matrix; it is not used for a pair that is all of it.
    diagonal, C : float64 array of shape (N,)
        Diagonal of the matrix; upper bounds of alpha.
    numbers : float64 array of shape (7 Σ n,)
        Becomes the numbers (7, n) of each pair, see `solve_block`, one after the other.
    step : int
        Address of the function that makes steps.
    goal : float
        See `solve_block`.
    limits : (least, most)
        A pair makes at most min(max(least, n), most) steps.
    """
    diagonal, C = pointer(diagonal, np.float64), pointer(C, np.float64)
    own, (least, most) = pointer(numbers, np.float64), limits
    for p in range(n_pairs):
        rows = pairs + 8 * PAIR_WORDS * p
        pair, about = words(rows, RowWords), pointer(rows + 8 * RESULTS_AT, np.float64)
        there, n, n_first = pointer(pair.there, np.uint8), pair.n, pair.n_first
        low, high = moved(own, n), moved(own, 2 * n)
        beta, f = moved(own, 3 * n), moved(own, 4 * n)
        for k in range(n):
            there[k], beta[k] = 0, 0.0
            i = pair.first + k if k < n_first else pair.second + k - n_first
            own[k] = diagonal[i]
            low[k], high[k], f[k] = (0.0, C[i], 1.0) if k < n_first else (-C[i], 0.0, -1.0)
        K = part if pair.n_source else pair.source
        limit = least if least > n else n
        limit = limit if limit < most else most
        call_at(step, K, rows, address(own), goal, limit, address(about))
        about[3], about[4], about[5] = _summary(own, n)
        own = moved(own, 7 * n)


def _subtract(rows, apart, slots, count, change, f, begin, end):
    """``f[k] -= Σ_r change[r] rows[slots[r], k]`` for k from begin to end, four rows at a time.

    Of ``count`` rows, ``apart`` numbers apart. A strip of f stays in the first cache meanwhile.
    """
    use_widest_vectors()
    for start in range(begin, end, COLUMNS):
        g, strip, size = moved(f, start), moved(rows, start), min(COLUMNS, end - start)
        for r in range(0, count - 3, 4):
            a, b, c, d = change[r], change[r + 1], change[r + 2], change[r + 3]
            A, B = moved(strip, slots[r] * apart), moved(strip, slots[r + 1] * apart)
            C, D = moved(strip, slots[r + 2] * apart), moved(strip, slots[r + 3] * apart)
            for k in range(size):
                g[k] -= (a * A[k] + b * B[k]) + (c * C[k] + d * D[k])
        for r in range(count - count % 4, count):
            a, A = change[r], moved(strip, slots[r] * apart)
            for k in range(size):
                g[k] -= a * A[k]


def subtraction_of(dtype):
    """The C function that subtracts rows of a dtype from f."""
    return compiled(_subtract, (dtype, None, np.dtype(np.intp), None, _NUMBER, _NUMBER, None, None))


@_short
def kkt_violation(numbers):
    """Write f of samples that may rise (else -inf) and of those that may fall (else inf).

    They become rows 5 and 6 of the numbers, see `solve_block`. Returns the violation, which is not
    a number if an f is not finite.
    """
    low, high, beta, f = numbers[1], numbers[2], numbers[3], numbers[4]
    up, down = numbers[5], numbers[6]
    top, bottom = -np.inf, np.inf
    for k in range(len(f)):
        if not np.isfinite(f[k]):
            return np.nan
        up[k] = f[k] if beta[k] < high[k] else -np.inf
        down[k] = f[k] if beta[k] > low[k] else np.inf
        top, bottom = max(top, up[k]), min(bottom, down[k])
    return top - bottom


@_short
def objective_gain(before, after):
    """Twice the gain of the objective between points (2, n) of beta and f; the move's square."""
    gain, square, total, level, size = 0.0, 0.0, 0.0, 0.0, 0.0
    for k in range(before.shape[1]):
        move, f = after[0, k] - before[0, k], before[1, k] + after[1, k]
        gain += move * f
        square += move * move
        total += move
        level += abs(move) * f
        size += abs(move)
    # Less a constant in f: a total that is rounding is no gain.
    return (gain - level / size * total if size > 0.0 else 0.0), square


@_inner
def _summary(numbers, n):
    """See `kkt_summary`; the numbers are a pointer."""
    low, high = moved(numbers, n), moved(numbers, 2 * n)
    beta, f = moved(numbers, 3 * n), moved(numbers, 4 * n)
    total, n_free, top, bottom = 0.0, 0, -np.inf, np.inf
    product_y, product_f, largest = 0.0, 0.0, 0.0
    for k in range(n):
        largest = larger(largest, abs(beta[k]))
    # A coefficient that is nearer to a bound than its rounding is at the bound.
    rounding = _ROUNDING * largest
    for k in range(n):
        first, alpha = high[k] > 0.0, abs(beta[k])
        product_y += alpha
        product_f += beta[k] * f[k]
        more, less = alpha < high[k] - low[k] - rounding, alpha > rounding
        if more and less:
            total += f[k]
            n_free += 1
        # Beta rises by more alpha in class +1, by less alpha in class -1.
        if more if first else less:
            top = f[k] if f[k] > top else top
        if less if first else more:
            bottom = f[k] if f[k] < bottom else bottom
    intercept = total / n_free if n_free else (top + bottom) / 2
    loss = 0.0
    for k in range(n):
        hinge = f[k] - intercept if high[k] > 0.0 else intercept - f[k]
        if hinge > 0:
            loss += (high[k] - low[k]) * hinge
    objective = -(product_y + product_f) / 2
    return intercept, objective, (product_y - product_f) / 2 + loss + objective


@_short
def kkt_summary(numbers):
    """Intercept, objective and duality gap of a binary problem (see `solve_block`).

    The intercept is LIBSVM's: the mean over free samples, or without them the middle of the allowed
    interval. The output without it is y - f, so the hinge loss is max(0, y (f - intercept)). One of
    the bounds is 0: ``high`` in class -1, ``low`` in class +1.
    """
    return _summary(pointer(address(numbers), numbers), numbers.shape[1])
