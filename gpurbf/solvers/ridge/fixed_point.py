"""The grid on which sums over H are exact, and what rounding of H may add to them.

The grid is found from the centers, before any sample is seen. Whether it is fine enough for the
samples is checked when they are summed.
"""

from __future__ import annotations

import numpy as np

from gpurbf.layer.backends.numba.gram import FEW, Grid
from gpurbf.layer.protocol import Layer
from gpurbf.runtime.arrays import to_host
from gpurbf.runtime.linalg import activations

_SAMPLE = 1024
# What rounding may add to the ridge, as a part of it.
_NOISE = 0.1


def tolerable(noise: float, spread: float, alpha: float) -> bool:
    """Whether rounding that adds ``noise`` to the diagonal of HᵀH adds little to the penalty.

    The penalty is alpha times that diagonal, which is at least the ``spread``, of H less its mean.
    Errors are independent only where columns differ by steps or more, so alpha counts up to 1.
    """
    return noise <= _NOISE * min(alpha, 1.0) * spread


def fixed_point(
    layer: Layer, alpha: float, target: float, weight: float, mean: float
) -> tuple[np.ndarray, Grid] | None:
    """What H is taken relative to (m,), and the grid it is then rounded to; None if too coarse.

    H rounded is another H: its errors, independent and step²/12 each on average, add that much to
    the mean diagonal of HᵀH, as a ridge does. They are accepted up to a tenth of the ridge, alpha
    times the mean diagonal. Both means, and the range that is to fit into 15 bits, are taken from
    the activations of up to 1,024 of the centers, so that every batch and every machine
    with these centers finds the same. The largest target and weight scale it, and the mean weight.
    Samples may differ by less than centers do: who sums them checks that `tolerable` holds of them.
    """
    m = len(layer.centers)
    if m < FEW or not layer.exact_sums:
        return None
    rows = np.arange(0, m, -(-m // _SAMPLE))
    V = to_host(activations(layer, layer.sparse_centers[rows]))
    shift = V.mean(axis=0, dtype=np.float64).astype(np.float32)
    V -= shift.astype(V.dtype)
    largest = np.abs(V).max()
    if not np.isfinite(largest):
        return None
    grid = Grid.of(largest, target, weight)
    V[np.arange(len(rows)), rows] = 0  # a center answers to itself as to no other sample
    spread = np.einsum("ij,ij->", V, V, dtype=np.float64) / V.size * mean
    if not tolerable(grid.step**2 / 12, spread, alpha):
        return None
    return shift.astype(np.float64), grid
