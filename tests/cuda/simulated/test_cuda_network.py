"""The whole network on the simulated kernels, CuPy's part played by the stand-in."""

from functools import partial

import numpy as np
import pytest
from sklearn.datasets import load_digits

import gpurbf
from gpurbf.backends import LOADERS, Tile, _attempt, device, numba_cuda
from gpurbf.backends.cupy_ import gram
from gpurbf.kernels.cuda import api


@pytest.fixture
def loaded(cupy, monkeypatch):
    """`numba-cuda` as a backend, its small tiles on arrays of the stand-in."""
    # What a launch gets on a GPU is CuPy's memory; here it is the stand-in's.
    monkeypatch.setattr(api, "argument", lambda array: array._a)
    tiles = numba_cuda.Tiles(
        cupy, numba_cuda.Device((8, 0), 1), partial(gram, cupy), lambda *_: Tile(M=64, B=8)
    )
    raw = numba_cuda.raw(tiles, "simulated")
    backend = device.on_device(raw, numba_cuda.row_bytes)
    monkeypatch.setitem(LOADERS, "numba-cuda", lambda: backend)
    _attempt.cache_clear()
    return cupy


def test_a_classifier_is_that_of_numpy(loaded):
    X, y = load_digits(return_X_y=True)
    X, y = X[:90].astype(np.uint8), y[:90]
    options = {"n_centers": 12, "gamma": 1e-3, "random_state": 0}
    model = gpurbf.RBFClassifier(backend="numba-cuda", **options).fit(X, y)
    same = gpurbf.RBFClassifier(backend="numpy", **options).fit(X, y)
    assert model.backend_ == "numba-cuda"
    np.testing.assert_allclose(model.decision_function(X), same.decision_function(X), atol=1e-4)
