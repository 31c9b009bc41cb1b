"""Ridge from exact sums: the same bits however the samples come, and never raised."""

import warnings

import numpy as np
import pytest
import reference
from sklearn.exceptions import ConvergenceWarning

from gpurbf import RBFClassifier
from gpurbf.backends.arrays import to_host
from gpurbf.network.hidden import Activation, HiddenLayer
from gpurbf.network.solvers.fixed_point import fixed_point
from gpurbf.network.solvers.ridge import NormalEquations

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3000, 8)).astype(np.float32)
T = np.eye(3)[RNG.integers(0, 3, 3000)]
w = RNG.random(3000)


def layer(gamma=0.1, m=300, backend="numba", **options):
    return HiddenLayer(
        X[:m], Activation("euclidean", "gaussian", gamma), backend=backend, **options
    )


def solve(parts, weights=None, *, alpha=1e-6, gamma=0.1, intercept=True, **options):
    normal, hidden = NormalEquations(300, 3, alpha), layer(gamma, **options)
    for part in parts:
        normal.add(hidden, X[part], T[part], None if weights is None else weights[part])
    return normal, normal.solve(1e-6, intercept, keep=True)


@pytest.mark.parametrize("intercept", [True, False])
def test_the_model_is_the_same_bits_for_any_batches_in_any_order(intercept):
    whole = solve([np.arange(3000)], intercept=intercept)[1]
    for parts in (2, 5, 300):
        split = np.array_split(RNG.permutation(3000), parts)
        other = solve(split, intercept=intercept)[1]
        np.testing.assert_array_equal(other.W, whole.W)
        np.testing.assert_array_equal(other.intercept, whole.intercept)


def test_weighted_sums_are_the_same_bits_too():
    whole = solve([np.arange(3000)], w)[0]
    order = np.roll(np.arange(3000), -int(w.argmax()))  # the grid is that of the first batch
    other = solve(np.array_split(order, 7), w)[0]
    np.testing.assert_array_equal(np.tril(other.G), np.tril(whole.G))
    np.testing.assert_array_equal(other.B, whole.B)


@pytest.mark.parametrize("weights", [None, w])
def test_the_outputs_are_those_of_the_definition_as_far_as_the_ridge_allows(weights):
    H = reference.hidden(X, X[:300], "euclidean", "gaussian", 0.1)
    W, b = reference.ridge(H, T, weights, 1e-6, True)
    solution = solve([np.arange(3000)], weights)[1]
    errors = (H @ solution.W + solution.intercept) - (H @ W + b)
    assert np.sqrt(np.square(errors).mean()) < 0.02 * (H @ W).std()


@pytest.mark.parametrize("gamma", [0.1, 1e-2, 1e-3, 1e-4, 1e-5])
def test_no_ridge_is_raised_over_four_decades_of_gamma(gamma):
    def fitted(precision):
        normal = NormalEquations(1000, 3, 1e-6)
        normal.add(layer(gamma, 1000, precision=precision), X, T, None)
        return normal.grid, normal.solve(1e-6, True).W

    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        grid, W = fitted("auto")
    assert grid is not None and np.isfinite(W).all()
    if gamma < 0.1:
        with pytest.warns(ConvergenceWarning):  # of float32 sums
            fitted("float32")


def test_the_grid_is_found_from_the_centers_alone():
    one, other = NormalEquations(300, 3, 1e-6), NormalEquations(300, 3, 1e-6)
    one.add(layer(), X, T, None)
    other.add(layer(), X[-10:], T[-10:], None)
    assert one.grid == other.grid is not None
    np.testing.assert_array_equal(one.shift, other.shift)
    np.testing.assert_array_equal(one.shift, one.shift.astype(np.float32))


def test_what_would_round_too_much_is_summed_in_floats():
    assert (
        fixed_point(layer(), 1e-9, 1.0, 1.0, 1.0) is None
    )  # the ridge is smaller than the rounding
    assert (
        fixed_point(layer(gamma=50.0), 1e-6, 1.0, 1.0, 1.0) is None
    )  # nearly all of H is 0, a few 1
    assert fixed_point(layer(m=200), 1e-6, 1.0, 1.0, 1.0) is None  # few centers: nothing to gain
    few_heavy = np.where(np.arange(3000) < 3, 1e9, 1.0)
    assert fixed_point(layer(), 1e-6, 1.0, few_heavy.max(), few_heavy.mean()) is None
    assert solve([np.arange(3000)], alpha=0.0)[0].grid is None


def test_outliers_that_no_center_tells_of_are_summed_exactly():
    # Activations of the centers span a hundredth of what these rows do.
    far = X.copy()
    far[::100] += 30
    hidden, sums = layer(1e-4), []
    for order in (np.arange(3000), RNG.permutation(3000)):
        normal = NormalEquations(300, 3, 1e-6)
        normal.add(hidden, far[order], T[order], None)
        sums.append(normal.solve(1e-6, True).W)
    assert np.abs(hidden.outputs(far) - normal.shift).max() > 32767 * normal.grid.step
    np.testing.assert_array_equal(*sums)


def test_leave_one_out_is_of_the_samples_as_they_were_summed():
    # With as many centers as samples a leverage is nearly 1: rounding apart would be all there is.
    C = np.arange(300)
    normal = NormalEquations(300, 3, 1e-6)
    normal.add(layer(0.01), X[C], T[C], None)
    assert normal.grid is not None
    left = normal.solve(1e-6, True).leave_one_out(layer(0.01).outputs(X[C]), T[C])
    H = reference.hidden(X[C], X[C], "euclidean", "gaussian", 0.01)
    rounded = normal.grid.nearest(H.astype(np.float32), normal.shift)
    ridge = 1e-6 * np.square(rounded - rounded.mean(axis=0)).sum()
    for i in (0, 99, 250):
        kept = C != i
        Z = rounded[kept]
        alpha = ridge / np.square(Z - Z.mean(axis=0)).sum()
        W, b = reference.ridge(Z, T[C][kept], None, alpha, True)
        np.testing.assert_allclose(left[i], rounded[i] @ W + b, rtol=1e-2, atol=1e-2)


def test_a_fit_is_the_same_bits_as_its_batches():
    y = T.argmax(axis=1)
    options = {"centers": X[:300], "gamma": 0.05, "backend": "numba"}
    whole, parts = RBFClassifier(**options).fit(X, y), RBFClassifier(**options)
    for rows in np.array_split(np.arange(3000), 4):
        parts.partial_fit(X[rows], y[rows], classes=[0, 1, 2])
    np.testing.assert_array_equal(parts.coef_, whole.coef_)
    np.testing.assert_array_equal(parts.intercept_, whole.intercept_)


@pytest.mark.parametrize("weights", [None, w])
def test_products_with_targets_can_be_had_alone(backend, weights):
    hidden = layer(backend=backend)
    xp = hidden.xp
    both = xp.zeros((300, 300)), xp.zeros((300, 3))
    hidden.normal(X, T, weights, np.full(300, 0.25), both)
    G, B = hidden.normal(X, T, weights, np.full(300, 0.25), (None, xp.zeros((300, 3))))
    assert G is None
    np.testing.assert_array_equal(to_host(B), to_host(both[1]))
