"""Ridge from exact sums: the same bits however the samples come, and never raised."""

import pickle

import numpy as np
import pytest
import reference
import scipy.sparse as sp
from callers import layer_of
from sklearn.base import clone
from sklearn.datasets import make_moons
from sklearn.exceptions import ConvergenceWarning

from gpurbf import RBFClassifier, RBFClassifierCV
from gpurbf.solvers.cg import CG
from gpurbf.solvers.ridge import Ridge
from gpurbf.solvers.ridge.fixed_point import fixed_point
from tests.solvers.test_calibration import stream
from tests.solvers.test_ridge import normal_equations

RNG = np.random.default_rng(0)
X = RNG.normal(size=(3000, 8)).astype(np.float32)
T = np.eye(3)[RNG.integers(0, 3, 3000)]


def layer(gamma=0.1, C=X[:300], backend="numba", **options):
    return layer_of(C, gamma, backend=backend, **options)


@pytest.mark.parametrize("gamma", [0.1, 1e-2, 1e-3, 1e-4, 1e-5])
def test_no_ridge_is_raised_over_four_decades_of_gamma(gamma):
    def fitted(precision):
        normal = normal_equations(layer(gamma, X[:1000], precision=precision), X, T, alpha=1e-6)
        return normal.grid, Ridge(1e-6).solve(normal).W

    grid, W = fitted("auto")  # a warning would be an error
    assert grid is not None and np.isfinite(W).all()
    if gamma < 0.1:
        with pytest.warns(ConvergenceWarning):  # of float32 sums
            fitted("float32")


def test_what_would_round_too_much_is_summed_in_floats():
    few_heavy = np.where(np.arange(3000) < 3, 1e9, 1.0)
    for hidden, alpha, *weights in (
        (layer(), 1e-9, 1.0, 1.0),  # the ridge is smaller than the rounding
        (layer(gamma=50.0), 1e-6, 1.0, 1.0),  # nearly all of H is 0, a few 1
        (layer(C=X[:200]), 1e-6, 1.0, 1.0),  # few centers: nothing to gain
        (layer(), 1e-6, few_heavy.max(), few_heavy.mean()),
    ):
        assert fixed_point(hidden, X, alpha, *weights)[1] is None
    assert normal_equations(layer(), X, T).grid is None


def test_outliers_that_no_center_tells_of_are_summed_exactly():
    # Activations of the centers span a hundredth of what these rows do.
    far = X.copy()
    far[::100] += 30
    hidden, sums = layer(1e-4), []
    for order in (np.arange(3000), RNG.permutation(3000)):
        normal = normal_equations(hidden, far[order], T[order], alpha=1e-6)
        sums.append(Ridge(1e-6).solve(normal).W)
    assert np.abs(hidden.activations(far) - normal.shift).max() > 32767 * normal.grid.step
    np.testing.assert_array_equal(*sums)
    np.testing.assert_array_equal(normal.shift, normal.shift.astype(np.float32))


def test_leave_one_out_is_of_the_samples_as_they_were_summed():
    # With as many centers as samples a leverage is nearly 1: rounding apart would be all there is.
    C = np.arange(300)
    normal = normal_equations(layer(0.01), X[C], T[C], alpha=1e-6)
    assert normal.grid is not None
    summed = normal.summed_copies(layer(0.01).activations(X[C]), None)
    left = Ridge(1e-6).solve(normal).leave_one_out(summed, T[C], np.ones(300))
    H = reference.hidden(X[C], X[C], "euclidean", "gaussian", 0.01)
    rounded = normal.grid.nearest(H.astype(np.float32), normal.shift)
    penalty = reference.penalty(rounded, 1e-6)
    for i in (0, 99, 250):
        W, b = reference.least_squares(rounded[C != i], T[C][C != i], penalty)
        np.testing.assert_allclose(left[i], rounded[i] @ W + b, rtol=1e-2, atol=1e-2)


GRID = np.stack(np.meshgrid(*2 * [np.linspace(-2, 2, 17)]), -1).reshape(-1, 2)


def xor(scale, offset, seed=0, n=2000):
    """Samples of two classes that lie as close together as scale says."""
    Z = np.random.default_rng(seed).normal(size=(n, 2))
    return scale * Z + offset, (Z[:, 0] * Z[:, 1] > 0).astype(int)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("scale, offset", [(1, 0), (0.05, 0.5), (0.01, 0), (0.001, 0.3), (1, 4)])
def test_centers_may_be_spread_as_the_data_are_not(scale, offset, intercept, dtype):
    A, y = xor(scale, offset)
    A, C = A.astype(dtype), GRID.astype(dtype)
    model = RBFClassifier(centers=C, gamma=1.0, fit_intercept=intercept, backend="numba")
    outputs = model.fit(A[:1000], y[:1000]).decision_function(A[1000:])
    H, T = reference.hidden(A, C, "euclidean", "gaussian", 1.0), 2.0 * y[:1000, None] - 1
    found = (reference.ridge(H[:1000], T, None, alpha, intercept) for alpha in (1e-6, 1.2e-6))
    expected, larger = ((H[1000:] @ W + b)[:, 0] for W, b in found)
    # What twice the promised tenth of the penalty does, and a little of what float32 data are.
    allowed = np.abs(larger - expected).mean() + 1e-3 * expected.std()
    assert np.abs(outputs - expected).mean() < allowed
    assert ("float64" in model.solver_info_) == (scale < 1 or offset == 4)


def test_a_batch_that_is_rounded_too_much_is_added_in_float64():
    """Also after one row, which alone has no spread."""
    wide, close, one = xor(1.0, 0.0, n=300), xor(1e-3, 0.5, n=3000), xor(1e-3, 0.5, n=1)
    for parts in ((wide, close), (close, wide), (close, close), (one, close)):
        model = RBFClassifier(centers=GRID, gamma=1.0, backend="numba")
        for A, y in parts:
            model = pickle.loads(pickle.dumps(model.partial_fit(A, y, classes=[0, 1])))
        A, y = (np.concatenate(both) for both in zip(*parts))
        whole = clone(model).set_params(precision="float64").fit(A, y)
        error = model.decision_function(A) - whole.decision_function(A)
        larger = clone(whole).set_params(alpha=1.2e-6).fit(A, y)
        allowed = np.abs(larger.decision_function(A) - whole.decision_function(A)).mean()
        assert np.abs(error).mean() < allowed + 1e-6


@pytest.mark.parametrize("weights", [None, 0.5])
@pytest.mark.parametrize("cuts", [[1], [3], [1, 2, 4, 700], [3, 1500]])
def test_the_first_rows_are_judged_with_those_that_follow(cuts, weights):
    """A stream may begin with one sample, or with a few equal ones: its bits are those of a fit."""
    A, y = xor(1.0, 0.0)
    A[:3], y[:3] = A[0], y[0]
    w = None if weights is None else np.where(np.arange(len(A)) < cuts[0], 1.0, weights)
    whole = RBFClassifier(centers=GRID, gamma=1.0, backend="numba").fit(A, y, w)
    parts = RBFClassifier(centers=GRID, gamma=1.0, backend="numba")
    for i, rows in enumerate(np.split(np.arange(len(A)), cuts)):
        batch = sp.csr_array(A[rows]) if i == 1 else A[rows]
        own = w[rows] if weights is not None and i else None
        before = pickle.dumps(parts)
        with pytest.raises(ValueError, match="not among"):
            parts.partial_fit(batch, y[rows] + 7, classes=[0, 1], sample_weight=own)
        assert pickle.dumps(parts) == before
        parts = pickle.loads(pickle.dumps(parts.partial_fit(batch, y[rows], [0, 1], own)))
        if not i:
            batch[:] = np.nan  # whose memory may be used for the next
            # What is known so far is said in float64.
            expected = clone(parts).set_params(precision="float64")
            expected.partial_fit(A[rows], y[rows], [0, 1])
            found, expected = (model.decision_function(A) for model in (parts, expected))
            np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert "float64" not in parts.solver_info_
    np.testing.assert_array_equal(parts.coef_, whole.coef_)
    np.testing.assert_array_equal(parts.decision_function(A), whole.decision_function(A))
    assert parts.temperature_ == pytest.approx(whole.temperature_, rel=1e-3)
    assert not hasattr(parts.fit(A, y), "_held")


@pytest.mark.parametrize(("N", "cuts"), [(40, []), (40, [20]), (400, []), (400, [100, 250])])
def test_with_no_more_samples_than_centers_rounding_is_not_learned(N, cuts):
    """Copies of unequal weights round apart, so their classes could be told by that.

    A stream of more rows cannot know that they are copies: what rounding adds is felt.
    """
    rng = np.random.default_rng(0)
    A, y = rng.standard_normal((20, 3))[np.arange(N) % 20], rng.integers(0, 2, N)
    w, new = rng.exponential(50, N), rng.standard_normal((200, 3))
    options = {"centers": A[rng.integers(0, 20, 300)], "gamma": 2.0, "backend": "numba"}
    exact = RBFClassifier(**options, precision="float64").fit(A, y, w)
    model = RBFClassifier(**options)
    model = stream(model, A, y, cuts, w) if cuts else model.fit(A, y, w)
    unknown = len(cuts) > 1
    assert model.temperature_ == pytest.approx(exact.temperature_, rel=0.5 if unknown else 0.01)
    path = RBFClassifierCV(**options, alphas=[1e-6]).fit(A, y, w)
    assert path.temperature_ == pytest.approx(exact.temperature_, rel=0.5)
    if not unknown:
        found, expected = (each.decision_function(new) for each in (model, exact))
        np.testing.assert_allclose(found, expected, atol=1e-3)


@pytest.mark.parametrize("model", [RBFClassifier, RBFClassifierCV])
def test_samples_given_several_times_in_a_row_are_known_not_to_be_more(model):
    """The rows that are looked at first are far from each other, so that no two are equal."""
    A, w = X[:300], RNG.integers(1, 5, 300)
    model, y = model("all", backend="numba", random_state=0), A[:, 0] > RNG.normal(size=300)
    weighted = clone(model).fit(A, y, w).decision_function(X)
    for rows in np.repeat(np.arange(300), w), np.tile(np.arange(300), 3):
        repeated = clone(model).fit(A[rows], y[rows])
        expected = clone(model).set_params(precision="float64").fit(A[rows], y[rows])
        found = repeated.decision_function(X)
        np.testing.assert_allclose(found, expected.decision_function(X), atol=1e-3)
        if len(rows) == w.sum():
            np.testing.assert_allclose(found, weighted, atol=1e-6)


def test_each_width_of_a_path_has_the_sums_that_it_needs():
    A, y = xor(0.02, 0.5)
    options = {"centers": GRID, "gamma": 1.0, "gammas": [1e-2, 1.0], "alphas": [1e-6, 1e-4]}
    found, expected = (
        RBFClassifierCV(**options, precision=p).fit(A, y).cv_results_["mean_test_score"]
        for p in ("auto", "float64")
    )
    np.testing.assert_allclose(found, expected, rtol=1e-6)


@pytest.mark.parametrize("m", [100, 300])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("gamma", [1e-3, 1e-5, 1e-7, 1e-9])
def test_the_widest_kernels_are_the_same_for_all_dtypes(gamma, dtype, m, backend):
    Q = np.random.default_rng(0).integers(0, 17, (800, 16))
    y = (np.square(Q[:, :8] - 8).sum(axis=1) > np.square(Q[:, 8:] - 8).sum(axis=1)).astype(int)
    options = {"centers": Q[:m].astype(dtype), "gamma": gamma, "alpha": 1e-4, "backend": backend}
    model = RBFClassifier(**options).fit(Q[:600].astype(dtype), y[:600])
    options["centers"] = Q[:m].astype(np.float64)
    double = RBFClassifier(**options, precision="float64").fit(Q[:600].astype(np.float64), y[:600])
    model = pickle.loads(pickle.dumps(model))  # predictions need float64 too
    found = model.decision_function(Q.astype(dtype))
    expected = double.decision_function(Q.astype(np.float64))
    # Errors as large as the promise allows move outputs by up to 1/30 of their size here.
    assert np.abs(found - expected).mean() < 0.05 * expected.std()


@pytest.mark.parametrize("seed", range(6))
def test_weighted_samples_may_lie_far_from_the_centers(seed):
    """What the fit minimises is what it can be, but for a tenth of the penalty and its freedom."""
    rng = np.random.default_rng(seed)
    Z, w = rng.normal(size=(1000, 2)), 10 ** rng.uniform(-3, 3, 1000)
    A, C = 0.01 * Z + 7, 0.01 * rng.normal(size=(300, 2))
    y, alpha = (np.sin(2 * Z[:, 0]) > 0.2).astype(int), 10 ** rng.uniform(-5, -1)
    t, H = 2.0 * y - 1, reference.hidden(A, C, "euclidean", "gaussian", 0.02)
    W, b = reference.ridge(H, t[:, None], w, alpha, True)
    ridge = reference.penalty(H, alpha, w)

    def parts(W, b):
        return w @ np.square(t - H @ W - b), ridge * W @ W

    model = RBFClassifier(centers=C, gamma=0.02, alpha=alpha, backend="numba").fit(A, y, w)
    loss, penalty = parts(W[:, 0], b[0])
    found = sum(parts(model.coef_[0], model.intercept_[0]))
    assert found - loss - penalty < 0.1 * penalty + 0.02 * loss


def test_rows_that_cg_keeps_are_rounded_only_where_samples_allow_it():
    for scale, offset, rounded in ((1.0, 0.0, True), (0.05, 0.5, False), (1e-3, 0.3, False)):
        A, y = xor(scale, offset)
        given = np.eye(2)[y], None, None
        layers = (layer(1.0, GRID, "auto", precision=p) for p in ("auto", "float64"))
        found, exact = (CG(tol=1e-3).system(each, A, *given) for each in layers)
        assert ("16 bits" in found.info.partition(",")[0]) == rounded
        assert rounded or found.ridge == pytest.approx(exact.ridge, rel=1e-9)


def test_a_small_batch_is_not_all_the_samples_that_there_are():
    """As many centers as samples take float64; a later batch of fewer rows does not."""
    A, y = make_moons(1300, noise=0.3, random_state=0)
    A = A.astype(np.float32)
    model = RBFClassifier(centers=A[:200], alpha=1e-2)
    for rows in (slice(0, 1200), slice(1200, 1300)):
        model.partial_fit(A[rows], y[rows], classes=[0, 1])
        assert model._layer().dtype == np.float32
    few = RBFClassifier(centers=A[:200], alpha=1e-2).fit(A[:150], y[:150])
    assert few._layer().dtype == np.float64


def test_a_batch_that_is_kept_does_not_change_with_the_callers_arrays():
    A, y = xor(0.05, 0.5)
    batch, labels, w = A[:100].copy(), y[:100].copy(), np.full(100, 2.0)
    model = RBFClassifier(centers=GRID, gamma=1.0).partial_fit(batch, labels, [0, 1], w)
    assert hasattr(model, "_held")
    before = pickle.dumps(model)
    batch[:], labels[:], w[:] = 0, 0, 0
    assert pickle.dumps(model) == before


@pytest.mark.parametrize("solver", ["ridge", "cg"])
@pytest.mark.parametrize("seed", range(3))
def test_what_rounding_makes_of_residuals_costs_little_with_few_samples_a_center(seed, solver):
    """Labels are noise in part, so residuals are far larger than what the penalty costs."""
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((300, 50))
    y = (A[:, 0] > 0) ^ (rng.random(300) < 0.1)
    gamma, t = 1e-4 / (50 * A.var()), 2.0 * y - 1
    H = reference.hidden(A, A[:256], "euclidean", "multiquadric", gamma)
    W, b = reference.ridge(H, t[:, None], None, 1e-6, True)
    ridge = reference.penalty(H, 1e-6)

    def parts(W, b):
        return np.square(t - H @ W - b).sum(), ridge * W @ W

    given = {"centers": A[:256], "kernel": "multiquadric", "gamma": gamma, "alpha": 1e-6}
    if solver == "cg":
        given["solver"] = CG(1e-6, tol=1e-8)
    model = RBFClassifier(**given, backend="numba").fit(A, y)
    loss, penalty = parts(W[:, 0], b[0])
    found = sum(parts(model.coef_[0], model.intercept_[0]))
    assert found - loss - penalty < 0.1 * penalty + 0.02 * loss
