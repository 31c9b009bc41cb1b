"""exp, log and tanh of one float32 or float64, free of branches so that loops are vectorized.

Each name is overloaded by dtype. Errors are at most 2 units in the last place (tested over the
whole range); results below the smallest normal number are flushed to zero, because products of
subnormal numbers are slow.
"""

import numpy as np
from numba import types
from numba.extending import overload

from gpurbf.runtime.jit.caching import inner
from gpurbf.runtime.jit.llvm import bits_as, polynomial

f4, f8, i4, i8 = np.float32, np.float64, np.int32, np.int64
fused = inner(fastmath={"contract"}, error_model="numpy", inline="never")


def exp_negative(x):
    """exp(x) for x <= 0."""


def log_positive(x):
    """Natural logarithm of a normal x > 0."""


def tanh(x):
    """Hyperbolic tangent."""


# exp: x = k ln 2 + r, |r| <= ln 2 / 2, exp(r) = 1 + r + r² q(r) with q interpolated at Chebyshev
# points. Adding 1.5 · 2^(mantissa bits) rounds to the integer k and leaves it in the low bits; k is
# added to the exponent of the result. ln 2 is split so that k · (high part) is exact without FMA.


@fused
def exp_negative32(x):
    low = f4(-87.336544)  # exp(low) is the smallest normal number
    z = low if x < low else x
    shifted = z * f4(1.44269504) + f4(12582912.0)
    k = shifted - f4(12582912.0)
    r = (z - k * f4(0.693359375)) + k * f4(2.12194440e-4)
    q = polynomial(r, (1.3926184e-3, 8.3631791e-3, 4.16665546e-2, 1.66665766e-1, 0.5))
    y = (q * r) * r + r + f4(1.0)
    bits = i4(bits_as(y, i4) + i4(bits_as(shifted, i4) << i4(23)))
    return f4(0.0) if x < low else bits_as(bits, f4)


@fused
def exp_negative64(x):
    low = f8(-708.3964185322641)
    z = low if x < low else x
    shifted = z * f8(1.4426950408889634) + f8(6755399441055744.0)
    k = shifted - f8(6755399441055744.0)
    r = (z - k * f8(0.693145751953125)) - k * f8(1.42860682030941723212e-6)
    q = polynomial(r, (
        2.5100385495510319e-8, 2.7620088445409748e-7, 2.7557268459997065e-6, 2.4801521295954375e-5,
        1.9841269863053617e-4, 1.3888888917213717e-3, 8.3333333333300618e-3, 4.1666666666624128e-2,
        1.6666666666666667e-1, 0.5,
    ))  # fmt: skip
    y = (q * r) * r + r + f8(1.0)
    bits = bits_as(y, i8) + (bits_as(shifted, i8) << i8(52))
    return f8(0.0) if x < low else bits_as(bits, f8)


# log: x = 2^k (1 + f) with 1 + f in [sqrt(1/2), sqrt(2)), log(1 + f) by the series in
# s = f / (2 + f); constants and order of operations are those of FreeBSD's msun (e_log.c).


@fused
def log_positive32(x):
    bits = i4(bits_as(x, i4) + i4(0x3F800000 - 0x3F3504F3))
    k = f4(i4(bits >> i4(23)) - i4(127))
    f = bits_as(i4((bits & i4(0x007FFFFF)) + i4(0x3F3504F3)), f4) - f4(1.0)
    s = f / (f4(2.0) + f)
    z = s * s
    series = polynomial(z, (0.24279078841, 0.28498786688, 0.40000972152, 0.66666662693)) * z
    half = f4(0.5) * f * f
    return (s * (half + series) + k * f4(9.0580006145e-06) - half) + f + k * f4(0.69313812256)


@fused
def log_positive64(x):
    one, root = i8(0x3FF0000000000000), i8(0x3FE6A09E667F3BCD)
    bits = bits_as(x, i8) + (one - root)
    k = f8((bits >> i8(52)) - i8(1023))
    f = bits_as((bits & i8(0x000FFFFFFFFFFFFF)) + root, f8) - f8(1.0)
    s = f / (f8(2.0) + f)
    z = s * s
    series = z * polynomial(z, (
        1.479819860511658591e-01, 1.531383769920937332e-01, 1.818357216161805012e-01,
        2.222219843214978396e-01, 2.857142874366239149e-01, 3.999999999940941908e-01,
        6.666666666666735130e-01,
    ))  # fmt: skip
    half = f8(0.5) * f * f
    high, low = f8(6.93147180369123816490e-01), f8(1.90821492927058770002e-10)
    return (s * (half + series) + k * low - half) + f + k * high


# tanh: rational approximations of Cephes (Moshier) near 0, else (1 - e) / (1 + e), e = exp(-2|x|).


@fused
def tanh32(x):
    size = abs(x)
    z = x * x
    p = polynomial(z, (
        -5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1,
    ))  # fmt: skip
    e = exp_negative(f4(-2.0) * size)
    y = (f4(1.0) - e) / (f4(1.0) + e)
    return (p * z) * x + x if size < f4(0.625) else (y if x > f4(0.0) else -y)


@fused
def tanh64(x):
    size = abs(x)
    z = x * x
    p = polynomial(z, (
        -9.64399179425052238628e-1, -9.92877231001918586564e1, -1.61468768441708447952e3,
    ))  # fmt: skip
    q = polynomial(z, (
        1.0, 1.12811678491632931402e2, 2.23548839060100448583e3, 4.84406305325125486048e3,
    ))  # fmt: skip
    e = exp_negative(f8(-2.0) * size)
    y = (f8(1.0) - e) / (f8(1.0) + e)
    return x + x * (z * (p / q)) if size < f8(0.625) else (y if x > f8(0.0) else -y)


def overload_by_dtype(name, function32, function64):
    """Make `name` call the version for the dtype of its argument."""

    @overload(name, inline="always")
    def choose(x):
        if x == types.float32:
            return lambda x: function32(x)
        if x == types.float64:
            return lambda x: function64(x)


overload_by_dtype(exp_negative, exp_negative32, exp_negative64)
overload_by_dtype(log_positive, log_positive32, log_positive64)
overload_by_dtype(tanh, tanh32, tanh64)
