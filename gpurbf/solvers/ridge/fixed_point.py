"""The grid on which sums over H are exact, and what rounding of H may add to them.

The grid is found from the centers, before any sample is seen. Whether it is fine enough for the
samples is checked when they are summed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from gpurbf.layer import Layer, activations
from gpurbf.layer.backends.numba.gram import FEW, Grid
from gpurbf.runtime.arrays import to_host

# Maximum number of centers whose activations determine mean and range.
_MAX_CENTERS_EVALUATED = 1024
# Rows whose mean is the shift if there is no grid.
_SHIFT_ROWS = 1024
# Maximum fraction of the ridge that rounding may add to it.
_MAX_NOISE = 0.1
# Errors of H also turn residuals into weights, which costs up to their share of the ridge, times
# m / N, of the sum of squared residuals. As if there were so many rows, that is 2 % at most.
LEAST_ROWS_PER_CENTER = 5


def tolerable(noise: float, spread: float, alpha: float) -> bool:
    """Whether rounding that adds ``noise`` to the diagonal of HᵀH adds little to the penalty.

    The penalty is alpha times that diagonal, which is at least the ``spread``, the diagonal for H
    minus its mean. An alpha above 1 counts as 1: otherwise steps as large as the differences within
    a column would be accepted, and their errors are not independent.
    """
    return noise <= _MAX_NOISE * min(alpha, 1.0) * spread


def fixed_point(
    layer: Layer, X: Any, alpha: float = 0.0, weight: float = 1.0, mean: float = 1.0
) -> tuple[np.ndarray, Grid | None]:
    """Find the shift of H and the grid it is then rounded to; without it if that is too coarse.

    Rounding errors of H, independent and step²/12 each on average, add that much to the mean
    diagonal of HᵀH, as a ridge does. They are accepted up to a tenth of the ridge, which is alpha
    times the mean diagonal. Both means, and the range that must fit into 15 bits, are taken from
    the activations of up to 1,024 of the centers, so that every batch and every machine with these
    centers finds the same. The result also depends on the largest weight and the mean weight.
    Samples may differ by less than centers do, so the caller that sums them must check `tolerable`
    for them.

    Parameters
    ----------
    layer : Layer
        With m centers.
    X : ndarray or CSR of shape (N, n)
        Samples. Without a grid, the shift is the mean of H over the first of them.
    alpha : float, default=0.0
        Relative penalty; 0: no grid.
    weight, mean : float, default=1.0
        The largest weight and the mean weight.

    Returns
    -------
    shift : ndarray of shape (m,), float64
        The mean of H, numbers of float32.
    grid : Grid or None
        For targets from -1 to 1.
    """
    m = layer.centers.shape[0]
    if alpha and m >= FEW and layer.exact_sums:
        rows = np.arange(0, m, -(-m // _MAX_CENTERS_EVALUATED))
        V = layer.activations(layer.sparse_centers[rows])
        shift = _in_float32(V.mean(axis=0, dtype=np.float64))
        V -= shift.astype(V.dtype)
        largest = np.abs(V).max()
        if largest < np.finfo(np.float32).max:
            grid = Grid.of(largest, weight)
            V[np.arange(len(rows)), rows] = 0  # a center's activation for itself is not typical
            spread = np.einsum("ij,ij->", V, V, dtype=np.float64) / V.size * mean
            if tolerable(grid.step**2 / 12, spread, alpha):
                return shift.astype(np.float64), grid
    # Any shift is correct; one that float32 holds exactly is the same number everywhere.
    with layer.allocator():
        shift = to_host(activations(layer, X[:_SHIFT_ROWS]).mean(axis=0, dtype=np.float64))
    return _in_float32(shift).astype(np.float64), None


def _in_float32(mean: np.ndarray) -> np.ndarray:
    """The nearest numbers that float32 holds; a mean may be beyond it."""
    most = np.finfo(np.float32).max
    return mean.clip(-most, most).astype(np.float32)
