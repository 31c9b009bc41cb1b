"""The hidden layer is its definition on every backend, dtype, metric, profile and shape."""

import numpy as np
import pytest
import reference
import scipy.sparse as sp
from callers import layer_of, run_threads, sums_of

from gpurbf.data.samples import quantize_or_keep
from gpurbf.layer.activation import PROFILES, Activation
from gpurbf.layer.layer import HiddenLayer
from gpurbf.runtime.threads import limited

SHAPES = [(0, 3, 5), (1, 1, 1), (1, 40, 17), (15, 16, 8), (17, 15, 33), (130, 70, 20)]


def data(dtype, N=150, m=37, n=21):
    """Samples and centers; integers have a sample that is a center. "sixteenths" are quantized."""
    rng = np.random.default_rng(0)
    if dtype == "sixteenths":
        X, C = data(np.int8, N, m, n)
        return X / np.float32(16), C / np.float32(16)
    rows = rng.normal(size=(N + m, n))
    if np.dtype(dtype).kind in "ui":
        info = np.iinfo(dtype)
        rows = rng.integers(max(info.min, -99), min(info.max, 255) + 1, (N + m, n))
        rows[0] = rows[-1]
    return rows[:N].astype(dtype), rows[N:].astype(dtype)


def gamma_for(X, profile, metric):
    """A gamma for which the activations are neither all 0 nor all 1."""
    length = abs(reference.METRICS[metric](X[:8], X[-8:])).max(initial=0) or 1.0
    if metric == "dot":
        return 1 / length
    return 0.6 / length if profile in ("laplacian", "triangular") else 0.9 / length**2


def assert_close(H, expected, dtype):
    tolerance = reference.TOLERANCE[np.dtype(dtype)]
    scale = max(1.0, np.abs(expected).max(initial=0))
    np.testing.assert_allclose(H, expected, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("metric", reference.METRICS)
@pytest.mark.parametrize("dtype", [np.uint8, np.int8, "sixteenths", np.float32, np.float64])
def test_outputs_are_the_definition(backend, metric, dtype):
    """A profile that is a function gets squared distances."""
    X, C = data(dtype, 45, 37, 19)
    W, scale = np.random.default_rng(0).normal(size=(37, 2)), gamma_for(X, "gaussian", metric)
    of_distances = (*PROFILES, lambda s: 1 / (1 + scale * s))
    for profile in reference.DOT_PROFILES if metric == "dot" else of_distances:
        activation = Activation(metric, profile, gamma_for(X, profile, metric), 0.5, 3)
        layer = HiddenLayer(C, activation, backend=backend)
        H = layer.activations(X)
        assert H.dtype == (np.float64 if dtype is np.float64 else np.float32)
        assert (layer.quantization is None) == (dtype in (np.float32, np.float64))
        expected = reference.hidden(X, C, *activation)
        assert_close(H, expected, H.dtype)
        if callable(profile):
            assert_close(layer.matvec(X, W), expected @ W, layer.dtype)


def test_float64_is_float64_from_the_samples_on(backend):
    X, C = data(np.float32, 45, 37, 19)
    H = layer_of(C, 0.1, backend=backend, precision="float64").activations(X)
    assert_close(H, reference.hidden(X, C, "euclidean", "gaussian", 0.1), np.float64)


@pytest.mark.parametrize(("N", "m", "n"), SHAPES)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
@pytest.mark.parametrize("metric", ["euclidean", "manhattan"])
def test_every_shape_and_consumer(backend, dtype, metric, N, m, n):
    X, C = data(dtype, N, m, n)
    gamma = gamma_for(X, "gaussian", metric)
    layer = layer_of(C, gamma, metric, backend=backend)
    H = reference.hidden(X, C, metric, "gaussian", gamma)
    rng = np.random.default_rng(1)
    W, T, w = rng.normal(size=(m, 3)), rng.normal(size=(N, 2)), rng.random(N)
    assert_close(layer.activations(X), H, layer.dtype)
    S = layer.matvec(X, W)
    assert S.dtype == layer.dtype
    assert_close(S, H @ W, layer.dtype)
    G, B = sums_of(layer, X, T, w)
    assert G.dtype == B.dtype == np.float64
    assert_close(G, (H.T * w) @ H, layer.dtype)
    assert_close(B, (H.T * w) @ T, layer.dtype)
    np.testing.assert_array_equal(G, G.T)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_offset_costs_no_digits(backend, dtype):
    X, C = data(np.float64, 50, 40, 30)
    # Steps of 2⁻⁶ survive the offset in float32, so both problems are the same one.
    X, C = np.round(X * 64) / 64, np.round(C * 64) / 64
    for offset in (0, 100):
        layer = layer_of((C + offset).astype(dtype), 0.01, backend=backend)
        H = layer.activations((X + offset).astype(dtype))
        assert np.abs(H - reference.hidden(X, C, "euclidean", "gaussian", 0.01)).max() < 1e-6


@pytest.mark.parametrize("metric", ["euclidean", "manhattan"])
def test_float64_numbers_are_shifted_before_they_are_rounded(backend, metric):
    X, C = data(np.float64, 50, 40, 30)
    C[0] = X[0]
    offset = 1e8 * np.where(np.arange(30) % 2, 1, -1)
    layer = layer_of(C + offset, 0.01, metric, "laplacian", backend=backend, precision="float32")
    H = layer.activations(X + offset)
    expected = reference.hidden(X + offset, C + offset, metric, "laplacian", 0.01)
    assert np.abs(H - expected)[1:].max() < 1e-6
    assert abs(H[0, 0] - 1) < 1e-4


@pytest.mark.parametrize("scale", [1.0, 1e-44, 1e-60, 1e60])
def test_an_offset_costs_the_same_digits_in_every_unit(backend, scale):
    X = 1e7 + np.random.default_rng(0).standard_normal((60, 5))
    layer = layer_of(scale * X[:20], 0.1 / scale**2, backend=backend)
    expected = reference.hidden(X, X[:20], "euclidean", "gaussian", 0.1)
    np.testing.assert_allclose(layer.activations(scale * X), expected, atol=1e-7)


@pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")
@pytest.mark.parametrize("dtype, far", [(np.float32, 1e30), (np.float64, 1e300)])
def test_numbers_beyond_the_dtype_make_no_activations(backend, dtype, far):
    """A product of infinite terms, and a gamma of an infinite one: NaN, which makes an error."""
    C, X = np.array([[-1e9], [0], [2e9]], dtype), np.array([[far], [1e9]], dtype)
    for profile in PROFILES:
        H = layer_of(C, 1e-19, "euclidean", profile, backend=backend).activations(X)
        assert np.isnan(H[0, 2]) and np.isfinite(H[1]).all(), profile
    if dtype is np.float32:
        near = np.array([[0], [1], [2]], dtype)
        H = layer_of(near, 1e39, backend=backend).activations(near)
        assert np.isnan(H.diagonal()).all()


def test_the_kernels_named_are_those_that_run(backend):
    """Only tiles give Manhattan distances on a CPU."""
    layer = layer_of(np.ones((3, 2)), 0.1, "manhattan", "laplacian", backend=backend)
    assert ("tiles of numba" in layer.describe()) == (backend in ("numpy", "mkl"))


def test_a_sample_at_its_center_has_distance_zero(backend):
    X = (1000 + data(np.float64, N=40, n=50)[0]).astype(np.float32)
    layer = layer_of(X, 1e-3, "euclidean", "laplacian", backend=backend)
    assert np.abs(layer.activations(X).diagonal() - 1).max() < 1e-5
    layer = layer_of(X, 1e-3, "manhattan", "laplacian", backend=backend)
    np.testing.assert_array_equal(layer.activations(X).diagonal(), 1)


def test_weights_changed_in_place_hold_at_once(backend):
    (X, C), W = data(np.float64, 5, 40, 3), np.random.default_rng(0).random((40, 2))
    layer = layer_of(C, backend=backend)
    H = layer.activations(X)
    for _ in range(3):
        np.testing.assert_allclose(layer.matvec(X, W), H @ W)
        W *= -2
    np.testing.assert_allclose(layer.matvec(X, W[:, :1]), H @ W[:, :1])


LAYOUTS = [sp.csr_matrix, sp.csr_array, np.asfortranarray, lambda X: X[::-1].copy()[::-1]]


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("store", LAYOUTS, ids=["csr_matrix", "csr_array", "fortran", "reversed"])
def test_storage_changes_nothing_and_is_not_modified(backend, store, dtype):
    X, C = data(dtype, 60, 20, 12)
    X[X < 0] = 0
    gamma = gamma_for(X, "gaussian", "euclidean")
    layer, by_columns = (layer_of(A, gamma, backend=backend) for A in (C, np.asfortranarray(C)))
    expected, stored = layer.activations(X), store(X)
    assert_close(layer.activations(stored), expected, np.float32)
    assert_close(by_columns.activations(stored), expected, np.float32)
    np.testing.assert_array_equal(stored.toarray() if sp.issparse(stored) else stored, X)


def test_out_may_be_any_array_of_the_right_shape(backend):
    X, C = data(np.float32, 40, 12, 9)
    layer = layer_of(C, backend=backend)
    expected = layer.activations(X)
    for out in (
        np.zeros((40, 12), np.float32),
        np.zeros((40, 24), np.float32)[:, ::2],
        np.zeros((12, 40), np.float32).T,
        np.zeros((40, 12), np.float64),
    ):
        assert layer.activations(X, out) is out
        np.testing.assert_array_equal(out, expected)


def test_threads_share_a_layer(backend):
    X, C = data(np.uint8, 300, 80, 40)
    layer = layer_of(C, gamma_for(X, "gaussian", "euclidean"), backend=backend)
    results = run_threads(*4 * [lambda: layer.activations(X)])
    for H in results:
        np.testing.assert_array_equal(H, results[0])


def assert_exact(n, backend):
    """Distances of the largest and smallest integers of n inputs, and of one that differs."""
    X, C = np.full((2, n), 255, np.uint8), np.zeros((3, n), np.uint8)
    C[1], C[2, 0] = 255, 1
    activation = Activation("euclidean", lambda s: s)
    layer = HiddenLayer(C, activation, backend=backend, precision="exact", dtype=np.float64)
    expected = [n * 255**2, 0, n * 255**2 - 255**2 + 254**2]
    np.testing.assert_array_equal(layer.activations(X)[0], expected)


# float32 sums are exact up to n = 1024, int32 ones up to n = 33,025.
@pytest.mark.parametrize("n", [1025, 33_025, 33_026])
def test_features_beyond_the_exact_range_of_one_product(backend, n):
    assert_exact(n, backend)


@pytest.mark.parametrize("dtype", [np.uint8, "sixteenths", np.float32, np.float64])
@pytest.mark.parametrize("n_jobs", [1, 2])
def test_each_row_is_shifted_alone(dtype, n_jobs):
    """A matrix product gets the same numbers, whatever rows a thread shifts at a time."""
    X, C = data(dtype, N=900, n=333)
    layer = HiddenLayer(C, Activation("euclidean", "gaussian", 1e-3), backend="numpy")
    prepared = layer._prepare(layer.dtype, layer.quantization)
    X = X if layer.quantization is None else quantize_or_keep(X).values
    terms = prepared.distance.terms.row
    with limited(n_jobs):
        whole = prepared.moved(X, terms)
    rows = zip(*(prepared.moved(X[i : i + 1], terms) for i in range(len(X))))
    np.testing.assert_equal(list(whole), list(map(np.concatenate, rows)))
