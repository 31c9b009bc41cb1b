"""Data and tolerances that the tests of the stand-in share."""

import numpy as np
import reference

from gpurbf.layer.activation import Activation

RNG = np.random.default_rng(0)
GAUSSIAN = Activation("euclidean", "gaussian", 0.02)


def data(dtype, N=150, m=37, n=21):
    if dtype in (np.uint8, np.int8):
        info = np.iinfo(dtype)
        rows = RNG.integers(info.min, info.max + 1, (N + m, n)).astype(dtype)
    else:
        rows = RNG.normal(size=(N + m, n)).astype(dtype)
    return rows[:N], rows[N:]


def close(actual, expected, dtype=None):
    tolerance = reference.TOLERANCE[np.dtype(dtype or actual.dtype)]
    scale = max(1.0, np.abs(expected).max(initial=0))
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance * scale)
