"""A symmetric matrix made tridiagonal by Householder's reflectors, by a thread and a helper.

The leader goes through the columns. What a column asks of all rows that are left, a product with a
vector, is cut into two parts of the same area, the first for the leader and the second for the
helper, and both for whoever is there alone. So who is put aside by the system is waited for only
with a part in hand, and others at work on the machine cost the time that they take. The parts, and
so all bits, are the same with and without a helper. More threads than two would wait for each
other's numbers.
"""

from typing import Any, NamedTuple

import numpy as np

from gpurbf.layer.backends.numba.microkernels import LANES
from gpurbf.layer.backends.numba.packing import aligned_like
from gpurbf.runtime.jit.caching import cached, inner
from gpurbf.runtime.jit.llvm import (
    call_product,
    exchange,
    look,
    pause,
    put,
    use_widest_vectors,
    without_refcount,
)

PANEL = 8  # reflectors that are subtracted from the matrix at a time, when it is read anyway
PARTS = 2
# What the threads share, each on a cache line of its own: the parts that are free (the first times
# 256, and the last), how many the helper has done, and the column that it is about with whether
# reflectors are to be subtracted.
_FREE, _DONE, _COLUMN, _PENDING = 0, 8, 16, 17
STATE = 24
_OVER = -1
# How often a helper looks for a part in vain before it goes: a tenth of a second.
_PATIENCE = 1 << 22


class Shared(NamedTuple):
    """What both threads work on: A of m rows and columns, with zeros beyond, and room.

    ``kernel`` is a micro-kernel for HᵀH in float64, ``pending`` and ``turned`` are reflectors in
    panels (·, 2 PANEL, LANES), v and w of each by turns and w and v, ``x`` (·,) is the vector that
    is multiplied and ``Y`` (PARTS, ·) what parts give.
    """

    A: Any
    m: int
    kernel: Any
    state: Any
    pending: Any
    turned: Any
    x: Any
    Y: Any


@inner()
def _boundary(part, base, m):
    """The row where a part of the rows from `base` on begins: parts have the same area."""
    rows = (m - base) * np.sqrt(part / PARTS)
    return min(base + int(rows + LANES - 1) // LANES * LANES, m)


@inner()
def _subtract(A, i, left, width, tile):
    """A[i:, left:] -= tile."""
    use_widest_vectors()
    for r in range(len(tile)):
        line, product = without_refcount(A)[i + r, left : left + width], without_refcount(tile)[r]
        for j in range(line.size):
            line[j] -= product[j]


@inner(fastmath={"reassoc", "contract"})
def _four(a, b, c, d, x, y, at, of, own):
    """Add to `own` the products of four rows with x, and to y those with the four numbers of x."""
    use_widest_vectors()
    p, q, r, s = x[at], x[at + 1], x[at + 2], x[at + 3]
    t, u, v, w = 0.0, 0.0, 0.0, 0.0
    for j in range(a.size):
        e, f, g, h, z = a[j], b[j], c[j], d[j], of[j]
        t += e * z
        u += f * z
        v += g * z
        w += h * z
        y[j] += p * e + q * f + r * g + s * h
    own[0] += t
    own[1] += u
    own[2] += v
    own[3] += w


@inner()
def _products(A, i, base, x, y):
    """y += A x for four rows of the lower triangle, from column `base` on, and their transposes."""
    A, x, y = without_refcount(A), without_refcount(x), without_refcount(y)
    _four(
        A[i, base:i], A[i + 1, base:i], A[i + 2, base:i], A[i + 3, base:i],
        x, y[base:i], i, x[base:i], y[i : i + 4],
    )  # fmt: skip
    for k in range(i, i + 4):
        y[k] += A[k, k] * x[k]
        for j in range(i, k):
            y[k] += A[k, j] * x[j]
            y[j] += A[k, j] * x[k]


@inner()
def _tile(A, kernel):
    """Room for the product of a micro-kernel."""
    width = kernel.strip * LANES
    return aligned_like(A, kernel.rows * width).reshape(kernel.rows, width)


@inner()
def _step(rows):
    """Rows of the matrix that reflectors are subtracted from at a time: at least four."""
    return max(4, rows)


@inner()
def _part(part, shared, tile):
    """A part of A x, in its row of Y; A less the pending reflectors before, if there are any."""
    A, m, kernel, state, pending, turned, x, Y = shared
    base = state[_COLUMN] // LANES * LANES
    begin, end = _boundary(part, base, m), _boundary(part + 1, base, m)
    y = without_refcount(Y)[part]
    y[base:end] = 0
    size = LANES * 8
    stride = pending.shape[1] * size
    width = kernel.strip * LANES
    for i in range(begin, end, 4):
        if state[_PENDING] and i % _step(kernel.rows) == 0:
            for k in range(i, i + _step(kernel.rows), kernel.rows):
                for left in range(base // width * width, k + kernel.rows, width):
                    call_product(
                        kernel.address,
                        turned.ctypes.data + k // LANES * stride + k % LANES * 8,
                        pending.ctypes.data + left // LANES * stride,
                        stride, pending.shape[1], tile.ctypes.data, width * 8,
                    )  # fmt: skip
                    _subtract(A, k, left, min(width, A.shape[1] - left), tile)
        _products(A, i, base, x, y)


@inner()
def _take(state, mine):
    """A free part, the first or the last of them; _OVER if there is none."""
    while True:
        free = look(state, _FREE)
        first, last = free >> 8, free & 255
        if free < 0 or first >= last:
            return _OVER
        rest = free + 256 if mine else free - 1
        if exchange(state, _FREE, free, rest):
            return first if mine else last - 1


@cached(nogil=True)
def help_out(shared):
    """Take parts until there will be no more."""
    tile, state = _tile(shared.A, shared.kernel), shared.state
    looks = 0
    while looks < _PATIENCE and look(state, _FREE) != _OVER:
        part = _take(state, False)
        if part == _OVER:
            looks += 1
            pause()
            continue
        looks = 0
        _part(part, shared, tile)
        put(state, _DONE, look(state, _DONE) + 1)


@inner(fastmath={"reassoc", "contract"})
def _less(a, v, w, p, q):
    """a - p v - q w, in its place."""
    use_widest_vectors()
    for j in range(a.size):
        a[j] -= p * v[j] + q * w[j]


@inner(fastmath={"reassoc", "contract"})
def _forms(v, w, x):
    """v·x and w·x."""
    use_widest_vectors()
    p, q = 0.0, 0.0
    for j in range(x.size):
        p += v[j] * x[j]
        q += w[j] * x[j]
    return p, q


@inner()
def _column(a, reflectors, n, k):
    """a, column k from row k on, less what n reflectors say of it."""
    for i in range(0, 2 * n, 2):
        v, w = without_refcount(reflectors)[i, k:], without_refcount(reflectors)[i + 1, k:]
        _less(a, v, w, w[0], v[0])


@inner(fastmath={"reassoc", "contract"})
def _reflector(a):
    """v of the reflector that leaves of a only the first number, in its place; that and τ."""
    use_widest_vectors()
    alpha, squares = a[0], 0.0
    rest = without_refcount(a)[1:]
    for j in range(rest.size):
        squares += rest[j] * rest[j]
    a[0] = 1
    if squares == 0:
        a[:] = 0
        return alpha, 0.0
    beta = -np.copysign(np.sqrt(alpha * alpha + squares), alpha)
    scale = 1 / (alpha - beta)
    for j in range(rest.size):
        rest[j] *= scale
    return beta, (beta - alpha) / beta


@inner()
def _add(a, b):
    """a += b, as far as that goes."""
    use_widest_vectors()
    for j in range(b.size):
        a[j] += b[j]


@inner(fastmath={"reassoc", "contract"})
def _finish(reflectors, n, v, w, tau, first):
    """w of A v: that less what n reflectors say of it, times τ, less what v has of it."""
    use_widest_vectors()
    for i in range(0, 2 * n, 2):
        p, q = without_refcount(reflectors)[i, first:], without_refcount(reflectors)[i + 1, first:]
        of_v, of_w = _forms(p, q, v)
        _less(w, p, q, of_w, of_v)
    product = 0.0
    for j in range(v.size):
        w[j] *= tau
        product += w[j] * v[j]
    product *= -0.5 * tau
    for j in range(v.size):
        w[j] += product * v[j]


@inner()
def _repack(reflectors, pending, turned):
    """Reflectors in panels, as both operands of a product of tiles: v and w, and w and v."""
    for p in range(len(pending)):
        for i in range(2 * PANEL):
            for j in range(LANES):
                pending[p, i, j] = reflectors[i, p * LANES + j]
                turned[p, i ^ 1, j] = reflectors[i, p * LANES + j]


@cached(nogil=True)
def lead(shared, diagonal, beside, taus):
    """Make A tridiagonal, of which only the lower triangle is read.

    T goes to `diagonal` and `beside`, and the reflector k, which is I - taus[k] v vᵀ, to row k of
    A: v with a 1 in place k + 1 and zeros before, or all of it zero if there is nothing to reflect.
    """
    A, m, _, state, pending, turned, x, Y = shared
    tile = _tile(A, shared.kernel)
    reflectors = np.zeros((2 * PANEL, len(A)))
    columns, vectors = np.empty((PANEL, m)), np.zeros((LANES, len(A)))
    for k in range(m):
        n, base = k % PANEL, (k + 1) // LANES * LANES
        if n == 0:
            for i in range(k, m):
                for c in range(min(PANEL, m - k)):
                    columns[c, i] = A[i, k + c]
            if k:
                _repack(reflectors, pending, turned)
                for c in range(min(PANEL, m - k)):
                    _column(columns[c, k + c :], reflectors, PANEL, k + c)
                reflectors[:] = 0
        a = columns[n, k:]
        _column(a, reflectors, n, k)
        diagonal[k] = a[0]
        if k < m - 1:
            v = a[1:]
            beside[k], taus[k] = _reflector(v)
            x[: k + 1] = 0
            x[k + 1 : m] = v
            state[_COLUMN], state[_PENDING] = k + 1, k > 0 and n == 0
            put(state, _DONE, 0)
            put(state, _FREE, PARTS)
            parts, part = 0, _take(state, True)
            while part != _OVER:
                _part(part, shared, tile)
                parts, part = parts + 1, _take(state, True)
            vectors[k % LANES, : k + 1] = 0
            vectors[k % LANES, k + 1 : m] = v
            while look(state, _DONE) + parts < PARTS:
                pause()
            w = reflectors[2 * n + 1, k + 1 : m]
            w[:] = 0
            for part in range(PARTS):
                end = _boundary(part + 1, base, m)
                if end > k + 1:
                    _add(w, Y[part, k + 1 : end])
            _finish(reflectors, n, v, w, taus[k], k + 1)
            reflectors[2 * n, k + 1 : m] = v
        if k % LANES == LANES - 1 or k == m - 1:
            for i in range(k // LANES * LANES, k + 1):
                A[i] = vectors[i % LANES]
    put(state, _FREE, _OVER)


@cached(nogil=True)
def reflect(V, first, left, right, kernel):
    """V (·, LANES) -= R (Lᵀ V) from row `first` on; L and R in panels of their columns and rows.

    `left` (·, rows, LANES) are those of L's columns, `right` (·, columns, LANES) of R's rows, with
    zeros beyond them. `kernel` is a micro-kernel of one panel a call.
    """
    n = right.shape[1]
    P, tile = aligned_like(V, n * LANES).reshape(n, LANES), _tile(V, kernel)
    size = LANES * 8
    for i in range(0, n, kernel.rows):
        x = left.ctypes.data + (i // LANES * left.shape[1] * LANES + i % LANES) * 8
        v = V.ctypes.data + first * size
        call_product(kernel.address, x, v, 0, left.shape[1], P.ctypes.data + i * size, size)
    for j in range(0, len(right) * LANES, kernel.rows):
        x = right.ctypes.data + (j // LANES * n * LANES + j % LANES) * 8
        call_product(kernel.address, x, P.ctypes.data, 0, n, tile.ctypes.data, size)
        _subtract(V, first + j, 0, LANES, tile)
