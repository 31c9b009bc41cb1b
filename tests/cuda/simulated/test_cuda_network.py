"""The whole network on the simulated kernels, CuPy's part played by the stand-in."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

import gpurbf
from gpurbf.backends import LOADERS, Tile, _attempt, device, device_memory, numba_cuda
from gpurbf.kernels.cuda import api, pack, tile
from gpurbf.network.hidden import Activation, HiddenLayer, OutputWeights


@pytest.fixture
def loaded(cupy, monkeypatch):
    """`numba-cuda` as a backend, its small tiles on arrays of the stand-in."""
    # What a launch gets on a GPU is CuPy's memory; here it is the stand-in's.
    wrapped = []
    monkeypatch.setattr(api, "argument", lambda array: wrapped.append(array.shape) or array._a)
    cupy.gpu.wrapped = wrapped
    simulated = device_memory.Device("simulated", (8, 0), 1, 1 << 20)
    tiles = numba_cuda.of_cupy(cupy, simulated, lambda *_: Tile(M=64, B=8))
    raw = numba_cuda.raw(tiles, "simulated")
    backend = device.on_device(raw, numba_cuda.needs)
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


def test_a_call_on_the_device_is_three_launches_and_wraps_what_is_new(loaded, monkeypatch):
    launches, make, packing = [], tile.kernel, pack.pack

    class Counted:
        def __init__(self, kernel):
            self.kernel = kernel

        def __getitem__(self, grid):
            launches.append(grid)
            return self.kernel[grid]

    monkeypatch.setattr(tile, "kernel", lambda *given: Counted(make(*given)))
    monkeypatch.setattr(pack, "pack", Counted(packing))
    rng, gpu = np.random.default_rng(0), loaded.gpu
    X, C = loaded.asarray(rng.normal(size=(70, 9))), rng.normal(size=(5, 9))
    layer = HiddenLayer(C, Activation("euclidean", "gaussian", 0.1), backend="numba-cuda")
    W = OutputWeights(loaded.asarray(rng.normal(size=(5, 2))))
    layer.scores(X, W)
    launches.clear(), gpu.wrapped.clear()
    before = gpu.counts()
    layer.scores(X, W)
    others, copies, waits, mapped = gpu.counts() - before
    assert len(launches) + others == 3 and copies == waits == mapped == 0
    # Samples, packed samples and terms for one launch, terms and packed ones for the next, sums.
    assert len(gpu.wrapped) == 6
