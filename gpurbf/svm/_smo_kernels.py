"""Sequential minimal optimization on a dense kernel block, and the update of all from its rows.

The dual of a binary SVC in the variables ``beta_i = y_i alpha_i``: with ``f = y - K beta`` (minus
y times LIBSVM's gradient), maximize ``y·beta - beta·K beta / 2`` for ``sum(beta) = 0`` and
``low <= beta <= high``. A step moves `step` from one beta to another; it raises the objective as
long as f of the receiver (beta < high) exceeds f of the giver (beta > low).
"""

from typing import NamedTuple

import numpy as np

from gpurbf.runtime.jit.caching import cached, inner
from gpurbf.runtime.jit.gil_spin import begin_kernel, end_kernel
from gpurbf.runtime.jit.llvm import (
    copy_bytes,
    keep_alive,
    larger,
    smaller,
    use_widest_vectors,
    without_refcount,
)

# What LIBSVM takes for a curvature that is not positive (indefinite kernels, equal samples).
TAU = 1e-12
_STRIP = 64
COLUMNS = 2048

_LOWEST, _HIGHEST = -(2**63), 2**63 - 1

_compiled = cached(nogil=True, error_model="numpy")
_short = cached(error_model="numpy")  # see `_working_set_kernels`
_inner = inner(error_model="numpy")


class Rows(NamedTuple):
    """K of a block (n, n), of whose rows some may not be there yet.

    A problem of few steps reads a fraction of its rows: the others of a pair whose classes are
    parts of a larger matrix are not copied.
    """

    K: np.ndarray
    there: np.ndarray  # uint8, of each row; empty: all are
    source: np.ndarray  # the matrix that it is a part of:
    first: int  # `n_first` rows and columns from here on,
    n_first: int
    second: int  # and the others from here on


@_inner
def _row(rows, i):
    """Row i, copied before if it is not there."""
    rows = Rows(*rows)
    K = rows.K
    if len(rows.there) and not rows.there[i]:
        rows.there[i] = 1
        row = rows.first + i if i < rows.n_first else rows.second + i - rows.n_first
        given = rows.source.ctypes.data + row * rows.source.strides[0]
        target = K.ctypes.data + i * K.strides[0]
        size, head = K.itemsize, rows.n_first * K.itemsize
        copy_bytes(target, given + rows.first * size, head)
        copy_bytes(target + head, given + rows.second * size, K.strides[0] - head)
    return K[i]


@_inner
def _key(x):
    """An integer ordered as the float64 x is: LLVM finds the largest of those in vectors."""
    bits = np.float64(x).view(np.int64)
    return bits ^ ((bits >> 63) & np.int64(_HIGHEST))


@_inner
def _gain(difference, curvature):
    """Twice what the objective gains by a pair's best step, not negative, as an integer key."""
    difference = difference if difference > 0.0 else 0.0
    curvature = curvature if curvature > 0.0 else TAU
    return np.float64(difference * difference / curvature).view(np.int64)


@_inner
def _receiver(f, closed_up):
    """Last index of the largest f among those that may rise (``closed_up`` 0, not -inf)."""
    use_widest_vectors()
    n = len(f)
    best, strip, found = -np.inf, 0, np.int64(-1)
    for start in range(0, n, _STRIP):
        # Slices, because an index that LLVM believes may be negative stops it from using vectors.
        g, closed = f[start : start + _STRIP], closed_up[start : start + _STRIP]
        top = -np.inf
        for k in range(len(g)):
            top = larger(top, g[k] + closed[k])
        if top >= best:
            best, strip = top, start
    # Its place in the strip, in vectors too: no branch that nobody can predict.
    g, closed = f[strip : strip + _STRIP], closed_up[strip : strip + _STRIP]
    for k in range(len(g)):
        found = max(found, np.int64(k) if g[k] + closed[k] == best else np.int64(-1))
    return strip + found if found >= 0 else -1


@_inner
def _giver(f, closed_down, row, diagonal, diagonal_i, f_i):
    """Last index of the largest gain against f_i, and the smallest f, of those that may fall."""
    use_widest_vectors()
    n = len(f)
    best, strip = np.int64(0), -1
    smallest = np.inf
    for start in range(0, n, _STRIP):
        part = slice(start, start + _STRIP)
        g, closed, r, d = f[part], closed_down[part], row[part], diagonal[part]
        top, least = np.int64(0), np.inf
        for k in range(len(g)):
            value = g[k] + closed[k]
            least = smaller(least, value)
            top = max(top, _gain(f_i - value, diagonal_i + d[k] - 2.0 * r[k]))
        smallest = min(smallest, least)
        if top >= best and top > 0:
            best, strip = top, start
    found = np.int64(-1)
    if strip >= 0:
        part = slice(strip, strip + _STRIP)
        g, closed, r, d = f[part], closed_down[part], row[part], diagonal[part]
        for k in range(len(g)):
            gain = _gain(f_i - (g[k] + closed[k]), diagonal_i + d[k] - 2.0 * r[k])
            found = max(found, np.int64(k) if gain == best else np.int64(-1))
    return strip + found if found >= 0 else -1, smallest


@_compiled
def _moved(beta_i, beta_j, high_i, low_j, difference, curvature):
    """Beta of receiver and giver after their best step within the bounds, and that step."""
    step = difference / (curvature if curvature > 0.0 else TAU)
    rise, fall = high_i - beta_i, beta_j - low_j
    if step < rise and step < fall:
        return beta_i + step, beta_j - step, step
    if rise <= fall:
        return high_i, (low_j if rise == fall else beta_j - rise), rise
    return beta_i + fall, low_j, fall


@_inner
def _steps(rows, diagonal, low, high, beta, f, closed, goal, max_steps):
    """The steps of `solve_block`; `closed` (2, n) is scratch."""
    use_widest_vectors()
    n, closed_up, closed_down = len(f), closed[0], closed[1]
    for k in range(n):
        closed_up[k] = 0.0 if beta[k] < high[k] else -np.inf
        closed_down[k] = 0.0 if beta[k] > low[k] else np.inf
    steps, violation = 0, np.inf
    while True:
        i = _receiver(f, closed_up)
        if i < 0 or not beta[i] < high[i]:
            return steps, -np.inf, False
        f_i = f[i]
        row_i = _row(rows, i)
        j, smallest = _giver(f, closed_down, row_i, diagonal, diagonal[i], f_i)
        violation = f_i - smallest
        if violation < goal or j < 0:
            return steps, violation, False
        if steps >= max_steps:
            return steps, violation, False
        curvature = diagonal[i] + diagonal[j] - 2.0 * row_i[j]
        at_i, at_j, step = _moved(beta[i], beta[j], high[i], low[j], f_i - f[j], curvature)
        if at_i == beta[i] and at_j == beta[j]:
            return steps, violation, True
        beta[i], beta[j] = at_i, at_j
        steps += 1
        for k in (i, j):  # a step may be lost to rounding in one of them, which is at a bound then
            closed_up[k] = 0.0 if beta[k] < high[k] else -np.inf
            closed_down[k] = 0.0 if beta[k] > low[k] else np.inf
        row_j = _row(rows, j)
        for k in range(n):
            f[k] -= step * (np.float64(row_i[k]) - np.float64(row_j[k]))


@_inner
def _finite(f):
    """Whether all numbers are finite."""
    finite = True
    for k in range(len(f)):
        finite &= np.isfinite(f[k])
    return finite


@_compiled
def solve_block(rows, diagonal, low, high, beta, f, goal, max_steps):
    """Step until the violation is below `goal`, in LIBSVM's order of choice (Fan et al. 2005).

    Parameters
    ----------
    rows : plain tuple of a `Rows`
        Kernel between the samples of the block.
    diagonal, low, high : float64 array of shape (n,)
        Of the kernel; bounds of beta.
    beta, f : float64 array of shape (n,)
        Updated in place, so that a call goes on where the last one ended.
    goal : float
    max_steps : int

    Returns
    -------
    steps : int
    violation : float
        ``max f (may rise) - min f (may fall)`` at the end, infinite if no step could be judged, not
        a number if an f is not finite.
    stuck : bool
        Whether the best step is too small for the floating-point numbers at hand.
    """
    use_widest_vectors()
    begin_kernel()
    n = len(f)
    closed, rows = np.empty((2, n)), Rows(*rows)
    rows = (
        without_refcount(rows.K), without_refcount(rows.there), without_refcount(rows.source),
        rows.first, rows.n_first, rows.second,
    )  # fmt: skip
    steps, violation, stuck = _steps(
        rows, without_refcount(diagonal), without_refcount(low), without_refcount(high),
        without_refcount(beta),
        without_refcount(f), without_refcount(closed), goal, max_steps,
    )  # fmt: skip
    keep_alive(closed)
    violation = violation if _finite(f) else np.nan
    end_kernel()
    return steps, violation, stuck


@_inner
def _begin(rows, diagonal, C, n_first, goal, max_steps):
    """See `begin_pair`; arrays that are there until the caller returns."""
    n = len(C)
    ends, points, closed = np.empty((3, n)), np.empty((2, n)), np.empty((2, n))
    for k in range(n):
        y = 1.0 if k < n_first else -1.0
        ends[0, k], ends[1, k], ends[2, k] = min(y * C[k], 0.0), max(y * C[k], 0.0), y
        points[0, k], points[1, k] = 0.0, y
    own, point, scratch = without_refcount(ends), without_refcount(points), without_refcount(closed)
    rows = (
        without_refcount(rows.K), without_refcount(rows.there), without_refcount(rows.source),
        rows.first, rows.n_first, rows.second,
    )  # fmt: skip
    steps, violation, stuck = _steps(
        rows, diagonal, own[0], own[1], point[0], point[1], scratch, goal, max_steps
    )
    about = kkt_summary(point[0], point[1], own[2], C)
    violation = violation if _finite(point[1]) else np.nan
    keep_alive(ends)
    keep_alive(closed)
    return steps, violation, stuck, points, about


@_compiled
def begin_pair(K, first, n_first, second, n_second, diagonal, C, goal, max_steps):
    """The first steps of a pair of classes in a ready matrix, all of them if those are enough.

    Parameters
    ----------
    K : array of shape (N, N)
    first, n_first, second, n_second : int
        Where the classes begin in it, and their samples.
    diagonal, C : float64 array of shape (N,)
        Of K; upper bounds of alpha.
    goal, max_steps
        See `solve_block`.

    Returns
    -------
    steps, violation, stuck
        See `solve_block`; the violation is not a number if an f is not finite.
    points : float64 array of shape (2, n_first + n_second)
        Beta and f.
    about : tuple of float
        See `kkt_summary`.
    """
    n = n_first + n_second
    own = np.empty((2, n))
    for k in range(n):
        i = first + k if k < n_first else second + k - n_first
        own[0, k], own[1, k] = diagonal[i], C[i]
    values = without_refcount(own)
    there = np.zeros(n if n < len(K) else 0, np.uint8)
    if n == len(K):
        result = _begin(Rows(K, there, K, 0, 0, 0), values[0], values[1], n_first, goal, max_steps)
    else:
        part = np.empty((n, n), K.dtype)
        rows = Rows(part, there, K, first, n_first, second)
        result = _begin(rows, values[0], values[1], n_first, goal, max_steps)
        keep_alive(part)
    keep_alive(there)
    keep_alive(own)
    return result


@_inner
def subtract(rows, first, slots, change, f, begin, end):
    """``f[k] -= change @ rows[slots, first + k]`` for k from begin to end, four rows at a time.

    A strip of f stays in the first cache while the rows pass by.
    """
    use_widest_vectors()
    rows, slots, f, count = (
        without_refcount(rows),
        without_refcount(slots),
        without_refcount(f),
        len(slots),
    )
    for start in range(begin, end, COLUMNS):
        stop = min(start + COLUMNS, end)
        g = f[start:stop]
        columns = slice(first + start, first + stop)
        for r in range(0, count - 3, 4):
            a, b, c, d = change[r], change[r + 1], change[r + 2], change[r + 3]
            A, B = rows[slots[r], columns], rows[slots[r + 1], columns]
            C, D = rows[slots[r + 2], columns], rows[slots[r + 3], columns]
            for k in range(stop - start):
                g[k] -= (a * A[k] + b * B[k]) + (c * C[k] + d * D[k])
        for r in range(count - count % 4, count):
            a, A = change[r], rows[slots[r], columns]
            for k in range(stop - start):
                g[k] -= a * A[k]


@_compiled
def subtract_rows(rows, first, slots, change, f, begin, end):
    """See `subtract`."""
    begin_kernel()
    subtract(rows, first, slots, change, f, begin, end)
    end_kernel()


@_short
def kkt_violation(beta, low, high, f, up, down):
    """f of those that may rise (else -inf) and of those that may fall (inf); the violation.

    It is not a number if an f is not finite.
    """
    use_widest_vectors()
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
    """Twice what the objective gains between points (2, n) of beta and f; the move's square."""
    gain, square = 0.0, 0.0
    for k in range(before.shape[1]):
        move = after[0, k] - before[0, k]
        gain += move * (before[1, k] + after[1, k])
        square += move * move
    return gain, square


@_compiled
def kkt_summary(beta, f, y, C):
    """Intercept, objective and duality gap of a binary problem with the upper bounds C.

    The intercept is LIBSVM's: the mean over free samples, else the middle of what is allowed. The
    output without it is y - f, so the hinge loss is max(0, y (f - intercept)).
    """
    total, n_free, top, bottom = 0.0, 0, -np.inf, np.inf
    product_y, product_f = 0.0, 0.0
    for k in range(len(f)):
        product_y += beta[k] * y[k]
        product_f += beta[k] * f[k]
        alpha = beta[k] * y[k]
        if 0 < alpha < C[k]:
            total += f[k]
            n_free += 1
        # Both classes may rise towards their own side: +1 by more alpha, -1 by less.
        if (alpha < C[k]) if y[k] > 0 else (alpha > 0):
            top = max(top, f[k])
        if (alpha > 0) if y[k] > 0 else (alpha < C[k]):
            bottom = min(bottom, f[k])
    intercept = total / n_free if n_free else (top + bottom) / 2
    loss = 0.0
    for k in range(len(f)):
        hinge = y[k] * (f[k] - intercept)
        if hinge > 0:
            loss += C[k] * hinge
    objective = -(product_y + product_f) / 2
    return intercept, objective, (product_y - product_f) / 2 + loss + objective
