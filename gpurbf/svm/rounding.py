"""Which arithmetic sums of kernel values need: float32 where its rounding stays below a tolerance.

Kernel values in float32 have errors e that are small, of either sign and nearly independent, so a
sum of n of them with coefficients up to C is off by about e C sqrt(n), not by e C n (Higham and
Mary, "A new approach to probabilistic rounding error analysis", 2019). An a priori bound of e would
be pessimistic by orders of magnitude. So e is measured between some of the samples, including those
farthest from their mean, where float32 is worst. The kernel value of a sample with itself, whose
distance loses the most, is only one term of a sum and is measured separately. A Manhattan distance
of a sample from itself is exact, and a Euclidean one may be by chance. There the value for a near
sample, which may be none of those that are measured, takes its place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from gpurbf.data.samples import Samples
from gpurbf.layer.activation import Activation
from gpurbf.layer.layer import HiddenLayer
from gpurbf.runtime.threads import parallel_rows

# Below this many samples, float64 takes hardly any time either.
_MIN_FLOAT32_SAMPLES = 1000
# float32 and float64 values are compared in so many rows spread over the data, in as many of those
# farthest from the mean, and in so many columns.
_PROBED_ROWS, _PROBED_COLUMNS = 32, 256
# Rows whose distances from the mean are taken at a time.
_NORM_ROWS = 1024
# Errors are taken as this many standard deviations; the part of the tolerance that they may be.
_DEVIATIONS, _MAX_TOLERANCE_PART = 3.0, 0.25
# cuBLAS takes another kernel for more rows, which may err more: twice as much on an H100.
_OTHER_KERNELS = 3.0


def arithmetic(
    X: Samples,
    activation: Activation,
    backend: Any,
    sizes: Callable[[], tuple[float, float]],
    tol: float,
) -> type[np.floating]:
    """The dtype that sums of kernel values between samples X need.

    Parameters
    ----------
    X : Samples
        Samples on one side of the kernel; those on the other side are assumed to be similar.
    activation, backend
        See :class:`HiddenLayer`.
    sizes : callable
        Returns the maximum Euclidean norm of the coefficients of a sum, and the maximum of one
        coefficient.
    tol : float
        float32 is enough if three times the error of a sum, plus the error of the term of a sample
        with itself, is below a quarter of this.
    """
    if len(X) < _MIN_FLOAT32_SAMPLES or rounds_alike(activation):
        return np.float64
    size, largest = sizes()
    if X.quantization is None or activation.metric == "dot":
        between, itself = float32_error(X, activation, backend)
    else:  # distances are exact, and a rounded profile of at most 1 is left
        between, itself = float(np.finfo(np.float32).eps), 0.0
    error = _DEVIATIONS * between * size + itself * largest
    return np.float32 if error < _MAX_TOLERANCE_PART * tol else np.float64


def rounds_alike(activation: Activation) -> bool:
    """Whether values err alike, by the rounding of coef0 and gamma, so that nothing averages out.

    tanh(gamma t + coef0) is near its bounds, where no error matters, unless the terms cancel.
    """
    return activation.profile == "sigmoid" and abs(activation.coef0) > 1


def float32_error(X: Samples, activation: Activation, backend: Any) -> tuple[float, float]:
    """Errors of float32 kernel values between samples X, and of a sample with itself.

    The first is the root mean square over columns for the worst row, the second the largest.
    """
    N = len(X)
    spread = np.arange(0, N, max(1, N // _PROBED_COLUMNS))[:_PROBED_COLUMNS]
    # Nothing is subtracted for Manhattan distances: float32 is worst far from the origin.
    manhattan = activation.metric == "manhattan"
    center = 0.0 if manhattan else np.asarray(X.values[spread], np.float64).mean(axis=0)
    norms = np.empty(N)

    def measure(rows: slice) -> None:
        part = X.values[rows] - center
        norms[rows] = np.einsum("ij,ij->i", part, part)

    parallel_rows(measure, N, _NORM_ROWS)
    far = np.argpartition(norms, N - min(N, _PROBED_ROWS))[-_PROBED_ROWS:]
    rows = np.concatenate([spread[:: max(1, len(spread) // _PROBED_ROWS)], far])
    columns = np.concatenate([spread, far])
    rounded = exact = [X[columns], X[rows]]
    with np.errstate(over="ignore", invalid="ignore"):  # an error of NaN is below no limit
        if X.quantization is None:  # shifted, then rounded, as a solver's samples are
            shift = center if activation.metric == "euclidean" else 0.0
            rounded = [replace(S, values=np.float32(S.values - shift)) for S in exact]
        layers = [
            HiddenLayer(C, activation, backend=backend, dtype=dtype)
            for (C, _), dtype in ((rounded, np.float32), (exact, np.float64))
        ]
        single, double = (a.activations(S) for a, (_, S) in zip(layers, (rounded, exact)))
        error = np.subtract(single, double, dtype=np.float64)
    if "tf32" in layers[0].backend.precisions:  # cuBLAS computes the products
        error *= _OTHER_KERNELS
    between = np.where(rows[:, None] == columns, 0.0, error)[:, : len(spread)]
    # One sample's error is a matter of luck: the largest relative one of many is taken.
    own, squares = np.abs(error[-len(far) :, -len(far) :].diagonal()), norms[far]
    # Numbers of Python overflow in silence.
    largest, eps = float(squares.max()), float(np.finfo(np.float32).eps)
    itself = float((own / np.maximum(squares, np.finfo(float).tiny)).max()) * largest
    if manhattan:  # 0, as its inputs err alike; those of a near one do not, if they are rounded
        size = 0.0 if X.values.dtype == np.float32 else largest**0.5
        itself = eps * (1.0 + activation.gamma * size)
    elif activation.metric == "euclidean":  # of few inputs it may be 0 in all of these
        itself = max(itself, eps * activation.gamma * largest)
    return float(np.sqrt(np.square(between).mean(axis=1).max())), itself
