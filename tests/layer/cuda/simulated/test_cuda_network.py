"""The whole network on the simulated kernels, CuPy's part played by the stand-in."""

from unittest.mock import MagicMock

import numpy as np
import pytest
from sklearn.datasets import load_digits

import gpurbf
from gpurbf.layer.activation import Activation
from gpurbf.layer.backends import LOADERS, Tile, _attempt
from gpurbf.layer.backends.cuda import device, numba_cuda
from gpurbf.layer.backends.cuda.kernels import tile
from gpurbf.layer.layer import HiddenLayer, OutputWeights
from gpurbf.runtime.jit import cuda_api
from gpurbf.svm import _cuda_smo_kernels, cuda_check
from tests.layer.test_layer import (  # noqa: F401  # of any backend, on `backend`
    data,
    test_a_sample_at_its_center_has_distance_zero,
    test_an_offset_costs_no_digits,
    test_an_offset_costs_the_same_digits_in_every_unit,
    test_every_shape_and_consumer,
    test_float64_is_float64_from_the_samples_on,
    test_numbers_beyond_the_dtype_make_no_activations,
    test_outputs_are_the_definition,
)


def counted(kernel, launches):
    """A kernel whose launches are noted."""
    return MagicMock(__getitem__=lambda _, grid: launches.append(grid) or kernel[grid])


@pytest.fixture
def loaded(cupy, monkeypatch):
    """`numba-cuda` as a backend, its small tiles on arrays of the stand-in."""
    monkeypatch.setattr(numba_cuda, "forced_tile", lambda: Tile(M=64, B=8))
    backend = numba_cuda.build_backend(cupy, device.Device("simulated", (8, 0), 1))
    monkeypatch.setitem(LOADERS, "numba-cuda", lambda: backend)
    monkeypatch.setattr(cuda_check, "_wrong_steps", lambda backend: "")
    _attempt.cache_clear()
    return cupy


@pytest.fixture
def backend(loaded):
    """The backend of `test_layer`'s tests."""
    return "numba-cuda"


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_manhattan_distances_of_cupy_are_those_of_the_tiles(loaded, dtype):
    (X, C), activation = data(dtype, 9, 5, 7), Activation("manhattan", "laplacian", 1e-3)
    here, there = (HiddenLayer(C, activation, backend=name) for name in ("cupy", "numba-cuda"))
    np.testing.assert_array_equal(here.activations(X), there.activations(X))
    np.testing.assert_array_equal(here.matvec(X, C), there.matvec(X, C))
    here = HiddenLayer(C, activation, backend="cupy", precision="tf32")  # of products alone
    np.testing.assert_allclose(here.activations(X), there.activations(X), rtol=1e-5)


def test_a_call_on_the_device_is_four_launches_and_wraps_what_is_new(loaded, monkeypatch):
    """Rows, tiles, the sum of the shares, and that as the result has it."""
    launches, wrapped, make, argument = [], [], tile.kernel, cuda_api.argument
    monkeypatch.setattr(tile, "kernel", lambda *given: counted(make(*given), launches))
    rng, gpu = np.random.default_rng(0), loaded.gpu
    X, C = loaded.asarray(rng.normal(size=(70, 9))), rng.normal(size=(5, 9))
    layer = HiddenLayer(C, Activation("euclidean", "gaussian", 0.1), backend="numba-cuda")
    W = OutputWeights(loaded.asarray(rng.normal(size=(5, 2))))
    layer.matvec(X, W)
    launches.clear()
    monkeypatch.setattr(cuda_api, "argument", lambda A: wrapped.append(A.shape) or argument(A))
    before = gpu.counts()
    layer.matvec(X, W)
    others, copies, waits, mapped = gpu.counts() - before
    assert len(launches) + others == 4 and copies == waits == mapped == 0
    # The sums alone: what is packed stays, with its views.
    assert len(wrapped) == 1


def test_a_classifier_of_pairs_steps_on_the_device_and_is_that_of_numpy(loaded, monkeypatch):
    launches = []
    for name in ("select", "gather", "inner", "update"):
        kernel = counted(getattr(_cuda_smo_kernels, name), launches)
        monkeypatch.setattr(_cuda_smo_kernels, name, kernel)
    X, y = load_digits(n_class=3, return_X_y=True)
    X, y = X[:30].astype(np.uint8), y[:30]
    weights = np.where(np.arange(30) % 5 == 0, 2.0, 1.0)
    options = {"C": 2.0, "gamma": 1e-3, "class_weight": "balanced"}
    before = loaded.gpu.counts()
    model = gpurbf.SVC(backend="numba-cuda", **options).fit(X, y, weights)
    others, copies, waits, _ = loaded.gpu.counts() - before
    same = gpurbf.SVC(backend="numpy", **options).fit(X, y, weights)
    assert "steps on the GPU, all pairs of classes side by side" in model.backend_info_
    np.testing.assert_array_equal(model.support_, same.support_)
    np.testing.assert_allclose(model.dual_coef_, same.dual_coef_, atol=1e-4)
    np.testing.assert_allclose(model.decision_function(X), same.decision_function(X), atol=1e-3)
    # Four rounds, then a look: all three pairs are done.
    assert len(launches) == 16
    assert ([others, copies, waits] <= np.array([11, 15, 4])).all(), (others, copies, waits)
