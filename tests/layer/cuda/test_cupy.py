"""The cupy backend and the estimators on it, on a strict stand-in for CuPy."""

import pickle
import sys
import types

import numpy as np
import pytest
import reference
import standin
from callers import answers, outputs
from sklearn.base import clone
from sklearn.datasets import load_digits
from standin import GAUSSIAN

import gpurbf
from gpurbf import BackendUnavailable, config_context
from gpurbf.layer.activation import Activation
from gpurbf.layer.backends.cuda import cupy_
from gpurbf.layer.layer import HiddenLayer
from tests.layer.test_layer import (  # noqa: F401  # of any backend, on `backend`
    assert_close,
    assert_exact,
    data,
    test_every_shape_and_consumer,
    test_float64_is_float64_from_the_samples_on,
    test_numbers_beyond_the_dtype_make_no_activations,
    test_out_may_be_any_array_of_the_right_shape,
    test_outputs_are_the_definition,
    test_threads_share_a_layer,
    test_weights_changed_in_place_hold_at_once,
)
from tests.profiling.test_profile import (  # noqa: F401
    digits,
    test_the_hidden_layer_counts_two_operations_a_synapse,
)


@pytest.fixture(params=["fast float64", "slow float64, small tiles"])
def backend(request, cupy):
    """The backend of `test_layer`'s tests; Manhattan distances are those of `numba-cuda`."""
    if request.node.callspec.params.get("metric") == "manhattan":
        pytest.skip("manhattan: simulated/test_cuda_network.py has it")
    if request.param.startswith("slow"):
        cupy.gpu.capability = (8, 6)
        request.getfixturevalue("small_tiles")
    return "cupy"


@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
@pytest.mark.parametrize("degree", [1, 2, 7, 12])
def test_powers_of_any_degree(cupy, dtype, degree):
    X, C = data(dtype)
    activation = Activation("dot", "poly", 1 / np.abs(reference.dot(X, C)).max(), 0.5, degree)
    H = HiddenLayer(C, activation, backend="cupy").activations(X)
    assert_close(H, reference.hidden(X, C, *activation), H.dtype)


@pytest.mark.parametrize("model", [gpurbf.RBFClassifier(200), gpurbf.FSVC()], ids=str)
def test_auto_takes_the_cpu_for_manhattan_distances_where_numba_cuda_cannot_run(cupy, model):
    X, _ = data(np.float32, N=400)
    model = clone(model).set_params(metric="manhattan", random_state=0).fit(X, X[:, 0] > 0)
    assert model.backend_ == "numba" and "numba-cuda is not used" in model.backend_info_
    model.predict(X)
    assert model._layer() is model._layer() and cupy.gpu.launches == 0


@pytest.mark.parametrize("profile", [lambda s: np.float32(1), lambda s: s[:1], lambda s: None])
def test_a_profile_of_his_own_maps_an_array_to_one_of_its_shape(cupy, profile):
    X, C = data(np.float32)
    layer = HiddenLayer(C, Activation("euclidean", profile), backend="cupy")
    with pytest.raises(ValueError, match=r"must map an array of d² to one of its shape"):
        layer.activations(X)


def test_underflow_is_flushed_to_zero(cupy):
    X = np.array([[0.0], [1.0]], np.float32)
    layer = HiddenLayer(X, Activation("euclidean", "gaussian", 88.0), backend="cupy")
    np.testing.assert_array_equal(layer.activations(X), np.eye(2))


def test_a_gamma_beyond_float32_is_an_error_without_a_warning(cupy):
    X, _ = data(np.float32)
    model = gpurbf.RBFLayer(5, gamma=1e39, backend="cupy", random_state=0)
    with pytest.warns(UserWarning, match="so large") as said, np.errstate(all="raise"):
        model.fit(X)
        with pytest.raises(ValueError, match="Scale the data"):
            model.transform(X)
    assert len(said) == 1


def test_activations_near_1_are_rounded_no_more_than_float32_rounds(cupy):
    """A wide kernel; CUDA's exponential alone would err twice as much."""
    X, C = data(np.uint8)
    activation = Activation("euclidean", "gaussian", 0.1 / reference.euclidean(X, C).max() ** 2)
    H = HiddenLayer(C, activation, backend="cupy").activations(X)
    exact = reference.hidden(X, C, *activation)
    assert exact.min() > 0.9 and np.abs(H - exact).max() < 0.6 * 2.0**-24


def test_long_rows_are_whole_lines(cupy):
    """784 bytes take cuBLAS 1.7 times as long as 768."""
    rng = np.random.default_rng(0)
    for n, precision, width in ((784, "exact", 896), (21, "exact", 32), (98, "float32", 3 * 128)):
        X = rng.integers(0, 256, (20, n)).astype(np.uint8)
        X = X if precision == "exact" else (X / 255).astype(np.float32)
        layer = HiddenLayer(X, GAUSSIAN, backend="cupy", precision=precision)
        np.testing.assert_allclose(layer.activations(X).diagonal(), 1, atol=1e-5)
        assert cupy.gpu.calls[-1][-1] == width


def test_integers_are_exact_up_to_the_limit_of_each_product(cupy):
    cublas = cupy.cuda.cublas
    integers, numbers = cublas.CUBLAS_COMPUTE_32I, cublas.CUBLAS_COMPUTE_64F
    for n, compute in ((33_025, integers), (131_071, integers), (131_072, numbers)):
        assert_exact(n, "cupy")
        assert cupy.gpu.calls[-1][0] == compute


@pytest.mark.parametrize("capability", [(7, 5), (8, 6), (9, 0)])
def test_tf32_only_when_asked_and_three_of_them_are_float32(cupy, capability):
    """One TF32 product would err by 1e-4 here; three have float32's error, where they are taken.

    Also over inputs of all sizes, from 1e-3 to 1e3.
    """
    cupy.gpu.capability = capability
    X, C = data(np.float32)
    exact = reference.hidden(X, C, *GAUSSIAN)
    H = HiddenLayer(C, GAUSSIAN, backend="cupy").activations(X)
    assert np.abs(H - exact).max() < 2e-6
    cublas = cupy.cuda.cublas
    ((compute, *_, depth),) = set(cupy.gpu.calls)
    tf32 = cublas.CUBLAS_COMPUTE_32F_FAST_TF32
    three = capability == (9, 0)
    assert (compute, depth) == ((tf32, 3 * 24) if three else (cublas.CUBLAS_COMPUTE_32F, 21))
    rng = np.random.default_rng(5)
    wide = rng.normal(size=(2, 60, 300)) * 10 ** rng.uniform(-3, 3, 300)
    A, B = wide.astype(np.float32)
    products = HiddenLayer(B, Activation("dot", "linear"), backend="cupy").activations(A)
    sums = A.astype(float) @ B.T
    assert np.abs(products - sums).max() < 3 * np.abs(A @ B.T - sums).max()
    layer = HiddenLayer(C, GAUSSIAN, backend="cupy", precision="tf32")
    error = np.abs(layer.activations(X) - exact).max()
    assert cupy.gpu.calls[-1][0] == tf32 and "tf32" in layer.describe()
    assert 1e-5 < error < 1e-2
    with pytest.raises(BackendUnavailable, match=r"tf32.*use backend='cupy'"):
        HiddenLayer(C, GAUSSIAN, backend="numpy", precision="tf32")


@pytest.mark.parametrize("unit, offset", [(1e40, 0.0), (1e39, 1e3), (1e-60, 1e7)])
def test_shifts_that_float32_does_not_hold(cupy, unit, offset):
    """A shift of infinity made NaN; one of 0 loses the digits of data far from the origin."""
    X = (np.random.default_rng(0).normal(size=(300, 5)) + offset) * unit
    model = gpurbf.RBFLayer(20, random_state=0)
    here, there = (model.set_params(backend=b).fit_transform(X) for b in ("numba", "cupy"))
    np.testing.assert_allclose(there, here, atol=1e-6)


def test_manhattan_names_the_backends_that_have_it(cupy):
    X, C = data(np.float32)
    layer = HiddenLayer(C, Activation("manhattan", "laplacian", 0.1), backend="cupy")
    with pytest.raises(BackendUnavailable, match=r"'numba-cuda'.*backend='numba'"):
        layer.activations(X)


FEW = {"max_centers": 60, "eval_radius": None, "random_state": 0}
ESTIMATORS = {
    "ridge": gpurbf.RBFClassifier(60, random_state=0),
    "lms": gpurbf.RBFClassifier(60, solver="lms", random_state=0),
    "class": gpurbf.RBFClassifier(60, centers="fsvc-class", kernel="laplacian", random_state=0),
    "fsvc": gpurbf.FSVC(40.0, random_state=0),
    "fsvc-pass": gpurbf.FSVC(12.0, selection="pass", **FEW),
    "fsvc-error": gpurbf.FSVC(12.0, selection="error", **FEW),
    "sfsvc": gpurbf.FSVC.sfsvc(1600.0),
    "fsvc-ridge": gpurbf.FSVC(40.0, kernel="gaussian", solver="ridge", random_state=0),
    "svc": gpurbf.SVC(C=10, gamma=0.001),
    "poly": gpurbf.SVC(kernel="poly"),
    "layer": gpurbf.RBFLayer(60, random_state=0),
}


X_DIGITS, Y_DIGITS = load_digits(return_X_y=True)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_what_is_given_on_the_device_is_answered_there(cupy, name):
    X, new = (X_DIGITS[rows].astype(np.uint8) for rows in (slice(300), slice(300, 340)))
    # Two classes, whose answers have a column less.
    y = Y_DIGITS[:300] % 2 if name == "poly" else Y_DIGITS[:300]
    here, there = (clone(ESTIMATORS[name]).set_params(backend="cupy") for _ in range(2))
    weight = np.linspace(1, 2, len(y))
    here.fit(X, y, weight)
    there.fit(cupy.asarray(X), cupy.asarray(y), cupy.asarray(weight))
    found = answers(there, cupy.asarray(new))
    for method, expected in answers(here, new).items():
        assert isinstance(expected, np.ndarray) and isinstance(found[method], cupy.ndarray), method
        np.testing.assert_array_equal(found[method].get(), expected)


def test_samples_of_the_host_of_which_some_are_quantized(cupy):
    X, y = X_DIGITS[Y_DIGITS < 3].copy(), Y_DIGITS[Y_DIGITS < 3]
    X[:100] += 0.3
    model = gpurbf.RBFClassifier(centers=X[100:120], random_state=0)
    here, there = (model.set_params(backend=b).fit(X, y).predict(X) for b in ("cupy", "numpy"))
    np.testing.assert_array_equal(here, there)


def test_samples_outside_every_radius_are_found_on_the_device_too(cupy):
    X, y = X_DIGITS, Y_DIGITS
    new = X[200:260] + 30.0 * (np.arange(60) % 2)[:, None]
    model = gpurbf.FSVC.sfsvc(40.0, backend="cupy").set_params(outside="nearest")
    model.fit(X[:200], y[:200])
    with pytest.warns(UserWarning, match="outside the radius"):
        got = model.decision_function(cupy.asarray(new))
    with pytest.warns(UserWarning, match="outside the radius"):
        np.testing.assert_allclose(got.get(), model.decision_function(new), rtol=1e-5, atol=1e-5)


def test_samples_on_the_device_are_checked(cupy):
    X = X_DIGITS[:200]
    for name in ("ridge", "fsvc", "svc", "layer"):
        model = clone(ESTIMATORS[name]).set_params(backend="cupy").fit(X, Y_DIGITS[:200])
        call = model.transform if name == "layer" else model.predict
        with pytest.raises(ValueError, match="expecting 64 features"):
            call(cupy.asarray(X[:, :3]))
        with pytest.raises(ValueError, match="float64, float32 or uint8, got int32"):
            call(cupy.asarray(X.astype(np.int32)))
        with pytest.raises(ValueError, match=r"0 sample\(s\) \(shape=\(0, 64\)\)"):
            call(cupy.asarray(X[:0]))
        broken = X.astype(float)
        broken[3, 5] = np.nan
        with pytest.raises(ValueError, match="column 5 of X has NaN or infinity"):
            call(cupy.asarray(broken))


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
def test_the_estimators_give_numpy_s_answers_and_travel(cupy, name, dtype):
    X = (X_DIGITS[:700] + (dtype == np.float64) / 97).astype(dtype)  # on no quantization
    X, y, new = X[:600], Y_DIGITS[:600], X[600:]
    here, there = (
        clone(ESTIMATORS[name]).set_params(backend=backend).fit(X, y)
        for backend in ("cupy", "numpy")
    )
    tolerance = {"rtol": 1e-3, "atol": 2e-3}
    np.testing.assert_allclose(outputs(here, new), outputs(there, new), **tolerance)
    np.testing.assert_array_equal(*(getattr(m, "center_indices_", 0) for m in (here, there)))
    assert here.backend_ == "cupy" and len(cupy.gpu.calls) > 0
    for key, value in vars(here).items():
        assert not hasattr(value, "__cuda_array_interface__"), key
    # Trained on one, it predicts on the other.
    moved = pickle.loads(pickle.dumps(here)).set_params(backend="numpy")
    np.testing.assert_allclose(outputs(moved, new), outputs(here, new), **tolerance)
    moved = pickle.loads(pickle.dumps(there)).set_params(backend="cupy")
    np.testing.assert_allclose(outputs(moved, new), outputs(there, new), **tolerance)


def test_the_rows_of_svc_stay_on_the_device(cupy, monkeypatch):
    """Without numba-cuda the CPU steps, and it is said."""
    monkeypatch.setattr("gpurbf.svm.binary.MAX_SINGLE_SET", 40)
    monkeypatch.setattr("gpurbf.svm.binary.WORKING_SET_LIMITS", (32, 32))
    monkeypatch.setattr("gpurbf.svm.pairs.MAX_MATRIX", 0)
    X, y = X_DIGITS[Y_DIGITS < 5].astype(np.uint8), Y_DIGITS[Y_DIGITS < 5]
    with config_context(gpu_memory=1.5):
        model = gpurbf.SVC(C=10, gamma=0.001, cache_size=0.2, backend="cupy").fit(X, y)
    assert "steps on the CPU: those on the GPU need numba-cuda (the stand-in" in model.backend_info_
    assert max(pool.peak for pool in cupy.gpu.pools) <= 1.5 * 2**20
    copies = sorted(cupy.gpu.copies, reverse=True)
    expected = gpurbf.SVC(C=10, gamma=0.001, backend="numpy").fit(X, y)
    # At most a working block, or a number a sample of a class, comes back at a time.
    n = np.bincount(y).max()
    assert copies[0][0] == "out" and copies[0][1] <= max(32 * 32 * 4, n * 8)
    # The samples go there once; the centers of a class are some of them.
    sizes = [size for way, size in copies if way == "in"]
    assert sizes.count(X.nbytes) == 1
    assert not set(sizes) & set(np.bincount(y) * X.shape[1])
    np.testing.assert_allclose(
        model.decision_function(X[:100]), expected.decision_function(X[:100]), atol=5e-3
    )


def test_the_stand_in_has_no_name_that_cupy_lacks():
    real, fake = pytest.importorskip("cupy"), standin.make()["cupy"]

    def compare(fake, real, path):
        for name, value in vars(fake).items():
            if name != "gpu" and not name.startswith("__"):
                assert hasattr(real, name), f"{path}.{name}"
                if isinstance(value, (types.SimpleNamespace, types.ModuleType)):
                    compare(value, getattr(real, name), f"{path}.{name}")

    compare(fake, real, "cupy")
    for name in vars(standin.ndarray):
        assert name.startswith("_") or name == "gpu" or hasattr(real.ndarray, name), name


def test_without_a_gpu_there_is_an_install_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(BackendUnavailable, match=r'pip install "\.\[cuda12\]"'):
        cupy_.load()
    there = standin.make()["cupy"]
    there.cuda.is_available = lambda: False
    monkeypatch.setitem(sys.modules, "cupy", there)
    with pytest.raises(BackendUnavailable, match=r"no NVIDIA GPU.*CUDA_VISIBLE_DEVICES"):
        cupy_.load()
