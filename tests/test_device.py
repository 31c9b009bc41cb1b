"""The GPU backends' side of the host, proved on a strict stand-in for CuPy."""

import gc
import os
import pickle
import sys

import numpy as np
import pytest
import reference
import standin
from sklearn.datasets import load_digits

import gpurbf
from gpurbf import BackendUnavailable, config_context
from gpurbf.backends import _load, device, get_backend
from gpurbf.network.hidden import PROFILES, Activation, HiddenLayer
from gpurbf.network.solvers.lms import block_rule, lms
from gpurbf.network.solvers.ridge import NormalEquations

RNG = np.random.default_rng(0)
GAUSSIAN = Activation("euclidean", "gaussian", 0.02)


@pytest.fixture
def cupy(monkeypatch):
    """The stand-in, installed as CuPy; nothing may be left in its pools at the end."""
    modules = standin.make()
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    _load.cache_clear()
    yield modules["cupy"]
    _load.cache_clear()
    device._memory.cache_clear()
    gc.collect()
    gpu = modules["cupy"].gpu
    assert not gpu.hazards
    assert [pool.used for pool in gpu.pools] == [0] * len(gpu.pools)


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


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.float32, np.float64])
@pytest.mark.parametrize("profile", PROFILES)
def test_outputs_are_the_definition(cupy, dtype, profile):
    X, C = data(dtype)
    power = 1 if profile in ("laplacian", "triangular") else 2
    gamma = 1 / reference.euclidean(X[:9], C).mean() ** power
    layer = HiddenLayer(C, Activation("euclidean", profile, gamma), backend="cupy")
    close(layer.outputs(X), reference.hidden(X, C, "euclidean", profile, gamma))


@pytest.mark.parametrize("degree", [1, 2, 3, 7, 12])
@pytest.mark.parametrize("profile", ["linear", "poly", "sigmoid"])
@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
def test_dot_product_kernels(cupy, profile, dtype, degree):
    X, C = data(dtype)
    gamma = 1 / np.abs(reference.dot(X, C)).max()
    layer = HiddenLayer(C, Activation("dot", profile, gamma, 0.5, degree), backend="cupy")
    close(layer.outputs(X), reference.hidden(X, C, "dot", profile, gamma, 0.5, degree))


@pytest.mark.parametrize("n_streams", [1, 2, 3])
@pytest.mark.parametrize(("N", "m", "n"), [(0, 3, 5), (1, 1, 1), (7, 5, 16), (130, 33, 20)])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_every_shape_and_consumer(cupy, monkeypatch, dtype, N, m, n, n_streams):
    monkeypatch.setattr(device, "_LEAST", 16)  # several tiles of small data
    X, C = data(dtype, N, m, n)
    gamma = 1 / max(1e-9, np.square(reference.euclidean(C, C)).mean())
    H = reference.hidden(X, C, "euclidean", "gaussian", gamma)
    W, T, w = RNG.normal(size=(m, 3)), RNG.normal(size=(N, 2)), RNG.random(N)
    with config_context(n_streams=n_streams):
        layer = HiddenLayer(C, Activation("euclidean", "gaussian", gamma), backend="cupy")
        close(layer.outputs(X), H, np.float32)
        close(layer.scores(X, W), H @ W, np.float32)
        G, B = layer.normal(X, T, w)
    close(G, (H.T * w) @ H, np.float32)
    close(B, (H.T * w) @ T, np.float32)
    np.testing.assert_array_equal(G, G.T)


def test_a_callable_profile_gets_the_device_s_array(cupy):
    X, C = data(np.float64)
    layer = HiddenLayer(C, Activation("euclidean", lambda s: 1 / (1 + np.sqrt(s))), backend="cupy")
    close(layer.outputs(X), 1 / (1 + reference.euclidean(X, C)))


def test_underflow_is_flushed_to_zero(cupy):
    X = np.array([[0.0], [1.0]], np.float32)
    layer = HiddenLayer(X, Activation("euclidean", "gaussian", 88.0), backend="cupy")
    np.testing.assert_array_equal(layer.outputs(X), np.eye(2))


def test_integers_are_exact_up_to_the_limit_of_each_product(cupy):
    cublas = cupy.cuda.cublas
    expected = {33_025: cublas.CUBLAS_COMPUTE_32I, 131_071: cublas.CUBLAS_COMPUTE_32I}
    for n, compute in (expected | {131_072: cublas.CUBLAS_COMPUTE_64F}).items():
        X, C = np.full((2, n), 255, np.uint8), np.zeros((3, n), np.uint8)
        C[1] = 255
        C[2, 0] = 1
        layer = HiddenLayer(
            C, Activation("euclidean", lambda s: s), backend="cupy", precision="exact", dtype=float
        )
        squared = layer.outputs(X)
        np.testing.assert_array_equal(squared[0], [n * 255**2, 0, n * 255**2 - 255**2 + 254**2])
        assert cupy.gpu.calls[-1][0] == compute


def test_tf32_only_when_asked(cupy):
    X, C = data(np.float32)
    tf32 = cupy.cuda.cublas.CUBLAS_COMPUTE_32F_FAST_TF32
    exact = HiddenLayer(C, GAUSSIAN, backend="cupy").outputs(X)
    assert tf32 not in {call[0] for call in cupy.gpu.calls}
    layer = HiddenLayer(C, GAUSSIAN, backend="cupy", precision="tf32")
    error = np.abs(layer.outputs(X) - exact).max()
    assert tf32 in {call[0] for call in cupy.gpu.calls} and "tf32" in layer.describe()
    assert 1e-6 < error < 1e-2
    with pytest.raises(BackendUnavailable, match=r"tf32.*use backend='cupy'"):
        HiddenLayer(C, GAUSSIAN, backend="numpy", precision="tf32")


def test_manhattan_names_the_backends_that_have_it(cupy):
    X, C = data(np.float32)
    layer = HiddenLayer(C, Activation("manhattan", "laplacian", 0.1), backend="cupy")
    with pytest.raises(BackendUnavailable, match=r"'numba-cuda'.*backend='numba'"):
        layer.outputs(X)


def test_samples_cross_once_and_h_never(cupy):
    X, C = data(np.uint8, N=6000, m=64, n=32)
    W, T = RNG.normal(size=(64, 3)).astype(np.float32), RNG.normal(size=(6000, 2))
    layer = HiddenLayer(C, GAUSSIAN, backend="cupy")
    layer.scores(X[:1], W)
    gpu = cupy.gpu
    gpu.copies.clear()
    S = layer.scores(X, W)
    assert gpu.bytes("in") == X.nbytes + W.nbytes and gpu.bytes("out") == S.nbytes
    gpu.copies.clear()
    normal = NormalEquations(64, 2)
    normal.add(layer, X, T, None)
    first, mean, targets = X[:1024].nbytes, 64 * 8, T.nbytes + 6000 * 8
    assert gpu.bytes("in") == first + X.nbytes + mean + targets
    assert gpu.bytes("out") == mean
    gpu.copies.clear()
    solution = normal.solve(1e-3, True)
    # W, the mean and the trace; nothing of the size of H or of its square.
    assert max(n for _, n in gpu.copies) <= solution.W.nbytes


def test_what_is_on_the_device_stays_there(cupy):
    X, C = data(np.float32)
    layer = HiddenLayer(cupy.asarray(C), GAUSSIAN, backend="cupy")
    assert type(layer.centers) is np.ndarray
    there, W, T = cupy.asarray(X), RNG.normal(size=(len(C), 2)), RNG.normal(size=(len(X), 2))
    H = layer.outputs(there)
    cupy.gpu.copies.clear()
    H, S = layer.outputs(there), layer.scores(there, cupy.asarray(W))
    assert cupy.gpu.bytes("out") == 0 and cupy.gpu.bytes("in") == W.nbytes
    np.testing.assert_array_equal(H.get(), layer.outputs(X))
    np.testing.assert_array_equal(S.get(), layer.scores(X, W))
    for a, b in zip(layer.normal(there, T), layer.normal(X, T)):
        np.testing.assert_array_equal(a, b)
    codes, centers = data(np.uint8)
    layer = HiddenLayer(centers, GAUSSIAN._replace(gamma=1e-5), backend="cupy", precision="exact")
    np.testing.assert_array_equal(layer.outputs(cupy.asarray(codes)).get(), layer.outputs(codes))
    with pytest.raises(TypeError, match=r"X is on a GPU.*X\.get\(\)"):
        HiddenLayer(C, GAUSSIAN, backend="numpy").outputs(there)


def consumers(layer, X):
    """Everything a layer computes, as host arrays."""
    W = np.linspace(-1, 1, len(layer.centers) * 2).reshape(-1, 2)
    T = np.linspace(0, 1, len(X))[:, None]
    return [layer.outputs(X), layer.scores(X, W), *layer.normal(X, T, np.linspace(1, 2, len(X)))]


def test_the_number_of_streams_changes_no_bit(cupy, monkeypatch):
    monkeypatch.setattr(device, "_LEAST", 100)
    X, C = data(np.float32, N=1700)
    results = []
    for n_streams in (1, 2, 5):
        with config_context(n_streams=n_streams):
            results.append(consumers(HiddenLayer(C, GAUSSIAN, backend="cupy"), X))
    for other in results[1:]:
        for a, b in zip(results[0], other):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("consumer", range(3))
def test_memory_that_runs_out_halves_the_tile_and_leaves_nothing(cupy, monkeypatch, consumer):
    monkeypatch.setattr(device, "_LEAST", 64)
    gpu = cupy.gpu
    X, C = data(np.float32, N=500)
    layer = HiddenLayer(C, GAUSSIAN, backend="cupy")
    run = [
        lambda: [layer.outputs(X)],
        lambda: [layer.scores(X, np.ones((len(C), 2)))],
        lambda: layer.normal(X, np.ones((len(X), 1))),
    ][consumer]
    expected = run()
    (pool,) = (pool for pool in gpu.pools if pool.used)
    resident = pool.used
    start = gpu.n_allocations
    run()
    used = gpu.n_allocations - start
    # Wherever it happens, several times, and in a row.
    for k in range(1, used + 1, 3):
        tiles = len(gpu.calls)
        gpu.fail_at = {gpu.n_allocations + k + d for d in (0, 1, 25)}
        try:
            got = run()
        except standin.OutOfMemoryError:
            assert k <= 3  # in what a call makes before its first tile: W, the sums
            continue
        assert len(gpu.calls) > tiles
        for a, b in zip(got, expected):
            np.testing.assert_allclose(a, b, rtol=1e-6)
    gpu.fail_at = ()
    assert pool.used == resident


def test_memory_that_does_not_hold_a_row_says_what_to_do(cupy):
    X, C = data(np.float32)
    layer = HiddenLayer(C, GAUSSIAN, backend="cupy")
    layer.outputs(X[:1])
    cupy.gpu.fail_above = 100
    with pytest.raises(MemoryError, match=r"one row.*GPURBF_GPU_MEMORY.*backend='numba'"):
        layer.outputs(X)
    with pytest.raises(MemoryError, match="37 centers of 21 inputs"):
        HiddenLayer(C, GAUSSIAN, backend="cupy").outputs(X)


@pytest.mark.parametrize("how", ["config", "environment"])
def test_the_pool_stays_within_its_budget(cupy, monkeypatch, how):
    X, C = data(np.float32, N=20_000, m=100)
    megabytes = 2
    if how == "environment":
        monkeypatch.setenv("GPURBF_GPU_MEMORY", str(megabytes))
    with config_context(**({"gpu_memory": megabytes} if how == "config" else {})):
        limited = consumers(HiddenLayer(C, GAUSSIAN, backend="cupy"), X)
    peak = max(pool.peak for pool in cupy.gpu.pools)
    assert 0.3 * megabytes * 2**20 < peak <= megabytes * 2**20
    monkeypatch.delenv("GPURBF_GPU_MEMORY", raising=False)
    for a, b in zip(limited, consumers(HiddenLayer(C, GAUSSIAN, backend="cupy"), X)):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=2e-5)


def test_free_blocks_are_given_back(cupy, monkeypatch):
    monkeypatch.setattr(device, "_KEPT", 1 << 16)
    X, C = data(np.float32, N=5000, m=60)
    HiddenLayer(C, GAUSSIAN, backend="cupy").scores(X, np.ones((60, 2)))
    assert max(pool.peak for pool in cupy.gpu.pools) > device._KEPT
    assert sum(pool.free_bytes() for pool in cupy.gpu.pools) <= device._KEPT


def test_an_interrupt_leaves_no_work_and_no_memory_behind(cupy, monkeypatch):
    monkeypatch.setattr(device, "_LEAST", 64)
    X, C = data(np.float32, N=500)
    layer = HiddenLayer(C, GAUSSIAN, backend="cupy")
    expected = layer.outputs(X)
    used = sum(pool.used for pool in cupy.gpu.pools)
    gemm, calls = cupy.cuda.cublas.gemmEx, []

    def interrupted(*arguments):
        calls.append(None)
        if len(calls) == 3:
            raise KeyboardInterrupt
        gemm(*arguments)

    monkeypatch.setattr(cupy.cuda.cublas, "gemmEx", interrupted)
    with pytest.raises(KeyboardInterrupt):
        layer.outputs(X)
    assert sum(pool.used for pool in cupy.gpu.pools) == used
    np.testing.assert_array_equal(layer.outputs(X), expected)


def test_a_forked_process_is_told_so(cupy, monkeypatch):
    X, C = data(np.float32)
    layer = HiddenLayer(C, GAUSSIAN, backend="cupy")
    layer.outputs(X)
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    with pytest.raises(RuntimeError, match=r"forked after its parent had used the GPU.*loky"):
        layer.outputs(X)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_block_form_is_the_delta_rule(weighted):
    Z, T, W = RNG.normal(size=(30, 7)), RNG.normal(size=(30, 2)), RNG.normal(size=(7, 2))
    Z[3] = 0
    w = RNG.integers(1, 4, 30).astype(float) if weighted else None
    repeats = np.ones(30, int) if w is None else w.astype(int)
    expected = reference.lms(Z.repeat(repeats, 0), T.repeat(repeats, 0), W, 0.05, 1)
    got = W.copy()
    for part in (slice(0, 11), slice(11, 30)):
        block_rule(np, Z[part], T[part], got, 0.05, None if w is None else w[part])
    np.testing.assert_allclose(got, expected, rtol=1e-10)


@pytest.mark.parametrize("megabytes", [None, 1])
def test_lms_on_the_device(cupy, monkeypatch, megabytes):
    monkeypatch.setattr(sys.modules[lms.__module__], "_BLOCK", 32)
    X, C = data(np.float64, N=3000, m=40, n=8)
    T, w = RNG.normal(size=(3000, 3)), RNG.uniform(0.2, 3, 3000)
    activation = Activation("euclidean", "gaussian", 0.1)
    options = {"center_targets": T[:40], "n_epochs": 3, "order": RNG.permutation(3000)[:2500]}
    # By default the rate is found on the activations that are kept.
    options["learning_rate"] = None if megabytes is None else 0.01
    seen = []
    with config_context(gpu_memory=megabytes):
        layers = (HiddenLayer(C, activation, backend=name) for name in ("cupy", "numba"))
        got, expected = (
            lms(layer, X, T, w, **options, after_epoch=lambda e, W: seen.append(W.shape))
            for layer in layers
        )
    assert seen == [(40, 3)] * 6
    np.testing.assert_allclose(got, expected, rtol=1e-8, atol=1e-8)
    with pytest.raises(ValueError, match="overflowed in epoch"):
        layer = HiddenLayer(C, activation, backend="cupy")
        lms(layer, X, T, None, center_targets=None, learning_rate=100.0, n_epochs=20)


ESTIMATORS = {
    "ridge": gpurbf.RBFClassifier(60, random_state=0),
    "lms": gpurbf.RBFClassifier(60, solver="lms", random_state=0),
    "class": gpurbf.RBFClassifier(60, centers="fsvc-class", kernel="laplacian", random_state=0),
    "fsvc": gpurbf.FSVC(40.0, random_state=0),
    "fsvc-ridge": gpurbf.FSVC(40.0, kernel="gaussian", solver="ridge", random_state=0),
    "svc": gpurbf.SVC(C=10, gamma=0.001),
    "poly": gpurbf.SVC(kernel="poly"),
    "layer": gpurbf.RBFLayer(60, random_state=0),
}


def answers(model, X):
    return model.transform(X) if hasattr(model, "transform") else model.decision_function(X)


@pytest.mark.parametrize("name", ESTIMATORS)
@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
def test_the_estimators_give_numpy_s_answers_and_travel(cupy, name, dtype):
    X, y = load_digits(return_X_y=True)
    X = X.astype(dtype) if dtype == np.uint8 else X / 16 + 0.01
    X, y, new = X[:600], y[:600], X[600:700]
    model = ESTIMATORS[name]
    scale = 1.0 if dtype == np.uint8 else 16.0
    if "radius" in model.get_params():
        model = type(model)(**model.get_params() | {"radius": 40.0 / scale})
    elif name == "svc":
        model = type(model)(**model.get_params() | {"gamma": 0.001 * scale**2})
    here = type(model)(**model.get_params()).set_params(backend="cupy").fit(X, y)
    there = type(model)(**model.get_params()).set_params(backend="numpy").fit(X, y)
    assert here.backend_ == "cupy" and len(cupy.gpu.calls) > 0
    tolerance = {"rtol": 1e-3, "atol": 2e-3}
    np.testing.assert_allclose(answers(here, new), answers(there, new), **tolerance)
    for key, value in vars(here).items():
        assert not hasattr(value, "__cuda_array_interface__"), key
    # Trained on one, it predicts on the other.
    moved = pickle.loads(pickle.dumps(here)).set_params(backend="numpy")
    np.testing.assert_allclose(answers(moved, new), answers(here, new), **tolerance)
    moved = pickle.loads(pickle.dumps(there)).set_params(backend="cupy")
    np.testing.assert_allclose(answers(moved, new), answers(there, new), **tolerance)


def test_the_rows_of_svc_stay_on_the_device(cupy, monkeypatch):
    for name, value in {"binary.WHOLE": 40, "binary.WORKING_SET": 32, "pairs._MATRIX": 0}.items():
        monkeypatch.setattr(f"gpurbf.network.solvers.smo.{name}", value)
    X, y = load_digits(return_X_y=True)
    X, y = X[y < 5].astype(np.uint8), y[y < 5]
    model = gpurbf.SVC(C=10, gamma=0.001, cache_size=0.2, backend="cupy").fit(X, y)
    copies = sorted(cupy.gpu.copies, reverse=True)
    expected = gpurbf.SVC(C=10, gamma=0.001, backend="numpy").fit(X, y)
    # At most a working block, or a number a sample of a class, comes back at a time.
    n = np.bincount(y).max()
    assert copies[0][0] == "out" and copies[0][1] <= max(32 * 32 * 4, n * 8)
    # The samples go there as a whole once and as the centers of their class once.
    sizes = [size for way, size in copies if way == "in"]
    assert sizes.count(X.nbytes) == 1
    for size in np.bincount(y) * X.shape[1]:
        assert sizes.count(size) <= np.count_nonzero(np.bincount(y) * X.shape[1] == size)
    np.testing.assert_allclose(
        model.decision_function(X[:100]), expected.decision_function(X[:100]), atol=5e-3
    )


def test_batches_travel_between_backends(cupy):
    X, y = load_digits(return_X_y=True)
    model = gpurbf.RBFClassifier(40, centers=X[:40], gamma=0.001, backend="cupy")
    expected = gpurbf.RBFClassifier(40, centers=X[:40], gamma=0.001, backend="numpy")
    for i, backend in enumerate(("cupy", "cupy", "numpy", "cupy")):
        rows = slice(200 * i, 200 * i + 200)
        model.set_params(backend=backend).partial_fit(X[rows], y[rows], classes=range(10))
        expected.partial_fit(X[rows], y[rows], classes=range(10))
        model = pickle.loads(pickle.dumps(model))
    np.testing.assert_allclose(model.coef_, expected.coef_, rtol=1e-3, atol=1e-4)


def test_auto_takes_the_gpu_where_the_work_outweighs_the_transfer(cupy, monkeypatch):
    monkeypatch.delenv("GPURBF_BACKEND", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 6)
    backend, reason = get_backend("auto", 99)
    assert backend.xp is np and "not worth the transfer (from 100 centers)" in reason
    for n_centers in (100, None):
        backend, reason = get_backend("auto", n_centers)
        assert backend.name == "cupy" and "is worth the transfer (from 100 centers)" in reason
    C = data(np.float32, m=120)[1]
    assert HiddenLayer(C, GAUSSIAN).backend.name == "cupy"
    assert HiddenLayer(C[:50], GAUSSIAN).backend.name != "cupy"


def test_without_a_gpu_there_is_an_install_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy", None)
    _load.cache_clear()
    with pytest.raises(BackendUnavailable, match=r"pip install gpurbf\[cuda12\]"):
        get_backend("cupy")
    modules = standin.make()
    modules["cupy"].cuda.is_available = lambda: False
    monkeypatch.setitem(sys.modules, "cupy", modules["cupy"])
    with pytest.raises(BackendUnavailable, match=r"no NVIDIA GPU.*CUDA_VISIBLE_DEVICES"):
        get_backend("cupy")


def test_settings_of_the_gpu_are_checked(cupy, monkeypatch):
    for wrong in ({"gpu_memory": 0}, {"n_streams": 0}, {"n_streams": 1.5}):
        with pytest.raises(ValueError, match=next(iter(wrong))), config_context(**wrong):
            pass
    monkeypatch.setenv("GPURBF_GPU_MEMORY", "much")
    X, C = data(np.float32)
    with pytest.raises(ValueError, match="GPURBF_GPU_MEMORY must be a number"):
        HiddenLayer(C, GAUSSIAN, backend="cupy").outputs(X)
