"""One thread a pair, both rows read from global memory: the paper's kernel, a baseline to beat."""

import numpy as np

from gpurbf.layer.backends.cuda.kernels.profiles import activate
from gpurbf.runtime.jit.cuda_api import cuda, jit

EUCLIDEAN, MANHATTAN, DOT = range(3)
METRICS = {"euclidean": EUCLIDEAN, "manhattan": MANHATTAN, "dot": DOT}


@jit
def pairs(X, C, metric, form, profile, gamma, coef0, degree, out):
    """out = activations of X (N, n) and C (m, n), all of one dtype; one thread an output.

    Launched with blocks of (B, B) threads; the grid's x, which may be long, runs over the samples.
    """
    real = out.dtype.type
    i = np.int64(cuda.blockIdx.x) * cuda.blockDim.y + cuda.threadIdx.y
    j = np.int64(cuda.blockIdx.y) * cuda.blockDim.x + cuda.threadIdx.x
    if i < out.shape[0] and j < out.shape[1]:
        value = real(0)
        for k in range(X.shape[1]):
            x, c = real(X[i, k]), real(C[j, k])
            if metric == DOT:
                value += x * c
            elif metric == MANHATTAN:
                value += abs(x - c)
            else:
                value += (x - c) * (x - c)
        out[i, j] = activate(value, form, profile, real(gamma), real(coef0), degree, real)
