"""Conjugate gradients on the free samples of a kernel block, where single steps would creep.

Restricted to the samples between their bounds, the dual that `_smo_kernels` solves is a quadratic
function on the plane of constant sum. Where steps of two samples take thousands, conjugate
gradients take tens, each a product with the kernel between free samples. Samples that reach a bound
stay there, and the iteration restarts with the rest, as in Moré and Toraldo, "On the solution of
large quadratic programming problems with bound constraints", SIAM Journal on Optimization 1, 1991;
there projected gradients free samples again, here steps of two samples do.
"""

import numpy as np

from gpurbf.runtime.jit.caching import cached, inner
from gpurbf.runtime.jit.llvm import (
    address,
    call_at,
    keep_alive,
    larger,
    pointer,
    smaller,
    use_widest_vectors,
    without_refcount,
    words,
)
from gpurbf.svm._smo_kernels import RowWords, _row

# The kernel between free samples is gathered again when less than this part of them is free.
_MIN_FREE_PART = 0.75

_inner = inner(error_model="numpy")
_summing = inner(error_model="numpy", fastmath={"reassoc", "contract"})


@_summing
def _product(a, b):
    """a · b."""
    use_widest_vectors()
    total = 0.0
    for k in range(len(a)):
        total += a[k] * b[k]
    return total


@_inner
def _gradient(f, free, left, out):
    """Write the gradient in the plane: f of the free samples minus its mean; its largest part."""
    use_widest_vectors()
    # f is large compared with its differences between free samples, and others may be far from
    # these: rounding of its mean would add up in the betas.
    base, largest = f[np.argmax(free)], 0.0
    for k in range(len(f)):
        out[k] = f[k] - base
    mean = _product(out, free) / left
    for k in range(len(f)):
        out[k] = free[k] * (out[k] - mean)
        largest = larger(largest, abs(out[k]))
    return largest


@_inner
def _room(beta, low, high, direction, out):
    """Write how far each beta may go along the direction; returns the minimum."""
    use_widest_vectors()
    least = np.inf
    for k in range(len(beta)):
        way = direction[k]
        bound = high[k] if way > 0.0 else low[k]
        out[k] = (bound - beta[k]) / way if way != 0.0 else np.inf
        least = smaller(least, out[k])
    return least


@_inner
def _go(step, beta, f, low, high, free, direction, effect, room):
    """Make the step, hold the samples that reached a bound, and return how many are still free."""
    use_widest_vectors()
    for k in range(len(beta)):
        way = direction[k]
        bound = high[k] if way > 0.0 else low[k]
        reached = smaller(larger(beta[k] + step * way, low[k]), high[k])
        beta[k] = bound if room[k] <= step else reached
        f[k] += step * effect[k]
    for k in range(len(beta)):
        inside = (low[k] < beta[k]) & (beta[k] < high[k])
        free[k] = 1.0 if inside else 0.0
    return _product(free, free)


@_inner
def _ascend(K, places, minus, state, goal, most):
    """Conjugate gradients until few samples are free or none can go on; True if few are free."""
    # Not unpacked at once: that would give arrays of any stride, which are not vectorized.
    beta, low, high = state[0], state[1], state[2]
    f, free, gradient = state[3], state[4], state[5]
    direction, effect, room = state[6], state[7], state[8]
    n = len(beta)
    left, steps, before = float(n), 0, 0.0
    while left >= _MIN_FREE_PART * n and left > 2.0:
        if 2.0 * _gradient(f, free, left, gradient) < goal or steps == most:
            return steps, False
        square = _product(gradient, gradient)
        factor = square / before if before > 0.0 else 0.0
        for k in range(n):
            direction[k] = gradient[k] + factor * direction[k]
            effect[k] = 0.0
        before = square
        call_at(minus, address(K), n, address(places), n, address(direction), address(effect), 0, n)
        slope, curvature = _product(gradient, direction), -_product(direction, effect)
        best = slope / curvature if curvature > 0.0 else np.inf
        step = min(best, _room(beta, low, high, direction, room))
        if not 0.0 < slope < np.inf or not step < np.inf:
            return steps, False
        steps += 1
        now = _go(step, beta, f, low, high, free, direction, effect, room)
        if now < left:
            left, before = now, 0.0
    return steps, left > 2.0


@cached(nogil=True, error_model="numpy")
def solve_free(K, given, minus, numbers, goal, most, values):
    """Move the free samples, while they stay free, to where their f differ by less than `goal`.

    Parameters
    ----------
    K, given : array of shape (n, n), int
        Kernel between the samples of the block, and the address of its `RowWords`.
    minus : int
        Address of the function that subtracts rows of K's dtype.
    numbers : float64 array of shape (7 or more, n)
        See `_smo_kernels.solve_block`; beta and f are updated in place.
    goal : float
    most : int
        Maximum number of steps along conjugate directions.
    values : int
        Maximum number of kernel values that they read. No step is made if as many steps as there
        are free samples might read more.

    Returns
    -------
    steps : int
    read : int
        Number of kernel values.
    """
    use_widest_vectors()
    low, high, beta, f = numbers[1], numbers[2], numbers[3], numbers[4]
    n, steps, read, again = len(f), 0, 0, True
    members, places, rows = np.empty(n, np.intp), np.empty(n, np.intp), words(given, RowWords)
    while again:
        m = 0
        for k in range(n):
            places[k] = members[m] = k
            m += low[k] < beta[k] < high[k]
        if m < 3 or m**3 > values - read:
            break
        free, state = np.empty((m, m), K.dtype), np.zeros((9, m))
        for i in range(m):
            row = _row(pointer(address(K), K), rows, members[i])
            for j in range(m):
                free[i, j] = row[members[j]]
            k = members[i]
            state[0, i], state[1, i], state[2, i] = beta[k], low[k], high[k]
            state[3, i], state[4, i] = f[k], 1.0
        limit = min(most - steps, (values - read) // (m * m))
        done, again = _ascend(free, places, minus, without_refcount(state), goal, limit)
        steps += done
        read += (done + 1) * m * m + m * n
        change = state[6]
        for i in range(m):  # array expressions would compile error messages for 1.5 s
            change[i] = state[0, i] - beta[members[i]]
            beta[members[i]] = state[0, i]
        call_at(minus, address(K), n, address(members), m, address(change), address(f), 0, n)
        keep_alive(state)
    return steps, read
