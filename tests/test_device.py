"""The GPU backends' side of the host, proved on a strict stand-in for CuPy."""

import sys

import numpy as np
import pytest
import reference
import standin

from gpurbf.backends import _load, device
from gpurbf.network.hidden import PROFILES, Activation, HiddenLayer


@pytest.fixture
def cupy(monkeypatch):
    """The stand-in, installed as CuPy; nothing may be left in its pools at the end."""
    xp, cupyx = standin.make()
    for name, module in {
        "cupy": xp,
        "cupyx": cupyx,
        "cupyx.scipy": cupyx.scipy,
        "cupyx.scipy.linalg": cupyx.scipy.linalg,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    _load.cache_clear()
    yield xp
    _load.cache_clear()
    device._memory.cache_clear()
    assert not xp.gpu.hazards
    assert [pool.used for pool in xp.gpu.pools] == [0] * len(xp.gpu.pools)


RNG = np.random.default_rng(0)


def data(dtype, N=150, m=37, n=21):
    if dtype == np.uint8:
        rows = RNG.integers(0, 256, (N + m, n)).astype(dtype)
    else:
        rows = RNG.normal(size=(N + m, n)).astype(dtype)
    return rows[:N], rows[N:]


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
@pytest.mark.parametrize("profile", PROFILES)
def test_the_layer_is_its_definition(cupy, dtype, profile):
    X, C = data(dtype)
    gamma = 1 / reference.euclidean(X[:9], C).mean() ** (
        1 if profile in ("laplacian", "triangular") else 2
    )
    layer = HiddenLayer(C, Activation("euclidean", profile, gamma), backend="cupy")
    H = layer.outputs(X)
    expected = reference.hidden(X, C, "euclidean", profile, gamma)
    tolerance = reference.TOLERANCE[H.dtype]
    np.testing.assert_allclose(H, expected, rtol=tolerance, atol=tolerance)
    del layer
