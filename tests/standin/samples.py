"""Data that the tests of the stand-in share."""

import numpy as np

from gpurbf.layer.activation import Activation

GAUSSIAN = Activation("euclidean", "gaussian", 0.02)


def data(dtype, N=150, m=37, n=21):
    """Samples (N, n) and centers (m, n)."""
    rng, shape = np.random.default_rng(0), (N + m, n)
    rows = rng.integers(0, 256, shape) if dtype == np.uint8 else rng.normal(size=shape)
    return np.split(rows.astype(dtype), [N])
