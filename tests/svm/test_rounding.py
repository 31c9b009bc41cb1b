"""float32 is taken for sums of kernel values where its error is stated, and below the tolerance."""

from itertools import combinations

import numpy as np
import pytest
import reference
from sklearn.datasets import make_classification

from gpurbf import SVC
from gpurbf.data.samples import quantize_or_keep
from gpurbf.layer.activation import Activation
from gpurbf.layer.backends import get_backend
from gpurbf.layer.backends.numba.matvec import GroupedWeights
from gpurbf.layer.layer import HiddenLayer
from gpurbf.svm.kernel_matrix import KernelRows
from gpurbf.svm.ovo import support_layer
from gpurbf.svm.rounding import arithmetic, float32_error


def table(n=30, spread=1.0, offset=0.0):
    X, y = make_classification(1500, n, n_informative=n // 2, random_state=0)
    scales = 1 + np.random.default_rng(0).pareto(2, (len(X), 1)) * (spread > 1)
    return X * scales + offset, y


def verdict(model, X, y, metric, profile, *numbers):
    """The reference's verdict on a model of two classes; numbers: gamma, coef0, degree."""
    K, beta = reference.hidden(X, X, metric, profile, *numbers), np.zeros(len(X))
    beta[model.support_] = model.dual_coef_[0]
    signs = np.where(y == model.classes_[1], 1.0, -1.0)
    return reference.svc_dual(K, signs, np.full(len(X), model.C), beta)


@pytest.mark.parametrize("spread", [1.0, 20.0])
@pytest.mark.parametrize("offset", [0.0, 1000.0])
@pytest.mark.parametrize("kernel", [("euclidean", "gaussian"), ("dot", "linear")])
def test_sums_err_by_no_more_than_is_said(backend, spread, offset, kernel):
    X, _ = table(spread=spread, offset=offset)
    activation = Activation(*kernel, 1 / 30)
    samples, rng = quantize_or_keep(X), np.random.default_rng(1)
    between, itself = float32_error(samples, activation, get_backend(backend))
    # As a solver's coefficients, they add up to 0.
    W = np.array([rng.permutation(np.repeat([1.0, -1.0, 0.0], [400, 400, 700])) for _ in range(20)])
    dtypes = np.float32, np.float64
    layers = (HiddenLayer(samples, activation, backend=backend, dtype=dtype) for dtype in dtypes)
    single, double = (layer.activations(samples).astype(np.float64) for layer in layers)
    error = np.abs(single @ W.T - double @ W.T)
    assert 0 < error.max() < 6 * between * np.sqrt(800) + itself
    assert error.std() < 3 * between * np.sqrt(800) + itself


def test_an_error_beyond_all_numbers_is_no_warning_of_numpy():
    X, y = table()
    with np.errstate(over="raise"), pytest.warns(UserWarning, match="is so large"):
        SVC(gamma=1e300).fit(1e8 * X, y)


@pytest.mark.parametrize("n_pairs", [2, 20])
def test_predictions_err_by_no_more_than_their_values_do(backend, n_pairs):
    # Support vectors come class by class: summed in that order these err up to five times as much.
    rng, counts = np.random.default_rng(0), np.array([2000, 2500, 0])
    V, X = (rng.integers(0, 256, (N, 20)).astype(np.uint8) for N in (counts.sum(), 300))
    activation = Activation("euclidean", "gaussian", 1e-5)
    coefficients = np.concatenate([rng.uniform(5, 10, 2000), rng.uniform(-8, -4, 2500)])
    W = np.repeat(coefficients[:, None], n_pairs, axis=1)
    W[::2, 1::2] = 0
    classes = [(0, W[:2000], np.arange(n_pairs)), (2000, W[2000:], np.arange(n_pairs))]
    given = V, GroupedWeights(classes, n_pairs), activation
    options = {"precision": "auto", "quantizations": None, "tol": 1.0}
    layer, weights = support_layer(*given, backend=get_backend(backend), **options)
    assert layer.dtype == np.float32
    exact = HiddenLayer(V, activation, backend="numba", precision="float64").matvec(X, W)
    error = np.abs(layer.matvec(X, weights) - exact)
    assert (error < 3 * np.finfo(np.float32).eps * np.linalg.norm(W, axis=0)).all()


@pytest.mark.parametrize(("degree", "C"), [(2, 10.0), (3, 10.0), (6, 0.1), (9, 1e-3)])
def test_predictions_of_powers_of_codes_err_by_less_than_the_tolerance(degree, C):
    rng = np.random.default_rng(0)
    X, Q = (rng.integers(0, 256, (N, 3)).astype(np.uint8) for N in (1500, 300))
    y = (X.sum(axis=1, dtype=int) > 380) ^ (rng.random(1500) < 0.3)
    model = SVC(kernel="poly", degree=degree, coef0=1.0, C=C).fit(X, y)
    K = reference.hidden(Q, model.support_vectors_, "dot", "poly", model._gamma, 1.0, degree)
    outputs = K @ model.dual_coef_[0] + model.intercept_
    np.testing.assert_allclose(model.decision_function(Q), outputs, rtol=0, atol=model.tol / 4)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_predictions_of_many_copies_err_by_less_than_the_tolerance(n_classes):
    rng = np.random.default_rng(0)
    X = rng.integers(0, 7, (5000, 1))
    wrong = rng.random(5000) < 0.35
    y = np.where(wrong, rng.integers(0, n_classes, 5000), X[:, 0] // 3 % n_classes)
    model = SVC(kernel="poly", degree=1, coef0=1.0, gamma=0.007, C=3.0, tol=1e-4)
    model.fit(X, y).decision_function_shape = "ovo"
    outputs = model.decision_function(X[:300])
    exact = model.set_params(precision="float64").decision_function(X[:300])
    np.testing.assert_allclose(outputs, exact, rtol=0, atol=model.tol / 4)


def numbers(N, factor=1):
    X, y = make_classification(
        2500, 6, n_informative=6, n_redundant=0, flip_y=0.02, class_sep=0.7, random_state=3
    )
    return factor * X[:N], y[:N]


def codes(N, n=4):
    rng = np.random.default_rng(0)
    X = rng.integers(0, 256, (N, n)).astype(np.uint8)
    return X, X @ [1.0, -1, 1, -1][:n] + rng.normal(0, 60, N) > 0


def bright(N):
    X, y = codes(N)
    return X // 8 + 200, y


def noise():
    """With a narrow kernel the samples are far from each other: steps ahead are hardly any."""
    rng = np.random.RandomState(11)
    return rng.randint(0, 256, (3000, 100)).astype(np.uint8), rng.rand(3000) < 0.15


def alike(N, seed):
    """Kernel values of nearly 16 differ by less than their diagonal's rounding to float32."""
    rng = np.random.RandomState(seed)
    return np.c_[np.full(N, 7.0), 0.01 * rng.randn(N)], rng.rand(N) < 0.04


def pairs_on_a_grid(offset, dtype=float):
    """As `twins`, far from the origin, where float32 rounds more."""
    rng = np.random.default_rng(0)
    places = 40.0 * np.c_[np.arange(1200) % 25, np.arange(1200) // 25]
    X = places + rng.uniform(-3, 3, (1200, 2))
    near = np.flatnonzero(np.arange(600) % 4)
    X[600 + near] = X[near] + rng.normal(0, 0.2, (len(near), 2))
    return (X + offset).astype(dtype), np.arange(1200) >= 600


def twins():
    """All distances that are compared to measure rounding are too long to be seen in the kernel."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-3e4, 3e4, (1200, 2))
    near = np.flatnonzero(np.arange(600) % 4)
    X[600 + near] = X[near] + rng.normal(0, 0.2, (len(near), 2))
    return X, np.arange(1200) >= 600


def twins_on_a_line():
    """Of one input the distance of a sample to itself is exact, and that to a near one is not."""
    rng = np.random.default_rng(0)
    X = 40.0 * np.arange(1200) - 24_000 + rng.uniform(-3, 3, 1200)
    near = np.flatnonzero(np.arange(600) % 4)
    X[600 + near] = X[near] + rng.normal(0, 0.2, len(near))
    return X[:, None], np.arange(1200) >= 600


def places_on_a_map(seed):
    """Two inputs: the distances to themselves of all samples that are measured may be exact."""
    rng = np.random.default_rng(seed)
    X = 1e3 * rng.normal(size=(2300, 2))
    X[1150:1200] = X[:50] + rng.normal(size=(50, 2))
    return X, np.arange(2300) >= 1150


def signed(N):
    X, y = codes(N)
    return (X.astype(int) - 128).astype(np.int8), y


def fractions(N, n):
    rng = np.random.default_rng(1)
    X = rng.integers(0, 256, (N, n))
    return X / 255, X[:, :5].sum(axis=1) + 200 * rng.normal(size=N) > 640


@pytest.mark.filterwarnings("ignore:Solver terminated early")
@pytest.mark.parametrize(
    ("data", "kernel", "options"),
    [
        (numbers(2500, 3), ("dot", "poly", 1.0, 1.0, 2), {}),
        (numbers(2500), ("euclidean", "rbf", 0.3), {"C": 1e4, "tol": 1e-5, "precision": "float64"}),
        (numbers(900), ("euclidean", "rbf", 0.3), {"C": 1e4, "tol": 1e-5, "cache_size": 1}),
        # Distances of codes are exact and their kernel values are not: a wide kernel, large C.
        (codes(300), ("euclidean", "rbf", 1e-7), {"C": 1e3, "tol": 1e-6}),
        (codes(1400), ("euclidean", "rbf", 1e-7), {"C": 1e3, "tol": 1e-6}),
        # Products of codes are exact, and their sums in float32 would not be: no row is kept.
        (codes(1500), ("dot", "linear", 1.0), {"C": 0.01, "tol": 1e-8, "cache_size": 0.1}),
        (signed(1500), ("dot", "linear", 1.0), {"C": 0.01, "tol": 1e-8, "cache_size": 0.1}),
        # Products of codes are exact, and their 65,025ths are not.
        (fractions(1500, 100), ("dot", "linear", 1.0), {"C": 100.0}),
        (fractions(400, 14), ("dot", "linear", 1.0), {"tol": 1e-8}),
        # The terms of tanh cancel: float32 would round their sum alike in all values.
        (bright(1500), ("dot", "sigmoid", 1e-3, -186.6), {"C": 10.0}),
        (bright(900), ("dot", "sigmoid", 1e-3, -186.6), {"C": 10.0}),
        (noise(), ("euclidean", "rbf", 0.01), {"C": 10.0}),
        (twins(), ("manhattan", "laplacian", 1.0), {"C": 10.0}),
        (pairs_on_a_grid(1e6), ("manhattan", "laplacian", 1.0), {"C": 10.0}),
        (twins_on_a_line(), ("euclidean", "rbf", 1.0), {"C": 10.0}),
        (places_on_a_map(1), ("euclidean", "rbf", 0.5), {"C": 10.0}),
        (places_on_a_map(35), ("euclidean", "rbf", 0.5), {"C": 10.0}),
        # Inputs are not rounded, and values are.
        (pairs_on_a_grid(0, np.float32), ("manhattan", "laplacian", 1.0), {"C": 10, "tol": 1e-7}),
        (alike(1200, 1), ("dot", "poly", 0.0408, 0.5, 3), {"C": 1000.0, "max_iter": 100_000}),
        (alike(3000, 2), ("dot", "poly", 0.0408, 0.5, 3), {"C": 1000.0, "max_iter": 100_000}),
        (codes(1500, 3), ("dot", "poly", 6e-5, 1.0, 9), {"C": 1e-3, "max_iter": 100_000}),
        (codes(1500, 3), ("dot", "poly", 6e-5, 1.0, 9), {"C": 1e-3, "max_iter": 1000}),
    ],
)
def test_no_tolerance_is_lost_and_the_violation_is_that_of_the_coefficients(data, kernel, options):
    """Of rows that are kept in float32 or float64."""
    metric, profile, *values = kernel
    named = dict(zip(("gamma", "coef0", "degree"), values))
    model = SVC(kernel=profile, **named, **options).fit(*data)
    profile = {"rbf": "gaussian"}.get(profile, profile)
    found = verdict(model, *data, metric, profile, *values)
    violation = found["violation"]
    assert found["feasible"]
    np.testing.assert_allclose(model.violation_, violation, rtol=0.1, atol=model.tol)
    assert violation < 1.5 * model.tol or (model.fit_status_ and model.max_iter == 1000)


@pytest.mark.parametrize("cache_size", [200, 0.5])
@pytest.mark.parametrize("shift", [0.0, 0.25], ids=["codes", "numbers"])
def test_values_beyond_float32_are_computed_in_float64_and_not_kept(shift, cache_size):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 300)
    X = np.clip(rng.normal(200 + 4 * y[:, None], 5, (300, 20)), 0, 255).round() + shift
    model = SVC(kernel="poly", degree=13, cache_size=cache_size).fit(X, y)
    assert model.fit_status_ == 0
    found = verdict(model, X, y, "dot", "poly", model._gamma, 0.0, 13)
    assert found["feasible"]
    assert found["violation"] < 1.5 * model.tol
    assert model.score(X, y) == 1.0


@pytest.mark.parametrize("largest", [1e9, 1e12, 1e15, 1e30])
@pytest.mark.parametrize("shift", [0.0, 0.25], ids=["codes", "numbers"])
def test_the_conditions_hold_for_kernel_values_of_every_size(shift, largest):
    """Steps on values of 1e15 in float32 ended as converged, with a violation of 14."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 2500)
    X = np.clip(rng.normal(200 + 4 * y[:, None], 5, (2500, 20)), 0, 255).round() + shift
    gamma = largest ** (1 / 3) / np.square(X).sum(axis=1).max()
    model = SVC(kernel="poly", gamma=gamma).fit(X, y)
    assert model.fit_status_ == 0
    found = verdict(model, X, y, "dot", "poly", gamma, 0.0, 3)
    assert found["feasible"]
    assert found["violation"] < 1.5 * model.tol


def test_no_tolerance_is_lost_by_small_linear_pairs_of_many_samples():
    """They are solved on a matrix in float32, whose sums are those of its values."""
    rng = np.random.default_rng(0)
    X = rng.normal(3.0, 1.0, (1500, 3))
    y = np.digitize(X[:, 0] + rng.normal(0, 0.3, 1500), [2.33, 3.0, 3.67])
    model = SVC(kernel="linear", C=100.0, tol=1e-4).fit(X, y)
    beta, violations = np.zeros((3, 1500)), []
    beta[:, model.support_] = model.dual_coef_
    for a, b in combinations(range(4), 2):
        own = np.flatnonzero((y == a) | (y == b))
        first, part = y[own] == a, X[own]
        signs, both = np.where(first, 1.0, -1.0), np.where(first, beta[b - 1, own], beta[a, own])
        found = reference.svc_dual(part @ part.T, signs, np.full(len(own), model.C), both)
        violations.append(found["violation"])
    np.testing.assert_allclose(model.violation_, violations, rtol=0.1, atol=model.tol / 2)
    assert max(violations) < 1.5 * model.tol


def test_the_tolerance_and_the_coefficients_decide():
    X, _ = table()
    samples, chosen = quantize_or_keep(X), get_backend("numba")
    activation = Activation("euclidean", "gaussian", 1 / 30)

    def dtype(size, largest, tol, part=slice(None)):
        return arithmetic(samples[part], activation, chosen, lambda: (size, largest), tol)

    assert dtype(30, 1, 1e-3) is np.float32
    assert dtype(30, 1, 1e-7) is np.float64
    assert dtype(3e5, 1e4, 1e-3) is np.float64
    assert dtype(np.inf, np.inf, 1e-3) is np.float64
    assert dtype(30, 1, 1e-3, slice(0, 900)) is np.float64


def test_svc_says_which_arithmetic_and_why_and_can_be_forced():
    X, y = make_classification(5000, 30, n_informative=15, random_state=0)
    forced = SVC(precision="float64").fit(X, y)
    assert ", float64" in forced.backend_info_
    model = SVC().fit(X, y)
    assert ", float32" in model.backend_info_ and "where it matters" in model.backend_info_
    single = SVC(precision="float32").fit(X[:1500], y[:1500]).backend_info_
    assert ", float32" in single and "where it matters" not in single
    assert ", float64" in SVC().fit(X[:900], y[:900]).backend_info_
    # The dtype of the data decides nothing.
    rounded = X.astype(np.float32)
    found = [SVC().fit(A, y).dual_coef_ for A in (rounded, rounded.astype(np.float64))]
    np.testing.assert_array_equal(*found)
    np.testing.assert_allclose(model.objective_, forced.objective_, rtol=1e-4)
    outputs, expected = (each.decision_function(X) for each in (model, forced))
    np.testing.assert_allclose(outputs, expected, atol=5 * model.tol)


def test_rows_are_float64_where_float32_loses_too_much():
    X = np.random.default_rng(1).normal(size=(5000, 5)) * [1, 1, 1, 1, 1e4]
    activation = Activation("euclidean", "gaussian", 0.2)
    rows = KernelRows(quantize_or_keep(X), activation, "auto", "auto", 5000)
    assert rows.dtype == np.float64 and "too much" in rows.description


@pytest.mark.parametrize("N", [300, 1200])
@pytest.mark.parametrize("codes", [True, False])
def test_values_and_their_sums_are_float64_where_that_is_asked_for(N, codes, backend):
    rng = np.random.default_rng(4)
    X = rng.integers(0, 255, (N, 12)).astype(np.uint8) if codes else rng.normal(size=(N, 12))
    activation = Activation("euclidean", "gaussian", 1e-5 if codes else 0.1)
    rows = KernelRows(quantize_or_keep(X), activation, backend, "auto", N)
    some, weights = rng.permutation(N)[:70], rng.normal(size=70)
    truth = reference.hidden(X, X[some], *activation[:3])
    narrow = rows.dtype == np.float32
    assert narrow or N == 300
    assert rows.between(some).dtype == np.float64
    np.testing.assert_allclose(rows.between(some), truth[some], atol=1e-12)
    for wide, bound in ((True, 1e-9), (False, 1e-4 if narrow else 1e-9)):
        found = rows.weighted(rows.gathered(np.arange(100, N)), some, weights, wide)
        assert found == pytest.approx(truth[100:] @ weights, abs=bound)
