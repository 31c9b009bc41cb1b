"""The tile driver under every kernel: exact quantized, any shape, all consumers agree."""

import numpy as np
import pytest

from gpurbf.data.quantize import Quantization
from gpurbf.layer import distance
from gpurbf.layer.activation import Activation
from gpurbf.layer.backends.numba import cpu_kernel, tile_layer
from gpurbf.layer.backends.numba.gram import Sums
from gpurbf.layer.backends.numba.microkernels import KINDS
from gpurbf.layer.backends.numba.tile_layer import TilesAmong, prepare
from gpurbf.runtime.linalg import mirror
from tests import reference

PIXELS = Quantization(1.0, 0)
DISTANCE = Activation("euclidean", "linear")
GAUSSIAN = Activation("euclidean", "gaussian", 3e-6)
SHAPES = [
    *((0, 3, 4), (3, 0, 4), (3, 4, 0), (1, 1, 1), (15, 16, 17), (17, 15, 16), (200, 300, 33)),
    *((2, 33, 63), (7, 40, 200), (34, 31, 129), (40, 5, 65)),
]


def codes(N, m, n, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 256, (rows, n)).astype(np.uint8) for rows in (N, m)]


def outputs(X, C, activation, dtype=np.float64, quantization=PIXELS):
    H = np.empty((len(X), len(C)), dtype)
    prepare(C, activation, dtype, quantization).activations(X, H)
    return H


def matvec(layer, X, W):
    return layer.matvec(X, layer.pack_weights(W))


def of(metric, profile="linear", gamma=1.0):
    """The activation of a metric by that profile; dot products as they are."""
    return Activation(metric, "linear" if metric == "dot" else profile, gamma)


def integers(X, C, metric):
    """Squared distances or dot products of integers, exact."""
    return np.rint(reference.METRICS[metric](X, C) ** (1 if metric == "dot" else 2))


def gram(X, C, T, weights, mean, activation, dtype=np.float64, quantization=PIXELS):
    G, B = np.zeros((len(C), len(C))), np.zeros((len(C), T.shape[1]))
    prepare(C, activation, dtype, quantization).gram(X, T, weights, Sums(G, B, mean))
    mirror(G)
    return G, B


@pytest.mark.parametrize("shape", SHAPES)
def test_quantization_distances_are_exact_under_every_kernel(kernel, metric, shape):
    """So every kernel gives the same bits: of all codes, the extreme ones and those around 0."""
    rng, (N, m, n) = np.random.default_rng(0), shape
    for values in (256, [0, 255], [127, 128]):
        X, C = (rng.choice(values, (rows, n)).astype(np.uint8) for rows in (N, m))
        for zero_point in (0, 128):
            A, B = (Z.astype(int) - zero_point for Z in (X, C))
            H = outputs(X, C, of(metric), quantization=Quantization(1.0, zero_point))
            np.testing.assert_array_equal(H, integers(A, B, metric))
        assert metric == "dot" or (outputs(X, C, of(metric, "laplacian", 1e-3)) <= 1).all()


def sparse_rows(N, n, dtype=np.uint8):
    """Most are 0 in most inputs, all in a tenth, the first 40 in half, and none in the first 3.

    Numbers that are no codes have 2 instead of 0.
    """
    rng = np.random.default_rng(0)
    X = rng.integers(0, 256, (N, n)).astype(np.uint8)
    X[:, 3:][rng.random((N, n - 3)) < 0.8] = 0
    X[:, n // 4 : n // 4 + n // 10] = X[:40, n // 2 :] = 0
    return (X, PIXELS) if dtype == np.uint8 else ((X + 2).astype(dtype), None)


@pytest.fixture
def looks(monkeypatch):
    """Few centers are looked at for inputs that they have in common, as many are."""
    monkeypatch.setattr(distance, "_WORTH_A_LOOK", 0)


@pytest.mark.parametrize("quantization", [PIXELS, Quantization(16.0, 128), None])
def test_inputs_that_strips_of_centers_leave_out_count_where_samples_differ(
    kernel, dtype, quantization, metric, looks
):
    (C, _), (X, _) = sparse_rows(150, 200), codes(40, 1, 200)
    if quantization is None:
        # What most centers have is another number in each input, and none has it a bit less.
        usual = np.linspace(-1, 1, 200) if metric == "euclidean" else 0.0
        A, B = X, C = [(Z / 99 + usual).astype(dtype) for Z in (X, C)]
    else:
        zero, denominator = float(quantization.zero_point), quantization.denominator
        A, B = ((Z - zero) / denominator for Z in (X, C))
    layer = prepare(C, of(metric), dtype, quantization)
    assert layer.sparse == (metric != "manhattan")
    assert (layer.density < 1) == (metric != "manhattan")
    H = np.empty((40, 150), dtype)
    layer.activations(X, H)
    expected = reference.METRICS[metric](A, B) ** (1 if metric == "dot" else 2)
    tolerance = 1e-5 if dtype == np.float32 else 1e-13
    np.testing.assert_allclose(H, expected, tolerance, tolerance * np.abs(expected).max())


@pytest.mark.parametrize("quantization", [PIXELS, None])
def test_strips_that_are_packed_apart_have_the_bits_of_all_together(
    kernel, metric, quantization, looks, monkeypatch
):
    (C, _), (X, _) = sparse_rows(150, 200), codes(40, 1, 200)
    if quantization is None:
        C, X = (np.float32(Z / 99) for Z in (C, X))
    given = X, C, of(metric, "gaussian", 1e-5), np.float32, quantization
    together = outputs(*given)
    monkeypatch.setattr(tile_layer, "_PACKED_INPUTS", 1)
    np.testing.assert_array_equal(outputs(*given), together)


def test_dense_centers_take_all_inputs(looks):
    rng = np.random.default_rng(0)
    for C in (rng.normal(size=(200, 20)), rng.integers(0, 2, (200, 20)).astype(float)):
        layer = prepare(C, DISTANCE, np.float64, None)
        assert not layer.sparse and layer.density == 1
        np.testing.assert_array_equal(layer.packing.shift[: C.shape[1]], C.mean(axis=0))


@pytest.mark.parametrize("given", [np.float32, np.float64, np.uint8])
def test_rows_and_centers_can_be_chosen_from_one_array(metric, dtype, given, looks):
    rng, (X, quantization) = np.random.default_rng(0), sparse_rows(90, 20, given)
    activation = of(metric, "gaussian", 1e-5)
    rows, centers, places = rng.permutation(90)[:31], rng.permutation(90)[:47], np.arange(31) * 2
    before = X.copy()
    among = TilesAmong(X, activation, dtype, quantization)
    H = np.full((80, 47), np.inf, dtype)
    among.activations(among.layer(centers), rows, H, places)
    expected = reference.hidden(X[rows].astype(float), X[centers].astype(float), *activation)
    tolerance = 2e-5 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(H[places], expected, tolerance, tolerance)
    assert np.isinf(np.delete(H, places, axis=0)).all()
    np.testing.assert_array_equal(X, before)


@pytest.mark.parametrize("fresh", [slice(0, 128), slice(128, 256), slice(100, 256), slice(0, 0)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8])
@pytest.mark.parametrize("metric", ["euclidean", "manhattan"])
def test_centers_that_take_the_places_of_others_are_those(metric, dtype, fresh, looks):
    X, quantization = sparse_rows(500, 60, dtype)
    among = TilesAmong(X, Activation(metric, "gaussian", 1e-5), np.float32, quantization)

    def outputs(layer, n):
        H = np.empty((90, n), np.float32)
        among.activations(layer, np.arange(90), H)
        return H

    order = np.random.default_rng(0).permutation(500)
    before, after = order[:256], order[:256].copy()
    after[fresh] = order[256 : 256 + len(after[fresh])]
    layer = among.layer(before)
    renewed = among.layer(after, layer, fresh)
    assert (renewed is layer) == (fresh.start != 100)
    anew = among.layer(after)
    np.testing.assert_array_equal(outputs(renewed, 256), outputs(anew, 256))
    fewer = among.layer(after[:64], renewed, slice(0, 64))
    np.testing.assert_array_equal(outputs(fewer, 64), outputs(anew, 256)[:, :64])


def test_real_data_far_from_the_origin_keep_their_digits(kernel, metric, dtype):
    rng = np.random.default_rng(0)
    offset = 0 if metric == "dot" else 100
    X, C = (rng.random((rows, 30)).astype(dtype) + dtype(offset) for rows in (50, 70))
    activation = of(metric, "laplacian", 0.3)
    H = outputs(X, C, activation, dtype, None)
    tolerance = reference.TOLERANCE[np.dtype(dtype)]
    np.testing.assert_allclose(H, reference.hidden(X, C, *activation), tolerance, tolerance)


@pytest.mark.parametrize("k", [0, 1, 5, 10, 16, 17, 70])
def test_scores_are_the_outputs_times_weights(kernel, k, dtype):
    X, C = codes(110, 290, 20)
    W = np.random.default_rng(1).standard_normal((290, k))
    exact = reference.hidden(X, C, *GAUSSIAN) @ W
    S = matvec(prepare(C, GAUSSIAN, dtype, PIXELS), X, W)
    assert S.dtype == dtype and S.shape == (110, k)
    np.testing.assert_allclose(S, exact, atol=400 * np.finfo(dtype).eps)


def test_scores_of_many_centers_keep_the_digits_of_float32(kernel):
    X, C = codes(5, 10_000, 4)
    activation = Activation("euclidean", "multiquadric", 1e-2)
    S = matvec(prepare(C, activation, np.float32, PIXELS), X, np.ones((len(C), 1)))
    exact = reference.hidden(X, C, *activation).sum(axis=1)
    np.testing.assert_allclose(S[:, 0], exact, rtol=4 * np.finfo(np.float32).eps)


def test_infinite_scores_are_those_of_their_sample_only(kernel):
    rng = np.random.default_rng(0)
    X, C = (rng.standard_normal((rows, 7), np.float32) for rows in (100, 290))
    W = rng.standard_normal((290, 6))
    X[95:] = 1e30
    activation = Activation("euclidean", "multiquadric", 1.0)
    S = matvec(prepare(C, activation, np.float32, None), X, W)
    assert not np.isfinite(S[95:]).any()
    exact = reference.hidden(X[:95], C, *activation) @ W
    np.testing.assert_allclose(S[:95], exact, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("N, m, k", [(1, 1, 1), (300, 210, 17), (2500, 33, 3), (0, 5, 2)])
def test_normal_matrices_are_sums_over_centered_weighted_rows(kernel, N, m, k, dtype):
    X, C = codes(N, m, 20)
    rng = np.random.default_rng(1)
    T, weights = rng.standard_normal((N, k)), rng.random(N)
    mean = np.full(m, 0.25)
    G, B = gram(X, C, T, weights, mean, GAUSSIAN, dtype)
    Z = reference.hidden(X, C, *GAUSSIAN) - mean
    scale = max(1, N) * np.finfo(dtype).eps * 4
    np.testing.assert_allclose(G, Z.T @ (weights[:, None] * Z), rtol=0, atol=scale)
    np.testing.assert_allclose(B, Z.T @ (weights[:, None] * T), rtol=0, atol=10 * scale)
    np.testing.assert_array_equal(G, G.T)


def test_largest_sums_of_32_bits_do_not_overflow(kernel):
    zero = np.zeros((1, distance.INT32_FEATURES), np.uint8)
    full = zero + np.uint8(255)
    for X, C in ((zero, full), (zero, zero), (full, full)):
        for metric in reference.METRICS:
            np.testing.assert_array_equal(outputs(X, C, of(metric)), integers(X, C, metric))


@pytest.mark.parametrize("metric", ["manhattan", "dot"])
def test_long_float32_sums_are_made_in_runs(kernel, metric):
    """One too large for its next term loses the terms of its own run only, which is as long."""
    run = KINDS[cpu_kernel.kernel_for(metric, np.float32, kernel)].run
    activation = of(metric) if metric == "dot" else Activation(metric, np.sqrt)
    for n in (1, run, run + 2, 2 * run, 3 * run + 6):  # even sums are exact at 2**24
        X, C = np.ones((13, n), np.float32), np.full((35, n), metric == "dot", np.float32)
        X[:, 0] = 2**24
        lost = min(n, run) - 1
        assert (outputs(X, C, activation, np.float32, None) == 2**24 + n - 1 - lost).all()


def test_very_many_inputs_are_taken_in_parts_with_the_bits_of_all_at_once(
    kernel, metric, dtype, looks, monkeypatch
):
    X, C = (np.random.default_rng(N).standard_normal((N, 6000)).astype(dtype) for N in (20, 70))
    # The first strips take 2,500 inputs, the others 4,500.
    C[:, 500:2000] = C[:32, 500:4000] = 0
    activation = of(metric, "gaussian", 1e-4)
    layer = prepare(C, activation, dtype, None)
    assert layer.sparse == (metric != "manhattan")
    assert 0 < tile_layer._part(layer.kind, layer.width) < 2500
    assert all(tile_layer._RUN % kind.run == 0 for kind in KINDS.values() if kind.run)
    in_parts = outputs(X, C, activation, dtype, None)
    tolerance = 10 * reference.TOLERANCE[np.dtype(dtype)]
    expected = reference.hidden(X, C, *activation)
    np.testing.assert_allclose(in_parts, expected, tolerance, tolerance * np.abs(expected).max())
    monkeypatch.setattr(tile_layer, "_WIDE_BYTES", np.inf)
    np.testing.assert_array_equal(outputs(X, C, activation, dtype, None), in_parts)


def test_distances_beyond_32_bits_stay_exact_in_every_consumer(metric, dtype):
    X, C = codes(2, 3, 2 * distance.INT32_FEATURES + 5)
    X[0], C[0] = 0, 255
    activation, exact = of(metric), integers(X, C, metric)
    # A distance is exact; float32 rounds it, and its square.
    rounding = 0 if dtype == np.float64 else 2 * np.finfo(dtype).eps
    np.testing.assert_allclose(outputs(X, C, activation, dtype), exact, rounding)
    among, H = TilesAmong(X, activation, dtype, PIXELS), np.empty((2, 2), dtype)
    among.activations(among.layer(np.arange(2)), np.arange(2), H)
    np.testing.assert_array_equal(H, outputs(X, X, activation, dtype))
    W, T, mean = np.ones((3, 2)), np.ones((2, 1)), np.zeros(3)
    S = matvec(prepare(C, activation, dtype, PIXELS), X, W)
    np.testing.assert_allclose(S, exact @ W, 1e-6)
    _, B = gram(X, C, T, None, mean, activation, dtype)
    np.testing.assert_allclose(B, exact.T @ T, 1e-6)


def test_rows_are_independent_of_their_batch(kernel):
    X, C = codes(40, 50, 60)
    for quantization, A, B in ((PIXELS, X, C), (None, X / np.float32(3), C / np.float32(3))):
        H = outputs(A, B, GAUSSIAN, np.float32, quantization)
        for i in (0, 13, 39):
            one = outputs(A[i : i + 1], B, GAUSSIAN, np.float32, quantization)
            np.testing.assert_array_equal(one[0], H[i])


def test_threads_are_woken_for_as_much_work_as_they_are_worth(monkeypatch):
    asked = []
    monkeypatch.setattr(tile_layer, "parallel_for", lambda task, *sizes: asked.append(sizes))
    monkeypatch.setattr(tile_layer, "planned_threads", lambda: 4)
    assert outputs(*codes(24, 100, 20), DISTANCE).any() and not asked  # done without asking anyone
    for m in (40_000, 90_000):
        outputs(*codes(24, m, 20), DISTANCE)
    (tasks, useful), (more_tasks, more_useful) = asked
    assert 1 < useful < more_useful
    assert max(tasks, more_tasks) <= 4  # no more than there are threads
