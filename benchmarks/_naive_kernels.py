"""Plain loops: what a compiler makes of a formula and nothing else."""

import math

from gpurbf.runtime.jit.caching import cached


@cached(nogil=True, error_model="numpy")
def gaussian_layer(X, C, gamma, zero, out):
    """out[i, j] = exp(-gamma |x_i - c_j|²), summed in the order of the inputs in zero's type."""
    for i in range(X.shape[0]):
        for j in range(C.shape[0]):
            squared = zero
            for k in range(X.shape[1]):
                difference = X[i, k] - C[j, k]
                squared += difference * difference
            out[i, j] = math.exp(-gamma * squared)


@cached(nogil=True)
def scale(source, factor, target):
    """target = factor * source."""
    for i in range(source.shape[0]):
        target[i] = factor * source[i]
