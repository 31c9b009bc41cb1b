"""The fused on-line delta rule is the plain loop, for every shape, thread and weight."""

import tracemalloc

import numpy as np
import pytest
from callers import layer_of

from gpurbf import RBFClassifier, config_context
from gpurbf.layer.backends.numba.packing import aligned
from gpurbf.runtime import config
from gpurbf.solvers.lms import LMS, _Tiles, lms_rows
from gpurbf.solvers.one_hot import mean_targets, one_hot
from tests import reference

RNG = np.random.default_rng(3)
X, T = RNG.standard_normal((300, 5)), np.eye(3)[RNG.integers(0, 3, 300)]
LAYER = layer_of(X[:39], 0.3, backend="numba")


def problem(b, m, k, dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    H = (rng.random((b, m)) ** 6).astype(dtype)
    return H, np.eye(k)[rng.integers(0, k, b)], rng.standard_normal((m, k))


def padded(A, rows, columns, dtype):
    found = aligned((-(-len(A) // rows) * rows, -(-A.shape[1] // columns) * columns), dtype)
    found[:] = 0
    found[: len(A), : A.shape[1]] = A
    return found


def fused(H, T, W, learning_rate, weights=None):
    out, weights = padded(W.T, 1, 8, np.float64), np.ones(len(T)) if weights is None else weights
    lms_rows(padded(H, 4, 8, H.dtype), T, out, learning_rate, weights)
    return out[:, : len(W)].T


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("b", [1, 3, 4, 5, 8, 33])
@pytest.mark.parametrize("m", [1, 7, 8, 9, 64, 515, 1030])
@pytest.mark.parametrize("k", [1, 2, 3, 10])
def test_an_epoch_is_that_of_the_plain_loop(b, m, k, dtype):
    """float32 activations are taken as they are."""
    H, T, W = problem(b, m, k, dtype)
    rate = 0.5 / (H.astype(float) ** 2).sum(axis=1).max()
    expected = reference.lms(H.astype(float), T, W, rate, 1)
    np.testing.assert_allclose(fused(H, T, W, rate), expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("b", [1, 3, 22])
@pytest.mark.parametrize("part", [0.0, 0.5])
def test_a_weight_counts_as_so_many_equal_samples_in_succession(b, part):
    """And what is beyond a whole number as a smaller step."""
    H, T, W = problem(b, 40, 3)
    weights, expected = np.random.default_rng(1).integers(1, 5, b), W
    for i, weight in enumerate(weights):
        for step in [1.0] * weight + [part]:
            expected = reference.lms(H[i : i + 1], T[i : i + 1], expected, 0.1 * step, 1)
    np.testing.assert_allclose(fused(H, T, W, 0.1, weights + part), expected, rtol=1e-12)


def test_a_weight_loses_no_digits_where_activations_are_small():
    H, T, W = np.full((1, 8), 1e-7), np.ones((1, 1)), np.zeros((8, 1))
    expected = reference.lms(H.repeat(50, 0), T.repeat(50, 0), W, 0.1, 1)
    found = fused(H, T, W, 0.1, np.array([50.0]))
    np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.parametrize("rate", [0.1, None])
@pytest.mark.parametrize("samples", [True, False], ids=["samples", "no samples"])
def test_epochs_are_those_of_the_plain_loop_whether_activations_fit_in_memory(rate, samples):
    """In bits; centers that are no samples start from zero."""
    order = np.random.default_rng(0).permutation(len(X) - 1)
    H, start = LAYER.activations(X)[order], T[:39] if samples else None
    safe = 1 / np.square(H).sum(axis=1).max()
    expected = reference.lms(H, T[order], T[:39] * samples, rate or safe, 4)
    found = []
    for megabytes in (256, 0.1):
        with config_context(memory=megabytes):
            found.append(LMS(rate, n_epochs=4).train(LAYER, X, T, None, start=start, order=order))
    np.testing.assert_allclose(found[0], expected, rtol=1e-10)
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(("memory", "passes"), [("auto", 1), (0.1, 3)])
def test_activations_are_kept_if_free_memory_or_a_limit_allows(monkeypatch, memory, passes):
    monkeypatch.setattr(config, "_WORKING_MEGABYTES", 0.1)
    layer, computed = layer_of(X[:39], 0.3, backend="numba"), []
    monkeypatch.setattr(
        layer, "activations", lambda X, out: computed.append(len(X)) or LAYER.activations(X, out)
    )
    with config_context(memory=memory):
        LMS(0.1, n_epochs=3).train(layer, X, T, None)
    assert sum(computed) == passes * len(X)


def test_activations_that_are_kept_come_in_tiles_too(monkeypatch):
    """The targets of all samples were copied at once."""
    monkeypatch.setattr("gpurbf.solvers.lms._MAX_TILE_BYTES", 1)
    tiles = _Tiles(LAYER, X, np.arange(len(X)))
    for _ in range(2):
        rows, parts = zip(*((rows, H[: len(rows), :39]) for rows, H in tiles), strict=True)
        assert tiles.filled and list(map(len, rows)) == [64, 64, 64, 64, 44]
        np.testing.assert_array_equal(np.concatenate(rows), tiles.order)
        np.testing.assert_array_equal(np.concatenate(parts), LAYER.activations(X))


@pytest.mark.parametrize("n_classes", [2, 3])
@pytest.mark.parametrize("weighted", [False, True])
def test_only_equal_samples_of_several_classes_have_other_targets(n_classes, weighted):
    """Those of ten copies in one class were 0.9999999999999999."""
    keys, labels = np.repeat(np.arange(5), 10), np.repeat([0, 1, 0, 1, 0], 10)
    labels[40:43] = 1
    w = RNG.integers(0, 3, 50).astype(float) if weighted else np.ones(50)
    found, plain = mean_targets(labels, n_classes, keys, w), one_hot(labels, n_classes)
    np.testing.assert_array_equal(found[:40], plain[:40])
    mean = np.average(plain[40:], axis=0, weights=w[40:])
    np.testing.assert_allclose(found[40:], np.tile(mean, (10, 1)), rtol=1e-15)


def test_the_weights_after_each_epoch_are_those_of_so_many_epochs():
    for n_epochs, W in enumerate(LMS(0.1, n_epochs=3).epochs(LAYER, X, T, None), 1):
        assert np.array_equal(W, LMS(0.1, n_epochs=n_epochs).train(LAYER, X, T, None))
    assert n_epochs == 3


def test_heavy_samples_that_no_center_reaches_teach_nothing():
    model = RBFClassifier(centers=np.full((3, 5), 1e4), gamma=1.0, solver="lms")
    assert not model.fit(X, T.argmax(axis=1), np.full(len(X), 1e9)).coef_.any()


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("rate", [None, 0.01])
def test_activations_that_are_not_finite_are_not_the_fault_of_the_rate(rate, value):
    X, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
    model = RBFClassifier(5, kernel=lambda d: np.full_like(d, value), solver=LMS(rate))
    with pytest.raises(ValueError, match=r"activations cannot be computed.* kernel="):
        model.fit(X, y)


def test_wide_samples_are_not_all_copied_at_once():
    wide, targets = RNG.standard_normal((1000, 2000)), np.eye(2)[RNG.integers(0, 2, 1000)]
    layer = layer_of(wide[:8], 1e-3, backend="numba")
    order, train = RNG.permutation(1000), LMS(n_epochs=1).train
    train(layer, wide[:10], targets[:10], None, start=None, order=np.arange(10))
    whole = train(layer, wide, targets, None, start=None, order=order)
    with config_context(memory=4):
        tracemalloc.start()
        found = train(layer, wide, targets, None, start=None, order=order)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < wide.nbytes / 2
    np.testing.assert_array_equal(found, whole)
