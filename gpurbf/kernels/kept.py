"""Products with rows of H that are kept: as 16-bit multiples of a step, or as numbers.

Few vectors, as a solver has them, leave little to do for each number of H: four rows are made
floats, some columns at a time, and meet all vectors while they are in the first cache.
"""

import numpy as np

from gpurbf.kernels.caching import cached, inner
from gpurbf.kernels.llvm import use_widest_vectors
from gpurbf.kernels.packing import aligned_like

LARGEST = 32767
_COLUMNS = 512


@cached(nogil=True, error_model="numpy")
def round_rows(begin, end, H, shift, step, Q):
    """Write the nearest multiples of the step to rows begin … end of H - shift, Q of them in int16.

    Rows of Q are as long as, or shorter than, those of H. The largest multiple there was, NaN where
    one is.
    """
    use_widest_vectors()
    real = H.dtype.type
    factor, largest = real(1 / step), real(0)
    for i in range(begin, end):
        h, q = H[i], Q[i]
        beyond = real(0)
        for j in range(q.size):
            v = (h[j] - shift[j]) * factor
            beyond = max(beyond, abs(v)) if v == v else real(np.inf)
            q[j] = np.int16(np.rint(min(max(v, real(-LARGEST)), real(LARGEST))))
        largest = max(largest, beyond)
    return largest


@inner()
def _lines(like, n):
    """Scratch for n lines that start on cache lines of their own, not 4 KiB apart."""
    stride = _COLUMNS + 64 // like.itemsize
    return aligned_like(like, n * stride).reshape(n, stride)


@inner(error_model="numpy")
def _widen(Q, top, rows, left, wide, n):
    """The first n columns of `wide` (4, ·): rows of Q as floats, zeros for what lacks of four."""
    for r in range(rows):
        q, line = Q[top + r, left : left + n], wide[r]
        for j in range(n):
            line[j] = wide.dtype.type(q[j])
    wide[rows:] = 0


@cached(nogil=True, fastmath={"reassoc", "contract"}, error_model="numpy")
def add_times(begin, end, Q, V, S):
    """Add rows begin … end of Q Vᵀ to those of S (N, k), for Q (N, m) and V (k, m)."""
    use_widest_vectors()
    wide, vectors = _lines(V, 4), _lines(V, V.shape[0])
    a, b, c, d = wide[0], wide[1], wide[2], wide[3]
    sums = np.zeros(4, V.dtype)
    for left in range(0, Q.shape[1], _COLUMNS):
        n = min(_COLUMNS, Q.shape[1] - left)
        vectors[:, :n] = V[:, left : left + n]
        for i in range(begin, end, 4):
            rows = min(4, end - i)
            _widen(Q, i, rows, left, wide, n)
            for o in range(V.shape[0]):
                s = t = u = w = V.dtype.type(0)
                v = vectors[o, :n]
                for j in range(v.size):
                    s += a[j] * v[j]
                    t += b[j] * v[j]
                    u += c[j] * v[j]
                    w += d[j] * v[j]
                sums[0], sums[1], sums[2], sums[3] = s, t, u, w
                for r in range(rows):
                    S[i + r, o] += sums[r]


@cached(nogil=True, fastmath={"reassoc", "contract"}, error_model="numpy")
def add_transposed(begin, end, Q, U, Z):
    """Add Uᵀ Q to columns begin … end of Z (k, m), for Q (N, m) and U (N, k)."""
    use_widest_vectors()
    wide, totals = _lines(U, 4), _lines(U, U.shape[1])
    a, b, c, d = wide[0], wide[1], wide[2], wide[3]
    factors = np.zeros((4, U.shape[1]), U.dtype)
    for left in range(begin, end, _COLUMNS):
        n = min(_COLUMNS, end - left)
        totals[:] = 0
        for i in range(0, Q.shape[0], 4):
            rows = min(4, Q.shape[0] - i)
            _widen(Q, i, rows, left, wide, n)
            factors[:rows] = U[i : i + rows]
            factors[rows:] = 0
            for o in range(U.shape[1]):
                s, t, u, w = factors[0, o], factors[1, o], factors[2, o], factors[3, o]
                z = totals[o, :n]
                for j in range(z.size):
                    z[j] += s * a[j] + t * b[j] + u * c[j] + w * d[j]
        Z[:, left : left + n] += totals[:, :n]


@cached(nogil=True, fastmath={"reassoc", "contract"}, error_model="numpy")
def add_squares(begin, end, Q, sums):
    """Add the squares of rows begin … end of Q to their sums (N,)."""
    use_widest_vectors()
    for i in range(begin, end):
        total, q = 0.0, Q[i]
        for j in range(q.size):
            v = np.float64(q[j])
            total += v * v
        sums[i] += total
