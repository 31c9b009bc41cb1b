"""Profiles on a buffer in cache, and the one pass that turns a product tile into activations."""

import functools
import threading

import numpy as np
from numba import carray, cfunc, njit, types

from gpurbf.kernels.llvm import call_profile, use_widest_vectors
from gpurbf.kernels.scalar import exp_negative, log_positive, tanh

SQUARED, ROOT, SQUARE, DOT = range(4)
FORMS = {"squared": SQUARED, "root": ROOT, "square": SQUARE, "dot": DOT}
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


# What each profile reads of a Euclidean distance decides the `form` of the pass before it.
PROFILES = {
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

_compiling = threading.Lock()


@functools.cache
def _compiled(function, dtype):
    """The C function of a profile for one dtype (kept alive by this cache)."""
    pointer = types.CPointer(types.float32 if dtype == np.float32 else types.float64)
    signature = types.void(pointer, types.intp, types.float64, types.float64, types.intp)
    return cfunc(signature, cache=True, fastmath={"contract"}, error_model="numpy")(function)


def profile_address(name, dtype):
    """Address of the profile `name` for buffers of dtype float32 or float64; 0: nothing to do."""
    function = PROFILES[name]
    if function is linear:
        return 0
    with _compiling:
        return _compiled(function, np.dtype(dtype)).address


@njit(nogil=True, fastmath={"contract"}, error_model="numpy")
def finish(P, top, left, H, n_rows, n_columns, row_terms, column_terms, alpha, factor, form):
    """Turn products P[top:, left:] into distances (squared if so asked) or dot products H."""
    use_widest_vectors()
    kind, real = column_terms.dtype.type, H.dtype.type
    scale = real(factor)
    low = real(-np.inf) if form == DOT or form == SQUARE else real(0)
    terms = column_terms[left : left + n_columns]
    for r in range(n_rows):
        row, h = row_terms[top + r], H[r]
        products = P[top + r, left : left + n_columns]
        if alpha == -2:  # two additions are faster than an integer multiplication
            for j in range(n_columns):
                p = kind(products[j])
                t = real(kind(kind(row + terms[j]) - kind(p + p)))
                h[j] = scale * max(t, low)
        else:
            for j in range(n_columns):
                t = real(kind(kind(row + terms[j]) + kind(products[j])))
                h[j] = scale * max(t, low)


@njit(nogil=True, fastmath={"contract"}, error_model="numpy")
def activate(buffer, form, profile, gamma, coef0, degree):
    """Root or square, then the profile, in place on a contiguous buffer."""
    use_widest_vectors()
    if form == ROOT:
        for j in range(buffer.size):
            buffer[j] = np.sqrt(buffer[j])
    elif form == SQUARE:
        for j in range(buffer.size):
            buffer[j] *= buffer[j]
    if profile != 0:
        call_profile(profile, buffer.ctypes.data, buffer.size, gamma, coef0, degree)


@njit(nogil=True, cache=True)
def epilogue_rows(
    begin, end, P, row_terms, column_terms, alpha, factor, form, profile, gamma, coef0, degree, out
):
    """out[begin:end] = profile(finish(row + column + alpha P)); see `epilogue`."""
    use_widest_vectors()
    # `out` may be the memory of P, and LLVM makes no vector loop that reads and writes the same
    # memory through two arrays; hence a buffer between them.
    H = np.empty((1, CHUNK), out.dtype)
    for i in range(begin, end):
        for left in range(0, P.shape[1], CHUNK):
            n = min(CHUNK, P.shape[1] - left)
            finish(P, i, left, H, 1, n, row_terms, column_terms, alpha, factor, form)
            activate(H[0, :n], form, profile, gamma, coef0, degree)
            out[i, left : left + n] = H[0, :n]


def epilogue_arguments(
    P, row_terms, column_terms, alpha, factor, form, profile, gamma, coef0, degree, out
):
    """Arguments of `epilogue_rows` after its range, in the few types it is compiled for."""
    kind = column_terms.dtype.type
    return (
        P, row_terms, column_terms, kind(alpha), float(factor), FORMS[form],
        profile_address(profile, out.dtype), float(gamma), float(coef0), int(degree), out,
    )  # fmt: skip


def epilogue(P, row_terms, column_terms, alpha, factor, form, profile, gamma, coef0, degree, out):
    """Activations of a product tile, in one pass while it is in cache.

    Parameters
    ----------
    P : array of shape (N, m), int32, float32 or float64, C-contiguous
        Dot products; on the lattice exact integers whatever their dtype.
    row_terms, column_terms : arrays of shape (N,) and (m,), int32, int64, float32 or float64
        Of one dtype, in which ``row + column + alpha * P`` is computed (int32 wraps around, which
        is harmless where the sum itself fits).
    alpha : -2 (squared Euclidean distances) or 1
    factor : float
        Multiplies that sum after conversion to the dtype of `out`.
    form : {"squared", "root", "square", "dot"}
        Clamped at 0; its square root; its square without clamp; unchanged.
    profile : a name of `PROFILES`, with its `gamma`, `coef0` and `degree`.
    out : array of shape (N, m), float32 or float64, C-contiguous; may be P itself.
    """
    arguments = epilogue_arguments(
        P, row_terms, column_terms, alpha, factor, form, profile, gamma, coef0, degree, out
    )
    epilogue_rows(0, P.shape[0], *arguments)
    return out
