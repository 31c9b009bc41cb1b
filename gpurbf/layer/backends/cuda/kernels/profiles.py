"""From the metric's value to the activation: every profile behind one integer argument.

Calls by address are not worth using on a GPU. A tile passes constants, so the compiler keeps only
one branch. Elsewhere the argument is the same for all threads, and the chain of comparisons costs a
few instructions an output. A new gamma needs no compilation.
"""

import math

import numpy as np

from gpurbf.layer.activation import DOT, ROOT, SQUARE
from gpurbf.layer.backends.cuda.kernels.registers import exponential, root
from gpurbf.runtime.jit.cuda_api import jit

(GAUSSIAN, TRIANGULAR, MULTIQUADRIC, INVERSE_MULTIQUADRIC, THIN_PLATE, IDENTITY, POLY, SIGMOID) = (
    range(8)
)
NUMBERS = {
    "gaussian": GAUSSIAN,
    "laplacian": GAUSSIAN,  # of d, not d²
    "triangular": TRIANGULAR,
    "multiquadric": MULTIQUADRIC,
    "inverse-multiquadric": INVERSE_MULTIQUADRIC,
    "thin-plate": THIN_PLATE,
    "linear": IDENTITY,
    "poly": POLY,
    "sigmoid": SIGMOID,
}
# Activations below the smallest normal number count as 0, as on the CPU.
TINY32, TINY64 = float(np.finfo(np.float32).tiny), float(np.finfo(np.float64).tiny)


@jit(device=True)
def activate(value, form, profile, gamma, coef0, degree, real):
    """profile(form(value)); value, gamma and coef0 are of the type `real`, float32 or float64."""
    zero, one, tiny = real(0), real(1), real(TINY64)
    if tiny == zero:  # in float32
        tiny = real(TINY32)
    if form == SQUARE:
        value = real(value * value)
    elif form != DOT:
        value = zero if value < zero else value  # max() of two fails in Numba 0.68's own target
        if form == ROOT:
            value = root(value)
    if profile == GAUSSIAN:
        return exponential(gamma, value)
    if profile == TRIANGULAR:
        y = real(one - gamma * value)
        return zero if y < zero else y
    if profile == MULTIQUADRIC:
        return real(math.sqrt(real(one + gamma * value)))
    if profile == INVERSE_MULTIQUADRIC:
        return real(one / real(math.sqrt(real(one + gamma * value))))
    if profile == THIN_PLATE:
        s = real(gamma * value)
        if s < tiny:
            return zero
        return real(real(0.5) * s * real(math.log(s)))
    if profile == IDENTITY:
        return value
    t = real(gamma * value + coef0)
    if profile == SIGMOID:
        return real(math.tanh(t))
    y = one
    while degree > 0:
        if degree & 1:
            y = real(y * t)
        t = real(t * t)
        degree >>= 1
    return y
