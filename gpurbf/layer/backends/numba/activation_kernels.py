"""Profiles on a buffer in cache, and the one pass that turns a product tile into activations."""

import numpy as np

from gpurbf.layer.activation import ROOT, SQUARE, SQUARED, form, in_tile
from gpurbf.layer.backends.numba.scalar_math import exp_negative, log_positive, tanh
from gpurbf.runtime.jit.caching import cached, compiled
from gpurbf.runtime.jit.llvm import (
    address,
    call_at,
    clear_bytes,
    copy_bytes,
    keep_alive,
    moved,
    number_of,
    pointer,
    use_widest_vectors,
    words,
)

_CHUNK = 2048  # elements a pass: both buffers stay in L1
_TINY = tuple(float(np.finfo(dtype).tiny) for dtype in (np.float32, np.float64))


def gaussian(v, count, gamma, coef0, degree):
    """exp(-gamma s), s = d²."""
    use_widest_vectors()
    g = number_of(v, gamma)
    for i in range(count):
        v[i] = exp_negative(-g * v[i])


def triangular(v, count, gamma, coef0, degree):
    """max(0, 1 - gamma d)."""
    use_widest_vectors()
    g, zero, one = number_of(v, gamma), number_of(v, 0), number_of(v, 1)
    for i in range(count):
        t = one - g * v[i]
        v[i] = zero if t < zero else t


def multiquadric(v, count, gamma, coef0, degree):
    """sqrt(1 + gamma d²)."""
    use_widest_vectors()
    g, one = number_of(v, gamma), number_of(v, 1)
    for i in range(count):
        v[i] = np.sqrt(one + g * v[i])


def inverse_multiquadric(v, count, gamma, coef0, degree):
    """1 / sqrt(1 + gamma d²)."""
    use_widest_vectors()
    g, one = number_of(v, gamma), number_of(v, 1)
    for i in range(count):
        v[i] = one / np.sqrt(one + g * v[i])


def thin_plate(v, count, gamma, coef0, degree):
    """s log(s) / 2 with s = gamma d²; 0 where s is below the smallest normal number."""
    use_widest_vectors()
    g, half, zero = number_of(v, gamma), number_of(v, 0.5), number_of(v, 0)
    tiny = number_of(v, _TINY[1])
    if tiny == 0:  # it is 0 in float32
        tiny = number_of(v, _TINY[0])
    for i in range(count):
        s = g * v[i]
        t = half * s * log_positive(tiny if s < tiny else s)
        v[i] = zero if s < tiny else t


def poly(v, count, gamma, coef0, degree):
    """(gamma t + coef0)^degree by repeated squaring of whole buffers."""
    use_widest_vectors()
    g, c, one = number_of(v, gamma), number_of(v, coef0), number_of(v, 1)
    memory = np.empty(count)  # of the larger dtype
    power = pointer(memory.ctypes.data, v)
    for i in range(count):
        power[i] = g * v[i] + c
        v[i] = one
    while degree > 0:
        if degree & 1:
            for i in range(count):
                v[i] *= power[i]
        for i in range(count):
            power[i] *= power[i]
        degree >>= 1
    keep_alive(memory)


def sigmoid(v, count, gamma, coef0, degree):
    """tanh(gamma t + coef0)."""
    use_widest_vectors()
    g, c = number_of(v, gamma), number_of(v, coef0)
    for i in range(count):
        v[i] = tanh(g * v[i] + c)


def root(v, count):
    """Distances from their squares."""
    use_widest_vectors()
    for i in range(count):
        v[i] = np.sqrt(v[i])


def squared(v, count):
    """Squares of distances."""
    use_widest_vectors()
    for i in range(count):
        v[i] *= v[i]


# The loop of each profile of `layer.activation.FORMULAS`; None: there is nothing to do.
LOOPS = {
    "gaussian": gaussian,
    "laplacian": gaussian,
    "triangular": triangular,
    "multiquadric": multiquadric,
    "inverse-multiquadric": inverse_multiquadric,
    "thin-plate": thin_plate,
    "linear": None,
    "poly": poly,
    "sigmoid": sigmoid,
}


def finish(rule, P, row_terms, terms, H, n, count):
    """Turn products into activations: distances or dot products, root or square, the profile.

    A distance or dot product is scale · (row + terms + p), with - 2 p for + p if ``doubled``, where
    the sum is at least 0 if ``clamped``. ``rule`` is the address of `rule_words`, which gives the
    strides of the n rows of ``count`` products and of the rows of H. The rest of a row of H is set
    to zero.
    """
    use_widest_vectors()
    apart, h_apart, clamped, doubled, profile, degree, change = words(rule, _WORDS)
    scalars = pointer(rule + 8 * _WORDS, np.float64)
    scale, low = number_of(H, scalars[0]), number_of(H, 0)
    if not clamped:
        low = number_of(H, -np.inf)
    for r in range(n):
        row, p, h = row_terms[r], moved(P, r * apart), moved(H, r * h_apart)
        if doubled:  # two additions are faster than an integer multiplication
            for j in range(count):
                v = number_of(terms, p[j] + p[j])
                t = number_of(h, number_of(terms, number_of(terms, row + terms[j]) - v))
                h[j] = scale * (low if low > t else t)
        else:
            for j in range(count):
                v = number_of(terms, p[j])
                t = number_of(h, number_of(terms, number_of(terms, row + terms[j]) + v))
                h[j] = scale * (low if low > t else t)
        if change != 0:
            call_at(change, address(h), count)
        if count < h_apart:
            if profile != 0:
                call_at(profile, address(h), count, scalars[1], scalars[2], degree)
            clear_bytes(address(moved(h, count)), address(moved(h, h_apart - count)) - address(h))
    if profile != 0 and count == h_apart:
        call_at(profile, address(H), n * count, scalars[1], scalars[2], degree)


_WORDS = 7


def rule_words(activation, alpha, factor, dtype, apart):
    """From products to activations of dtype, as `finish` takes it; see `distance.Terms` and `unit`.

    Rows of products are ``apart`` numbers apart, and so are those of H, at most _CHUNK.
    """
    a, rule = activation, np.empty(_WORDS + 3, np.intp)
    profile, how, change = profile_address(in_tile(a), dtype), form(a), 0
    if how in (ROOT, SQUARE):  # which few activations have: compiled for them alone
        function = root if how == ROOT else squared
        change = compiled(function, (np.dtype(dtype), None)).address
    clamped = how in (SQUARED, ROOT)
    rule[:_WORDS] = apart, min(apart, _CHUNK), clamped, alpha == -2, profile, a.degree, change
    rule[_WORDS:].view(np.float64)[:] = factor, a.gamma, a.coef0
    return rule


def finish_address(products, terms, dtype):
    """Address of `finish` for products, terms and activations of these dtypes."""
    return compiled(finish, (None, products, terms, terms, dtype, None, None), True).address


def profile_address(name, dtype):
    """Address of the profile `name` for buffers of dtype float32 or float64; 0: nothing to do."""
    loop, dtypes = LOOPS[name], (np.dtype(dtype), None, float, float, None)
    return 0 if loop is None else compiled(loop, dtypes, True).address


def epilogue_rows(begin, end, P, row_terms, column_terms, rule, out):
    """Rows begin … end of the activations `out` from products P, which may be the same array.

    P (N, m) of int32, float32 or float64 and out (N, m) of float32 or float64 are C-contiguous; the
    terms (N,) and (m,) have one dtype, int32, int64, float32 or float64.
    """
    m = P.shape[1]
    memory = np.empty(min(m, _CHUNK), out.dtype)
    function = finish_address(P.dtype, row_terms.dtype, out.dtype)
    arrays = tuple(a.ctypes.data for a in (rule, P, row_terms, column_terms, out, memory))
    sizes = P.itemsize, row_terms.itemsize, out.itemsize
    _epilogue_rows(begin, end, m, function, arrays, sizes)


@cached(nogil=True)
def _epilogue_rows(begin, end, m, function, arrays, sizes):
    rule, P, row_terms, terms, out, memory = arrays
    product, term, number = sizes
    # `out` may be the memory of P, and LLVM makes no vector loop that reads and writes the same
    # memory through two arrays; hence a buffer between them.
    for i in range(begin, end):
        for left in range(0, m, _CHUNK):
            n, at = min(_CHUNK, m - left), i * m + left
            call_at(
                function, rule, P + at * product, row_terms + i * term, terms + left * term,
                memory, 1, n,
            )  # fmt: skip
            copy_bytes(out + at * number, memory, n * number)
