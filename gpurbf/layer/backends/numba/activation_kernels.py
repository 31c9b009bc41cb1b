"""Profiles on a buffer in cache, and the one pass that turns a product tile into activations."""

import numpy as np
from numba import carray, types

from gpurbf.layer.activation import DOT, ROOT, SQUARE
from gpurbf.layer.backends.numba.scalar_math import exp_negative, log_positive, tanh
from gpurbf.runtime.jit.caching import cached, cached_cfunc, inner
from gpurbf.runtime.jit.llvm import call_profile, use_widest_vectors
from gpurbf.runtime.once import once

CHUNK = 2048  # elements a pass: both buffers stay in L1


def gaussian(buffer, count, gamma, coef0, degree):
    """exp(-gamma s), s = d²."""
    use_widest_vectors()
    v = carray(buffer, count)
    g = v.dtype.type(gamma)
    for i in range(count):
        v[i] = exp_negative(-g * v[i])


def triangular(buffer, count, gamma, coef0, degree):
    """max(0, 1 - gamma d)."""
    use_widest_vectors()
    v = carray(buffer, count)
    g, zero, one = v.dtype.type(gamma), v.dtype.type(0), v.dtype.type(1)
    for i in range(count):
        t = one - g * v[i]
        v[i] = zero if t < zero else t


def multiquadric(buffer, count, gamma, coef0, degree):
    """sqrt(1 + gamma d²)."""
    use_widest_vectors()
    v = carray(buffer, count)
    g, one = v.dtype.type(gamma), v.dtype.type(1)
    for i in range(count):
        v[i] = np.sqrt(one + g * v[i])


def inverse_multiquadric(buffer, count, gamma, coef0, degree):
    """1 / sqrt(1 + gamma d²)."""
    use_widest_vectors()
    v = carray(buffer, count)
    g, one = v.dtype.type(gamma), v.dtype.type(1)
    for i in range(count):
        v[i] = one / np.sqrt(one + g * v[i])


def thin_plate(buffer, count, gamma, coef0, degree):
    """s log(s) / 2 with s = gamma d²; 0 where s is below the smallest normal number."""
    use_widest_vectors()
    v = carray(buffer, count)
    g, half, zero = v.dtype.type(gamma), v.dtype.type(0.5), v.dtype.type(0)
    tiny = np.finfo(v.dtype).tiny
    for i in range(count):
        s = g * v[i]
        t = half * s * log_positive(tiny if s < tiny else s)
        v[i] = zero if s < tiny else t


def linear(buffer, count, gamma, coef0, degree):
    """The dot product itself."""


def poly(buffer, count, gamma, coef0, degree):
    """(gamma t + coef0)^degree by repeated squaring of whole buffers."""
    use_widest_vectors()
    v = carray(buffer, count)
    g, c, one = v.dtype.type(gamma), v.dtype.type(coef0), v.dtype.type(1)
    power = np.empty(count, v.dtype)
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


def sigmoid(buffer, count, gamma, coef0, degree):
    """tanh(gamma t + coef0)."""
    use_widest_vectors()
    v = carray(buffer, count)
    g, c = v.dtype.type(gamma), v.dtype.type(coef0)
    for i in range(count):
        v[i] = tanh(g * v[i] + c)


# The loop of each profile of `backends.profiles`.
LOOPS = {
    "gaussian": gaussian,
    "laplacian": gaussian,
    "triangular": triangular,
    "multiquadric": multiquadric,
    "inverse-multiquadric": inverse_multiquadric,
    "thin-plate": thin_plate,
    "linear": linear,
    "identity": linear,
    "poly": poly,
    "sigmoid": sigmoid,
}


@once
def _compiled(function, dtype):
    """The C function of a profile for one dtype (kept alive by this cache)."""
    pointer = types.CPointer(types.float32 if dtype == np.float32 else types.float64)
    signature = types.void(pointer, types.intp, types.float64, types.float64, types.intp)
    return cached_cfunc(signature, fastmath={"contract"}, error_model="numpy")(function)


def profile_address(name, dtype):
    """Address of the profile `name` for buffers of dtype float32 or float64; 0: nothing to do."""
    function = LOOPS[name]
    if function is linear:
        return 0
    return _compiled(function, np.dtype(dtype)).address


@inner(fastmath={"contract"}, error_model="numpy")
def finish(P, top, left, H, n_rows, n_columns, row_terms, column_terms, epilogue):
    """Turn products P[top:, left:] into distances (squared if so asked) or dot products H."""
    use_widest_vectors()
    kind, real = column_terms.dtype.type, H.dtype.type
    scale, form = real(epilogue.factor), epilogue.form
    low = real(-np.inf) if form == DOT or form == SQUARE else real(0)
    terms = column_terms[left : left + n_columns]
    for r in range(n_rows):
        row, h = row_terms[top + r], H[r]
        products = P[top + r, left : left + n_columns]
        if epilogue.alpha == -2:  # two additions are faster than an integer multiplication
            for j in range(n_columns):
                p = kind(products[j])
                t = real(kind(kind(row + terms[j]) - kind(p + p)))
                h[j] = scale * max(t, low)
        else:
            for j in range(n_columns):
                t = real(kind(kind(row + terms[j]) + kind(products[j])))
                h[j] = scale * max(t, low)


@inner(fastmath={"contract"}, error_model="numpy")
def activate(buffer, epilogue):
    """Root or square, then the profile, in place on a contiguous buffer."""
    use_widest_vectors()
    if epilogue.form == ROOT:
        for j in range(buffer.size):
            buffer[j] = np.sqrt(buffer[j])
    elif epilogue.form == SQUARE:
        for j in range(buffer.size):
            buffer[j] *= buffer[j]
    if epilogue.profile != 0:
        call_profile(
            epilogue.profile, buffer.ctypes.data, buffer.size,
            epilogue.gamma, epilogue.coef0, epilogue.degree,
        )  # fmt: skip


@cached(nogil=True)
def epilogue_rows(begin, end, P, row_terms, column_terms, epilogue, out):
    """Rows begin … end of the activations `out` from products P, which may be the same array.

    P (N, m) of int32, float32 or float64 and out (N, m) of float32 or float64 are C-contiguous; the
    terms (N,) and (m,) have one dtype, int32, int64, float32 or float64.
    """
    use_widest_vectors()
    # `out` may be the memory of P, and LLVM makes no vector loop that reads and writes the same
    # memory through two arrays; hence a buffer between them.
    H = np.empty((1, CHUNK), out.dtype)
    for i in range(begin, end):
        for left in range(0, P.shape[1], CHUNK):
            n = min(CHUNK, P.shape[1] - left)
            finish(P, i, left, H, 1, n, row_terms, column_terms, epilogue)
            activate(H[0, :n], epilogue)
            out[i, left : left + n] = H[0, :n]
