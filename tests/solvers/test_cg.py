"""Conjugate gradients agree with closed forms, for any centers, weights, backend and memory."""

import re

import callers
import numpy as np
import pytest
import reference
import threadpoolctl
from callers import outputs
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits, make_moons
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import log_loss
from sklearn.preprocessing import StandardScaler

from gpurbf import RBFClassifier, config_context
from gpurbf.runtime import memory
from gpurbf.solvers import automatic
from gpurbf.solvers.cg import CG
from gpurbf.solvers.cg.preconditioners import Falkon
from gpurbf.solvers.ridge import OwnCenters, Ridge
from tests.solvers.test_ridge import normal_equations

X, y = load_digits(return_X_y=True)
X, y, X_test = X[:600].astype(np.uint8), y[:600], X[600:1000].astype(np.uint8)
T = np.eye(10)[y]
GAMMA = 1 / (64 * X.var())
TIGHT = {"tol": 1e-10, "max_iter": 500}


def solved(solver, *given):
    """The system of a layer, samples and more, and the last of the iterations."""
    system = solver.system(*given)
    *_, last = solver.iterations(system)
    return system, last


def layer_of(C, **options):
    return callers.layer_of(C, GAMMA, **options)


def kernel_ridge(K, T, alpha, weights=None):
    """V and b of Σ w (t - Kv - b)² + alpha Σw VᵀKV in float64, by the equations of both."""
    n, w = len(K), np.ones(len(K)) if weights is None else weights
    A = np.zeros((n + 1, n + 1))
    A[:n, :n] = K + np.diag(alpha * w.sum() / w)
    A[:n, n] = A[n, :n] = 1
    solution = np.linalg.solve(A, np.vstack([T, np.zeros((1, T.shape[1]))]))
    return solution[:n], solution[n]


def without(rows, K, T, alpha, weights):
    """Outputs of samples by the kernel ridge of all others, with the λ of all."""
    rest = np.setdiff1d(np.flatnonzero(weights), rows)
    same = alpha * weights.sum() / weights[rest].sum()
    V, b = kernel_ridge(K[np.ix_(rest, rest)], T[rest], same, weights[rest])
    return K[np.ix_(rows, rest)] @ V + b


def gaussian(A, C, gamma=GAMMA):
    return reference.hidden(A, C, "euclidean", "gaussian", gamma)


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("precision", ["auto", "float64"])  # 16 bits, and numbers
@pytest.mark.parametrize("preconditioner", [None, 150])
def test_outputs_are_those_of_the_direct_solution(intercept, precision, preconditioner):
    direct = RBFClassifier(300, precision=precision, random_state=0)
    direct.set_params(solver=Ridge(1e-4, fit_intercept=intercept)).fit(X, y)
    solver = CG(1e-4, fit_intercept=intercept, preconditioner=preconditioner, **TIGHT)
    model = clone(direct).set_params(solver=solver).fit(X, y)
    bits = "float64" if precision == "float64" else "16 bits"
    assert f"least squares, H kept in {bits}" in model.solver_info_
    np.testing.assert_allclose(outputs(model, X_test), outputs(direct, X_test), atol=1e-5)
    assert bool(model.intercept_.any()) is intercept


@pytest.mark.parametrize(
    ("precision", "alpha", "scale"),
    [("auto", 1e-3, 1), ("auto", 1e-6, 1), ("auto", 1e-9, 1)]
    + [("float64", 1e-3, scale) for scale in (1e-6, 1, 1e4)],
)
def test_centers_that_are_all_samples_are_solved_by_a_factor_that_leaves_out(
    precision, alpha, scale
):
    """Samples of any weight: light, heavy and none."""
    n, rows, A, targets = 300, np.r_[:25, 77, 299], X[:300], T[:300]
    weights = scale * np.random.default_rng(0).exponential(1, n) ** 3
    weights[:5] = 0
    solver = CG(alpha, **TIGHT) if precision == "float64" else CG(alpha)
    _, found = solved(solver, layer_of(A, precision=precision), A, targets, weights, np.arange(n))
    assert found.n_iter <= 2
    K, (W, b) = gaussian(A, A), found.weights()
    expected = [without([i], K, targets, alpha, weights) for i in rows]
    near, left = (1e-8, 1e-7) if precision == "float64" else (2e-2, 0.05)
    V, c = kernel_ridge(K[5:, 5:], targets[5:], alpha, weights[5:])
    np.testing.assert_allclose(K @ W + b, K[:, 5:] @ V + c, atol=near)
    outputs = found.left_out(rows, targets[rows], weights[rows])
    np.testing.assert_allclose(outputs, np.concatenate(expected), atol=left)


@pytest.mark.parametrize("kernel", [True, False])
@pytest.mark.parametrize("weighted", [True, False])
def test_landmarks_leave_samples_out_together(kernel, weighted):
    """Near enough to a solution that never saw them, of samples with close neighbours and not."""
    rng = np.random.default_rng(0)
    A = np.vstack([X[:400], np.clip(X[:200] + rng.integers(-1, 2, (200, 64)), 0, 16)])
    A, targets = A.astype(np.uint8), np.vstack([T[:400], T[:200]])
    weights = rng.integers(1, 4, 600).astype(float) if weighted else None
    C = A if kernel else A[:200]
    layer = layer_of(C)
    solver = CG(1e-5, preconditioner=100, tol=1e-4, max_iter=1000)
    indices = np.arange(600) if kernel else None
    system, found = solved(solver, layer, A, targets, weights, indices)
    W, b = found.weights()
    rows = np.arange(203, 600, 7)
    w, H = np.ones(600) if weights is None else weights, layer.activations(A).astype(float)
    outputs = found.left_out(rows, targets[rows], w[rows])
    if kernel:
        expected = without(rows, H, targets, 1e-5, w)
    else:
        rest = np.delete(np.arange(600), rows)
        V, c = reference.least_squares(H[rest], targets[rest], system.ridge, w[rest])
        expected = H[rows] @ V + c
    # What they gain by being trained on is what must be gone.
    gained = np.linalg.norm(H[rows] @ W + b - expected)
    # Least squares are slow with so few landmarks, also here.
    assert np.linalg.norm(outputs - expected) < gained * (0.3 if kernel else 0.7)


@pytest.mark.parametrize("n_centers", [300, "all"])
def test_a_model_of_landmarks_is_the_same_bits_for_any_number_of_threads(n_centers):
    solver, found = CG(1e-6, preconditioner=150), []
    for n_jobs in (1, None):
        model = RBFClassifier(n_centers, gamma=GAMMA / 9, solver=solver, random_state=0)
        found.append(model.set_params(n_jobs=n_jobs).fit(X, y).predict_proba(X_test))
    np.testing.assert_array_equal(*found)


def test_products_of_many_centers_are_the_same_bits_for_any_number_of_blas_threads():
    rng, found = np.random.default_rng(0), []
    layer = layer_of(rng.uniform(0, 16, (20_000, 2)))
    V = rng.normal(size=(20_000, 1))
    for most in (1, None):
        with threadpoolctl.threadpool_limits(most):
            system = CG(1e-4, preconditioner=5).system(layer, X[:30, 2:4], T[:30, :1], None)
            found.append([system.B, system.matvec(V), system.residual(V), system.weights(V)[1]])
    for one, all_of_them in zip(*found, strict=True):
        np.testing.assert_array_equal(one, all_of_them)


@pytest.mark.parametrize("centred", [True, False])
def test_falkon_is_the_inverse_of_the_centers_own_system(centred):
    m, n, ridge = 90, 500.0, 1e-3
    K = gaussian(X[:m], X[:m])
    delta = np.sqrt(ridge * m / n)
    P = (K + delta * np.eye(m)) @ (K + delta * np.eye(m))
    P -= centred * np.outer(K.sum(axis=0), K.sum(axis=0)) / m
    found = Falkon(layer_of(X[:m], precision="float64"), ridge, n, centred)
    np.testing.assert_allclose(found.solve(P), m / n * np.eye(m), atol=1e-9)
    half = found.solve(np.eye(m))
    np.testing.assert_allclose(found.squares(np.eye(m)), half.diagonal(), rtol=1e-9)


@pytest.mark.parametrize("kept", ["16 bits", "float64", "anew"])
@pytest.mark.parametrize("kernel", [True, False])
def test_the_ways_to_have_H_agree(kept, kernel, backend):
    """Kept in 16 bits or as numbers, and made anew: all solve the same."""
    C = X if kernel else X[:300]
    layer = layer_of(C, backend=backend, precision="float64" if kept == "float64" else "auto")
    with config_context(memory=0.1 if kept == "anew" else 256):
        solver = CG(1e-3, preconditioner=200 if kernel else None, tol=1e-6)
        loose = solver if kept == "float64" else clone(solver).set_params(tol=1e-2)  # for 16 bits
        system = loose.system(layer, X, T, None, np.arange(len(X)) if kernel else None)
        if layer.xp is not np or kept == "anew":
            assert "H made anew" in system.info
        else:
            bits = kept if kept == "float64" or layer.exact_sums else ""
            assert f"H kept in {bits}" in system.info
        *_, found = solver.iterations(system)
    W, b = found.weights()
    H = layer_of(C, backend="numpy", precision="float64").activations(X)
    V, c = kernel_ridge(H, T, 1e-3) if kernel else reference.ridge(H, T, None, 1e-3, True)
    # Rounded to 16 bits, H is another by a tenth of the penalty.
    np.testing.assert_allclose(H @ W + b, H @ V + c, atol=1e-5 if kept == "float64" else 2e-3)


@pytest.mark.parametrize("precision", ["auto", "float64"])
@pytest.mark.parametrize("n_centers", [80, "all"])
def test_the_free_memory_decides_whether_h_is_kept_and_changes_no_bit(
    monkeypatch, capsys, n_centers, precision
):
    A, b = make_moons(2500, noise=0.3, random_state=0)  # three tiles of rows
    model = RBFClassifier(n_centers, solver=CG(1e-3), precision=precision, random_state=0)
    models = []
    for free, how in ((1e9, "H kept in"), (0, "H made anew in every iteration")):
        monkeypatch.setattr(memory, "free_bytes", lambda free=free: free)
        with config_context(memory="auto"):
            models.append(clone(model).set_params(verbose=True).fit(A, b))
        assert how in capsys.readouterr().out.partition("conjugate gradients, 1")[0]  # said before
        assert how in models[-1].solver_info_
    kept, anew = models
    np.testing.assert_array_equal(kept.coef_, anew.coef_)
    np.testing.assert_array_equal(kept.predict_proba(A), anew.predict_proba(A))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("n_centers", [80, "all"])
@pytest.mark.parametrize("backend", ["numba", "numpy"])
@pytest.mark.parametrize("alpha", [1e-2, 1e-6, 1e-14])
@pytest.mark.parametrize("precision", ["auto", "float32"])
def test_h_is_in_float64_where_float32_would_add_to_the_penalty(
    n_centers, backend, alpha, precision
):
    solver, options = CG(alpha, max_iter=3, tol=1e-1), {"precision": precision, "backend": backend}
    model = RBFClassifier(n_centers, solver=solver, random_state=0, **options).fit(X, y)
    wide = alpha == 1e-14 and precision == "auto"
    assert model._layer().dtype == (np.float64 if wide else np.float32)
    assert model.decision_function(X[:2]).dtype == np.float64


@pytest.mark.parametrize("n_centers", [80, 300])
@pytest.mark.parametrize("gamma", [1e-8, 8.5e-12])
@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
@pytest.mark.parametrize("preconditioner", [None, 40])
def test_centers_that_answer_to_all_samples_alike_are_told_apart(
    n_centers, gamma, dtype, preconditioner
):
    """The mean of H is 1, and what differs is less than a rounding to float32."""
    solver = CG(1e-4, preconditioner=preconditioner, tol=1e-6, max_iter=500)
    model = RBFClassifier(n_centers, gamma=gamma, solver=solver, random_state=0)
    outputs = model.fit(X.astype(dtype), y).decision_function(X)
    direct = clone(model).set_params(solver=Ridge(1e-4), precision="float64")
    expected = direct.fit(X.astype(dtype), y).decision_function(X)
    np.testing.assert_allclose(outputs, expected, atol=0.02)


@pytest.mark.parametrize("n_centers", [80, "all"])
def test_a_weight_of_two_is_the_sample_twice(n_centers):
    rng = np.random.default_rng(0)
    A, b = make_moons(150, noise=0.3, random_state=0)
    twice = rng.integers(1, 4, len(A))
    model = RBFClassifier(n_centers, solver=CG(1e-3, **TIGHT), precision="float64", random_state=0)
    weighted = clone(model).fit(A, b, sample_weight=twice)
    order = rng.permutation(twice.sum())
    repeated = model.fit(np.repeat(A, twice, axis=0)[order], np.repeat(b, twice)[order])
    np.testing.assert_allclose(outputs(weighted, A), outputs(repeated, A), atol=1e-8)


@pytest.mark.parametrize("centers", ["few", "unlike", "equal", "more"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("intercept", [False, True])
def test_left_out_outputs_of_few_centers_are_those_of_ridge(centers, weighted, intercept):
    """Wherever these lie and whatever the samples weigh."""
    rng, some, rows = np.random.default_rng(0), X[:90], np.arange(90)
    C = {"few": some[:4], "unlike": rng.normal(8, 3, (30, X.shape[1])), "more": X[:300]}
    C["equal"] = np.repeat(some[:5], 4, axis=0)
    layer = layer_of(C[centers], precision="float64")
    w = rng.exponential(1, 90) ** 3 if weighted else np.ones(90)
    solver = CG(1e-4, fit_intercept=intercept, tol=0.1)
    _, found = solved(solver, layer, some, T[:90], w)
    solution = Ridge(1e-4, fit_intercept=intercept).solve(normal_equations(layer, some, T[:90], w))
    # A sample that is a center is left out with this center, and with those that are equal to it.
    same = (some[:, None].astype(float) == layer.sparse_centers).all(axis=2)
    own = OwnCenters(np.flatnonzero(same.any(axis=1)), same[same.any(axis=1)].T.astype(float))
    expected = solution.leave_one_out(layer.activations(some), T[:90], w, own)
    np.testing.assert_allclose(found.left_out(rows, T[:90], w), expected, atol=1e-5)


def test_probabilities_are_those_of_ridge_where_most_samples_are_centers():
    A, b = load_breast_cancer(return_X_y=True)
    A = StandardScaler().fit_transform(A)[:300]
    by_ridge, by_cg = (
        RBFClassifier(250, solver=solver, random_state=0).fit(A, b[:300])
        for solver in ("ridge", CG(**TIGHT))
    )
    assert by_cg.temperature_ == pytest.approx(by_ridge.temperature_, rel=1e-3)


def test_probabilities_of_samples_with_many_copies_and_of_many_centers_are_estimated():
    rng = np.random.default_rng(0)
    A = rng.integers(0, 2, (1000, 8)).astype(float)
    b = (A.sum(axis=1) + 1.5 * rng.standard_normal(1000) > 4).astype(int)
    model = RBFClassifier(centers=rng.uniform(0, 1, (600, 8)), gamma=0.5, solver="cg").fit(A, b)
    assert log_loss(b, model.predict_proba(A)) < 0.6  # 0.69 if they are all one half


def test_probabilities_are_finite_where_all_samples_are_left_out_at_once():
    """Five distinct samples, each of which a tenth of all contains, and landmarks."""
    rng = np.random.default_rng(0)
    A, C = X[:5][rng.integers(0, 5, 400)], rng.uniform(0, 16, (600, 64))
    model = RBFClassifier(centers=C, solver=CG(1e-3, preconditioner=50, tol=1e-4))
    assert np.isfinite(model.fit(A, rng.integers(0, 2, 400)).predict_proba(A)).all()


@pytest.mark.parametrize(
    "n_distinct, n_samples, left", [(3, 3, None), (2, 40, None), (2, 2, {0: 0})]
)
def test_probabilities_of_landmarks_and_a_few_distinct_samples_are_finite(
    n_distinct, n_samples, left
):
    """All of which are centers; also where there is no other of weight above 0."""
    A = X[np.arange(n_samples) % n_distinct]
    model = RBFClassifier("all", solver=CG(preconditioner=1), class_weight=left, random_state=0)
    assert np.isfinite(model.fit(A, np.arange(n_samples) % 2).predict_proba(A)).all()


@pytest.mark.slow
@pytest.mark.parametrize("alpha, scale", [(1e-3, 0.01), (1e-3, 100), (1e-6, 1)])
@pytest.mark.parametrize("power", [0, 1, 3])
def test_left_out_outputs_of_unequal_weights_are_nearer_than_those_trained_on(alpha, scale, power):
    """Of many centers, but fewer than samples, by a preconditioner of the mean weight alone."""
    X, y = load_digits(return_X_y=True)
    m, w = 520, scale * np.random.default_rng(0).exponential(1, len(X)) ** power
    T, layer = np.eye(10)[y], layer_of(X[:m], precision="float64")
    system, found = solved(CG(alpha, **TIGHT), layer, X, T, w)
    H, (W, b), rows = layer.activations(X), found.weights(), np.arange(m, len(X))
    centred = H - w @ H / w.sum()
    inverse = np.linalg.inv((w[:, None] * centred).T @ centred + system.ridge * np.eye(m))
    leverage = np.einsum("ij,ij->i", centred @ inverse, centred) + 1 / w.sum()
    leverage, outputs = (w * leverage)[rows, None], (H @ W + b)[rows]
    expected = (outputs - leverage * T[rows]) / (1 - leverage)
    error = np.linalg.norm(found.left_out(rows, T[rows], w[rows]) - expected)
    assert error < 0.9 * np.linalg.norm(outputs - expected)


@pytest.mark.parametrize("alpha", [1e-3, 1e-5])
def test_a_tolerance_that_16_bits_cannot_reach_is_reached_without_them(alpha):
    A = X.astype(float)
    layer = layer_of(A)
    K = layer.activations(A)
    V, b = kernel_ridge(K, T, alpha)
    for tol in (1e-2, 1e-4, 1e-6, 1e-10):
        solver = CG(alpha, tol=tol)
        system, found = solved(solver, layer, A, T, None, np.arange(len(X)))
        if tol == CG().tol and layer.exact_sums:
            assert "H kept in 16 bits" in system.info
        W, c = found.weights()
        # The iteration leaves tol of the residual and rounding five times that at the most.
        errors = K @ W + alpha * len(X) * W + c - T
        assert np.linalg.norm(errors, axis=0).max() < 6 * tol * np.linalg.norm(T, axis=0).max()
    np.testing.assert_allclose(K @ W + c, K @ V + b, atol=1e-8)


def test_a_row_in_two_classes_is_taken_once_with_both():
    A = np.array([[0.0], [0.0], [0.0], [1.0], [3.0]])
    b = np.array([0, 1, 1, 0, 1])
    model = RBFClassifier("all", solver=CG(1e-3, **TIGHT), gamma=0.7, random_state=0)
    model.set_params(precision="float64").fit(A, b)
    assert "kernel ridge" in model.solver_info_
    distinct = A[[0, 3, 4]]
    K = gaussian(distinct, distinct, 0.7)
    V, c = kernel_ridge(K, np.array([[1 / 3], [-1], [1]]), 1e-3, np.array([3.0, 1, 1]))
    np.testing.assert_allclose(model.decision_function(distinct), (K @ V + c)[:, 0], atol=1e-8)
    assert np.isfinite(model.fit(A[:3], b[:3]).predict_proba(A)).all()  # of one place alone


@pytest.mark.parametrize("metric", ["euclidean", "manhattan"])
@pytest.mark.parametrize("kernel", ["laplacian", "triangular", "multiquadric", "thin-plate"])
def test_every_profile_is_solved(kernel, metric):
    """Kernels that are not positive definite are least squares, with all samples as centers too."""
    A, b = X[:200] / 7.0, y[:200]
    model = RBFClassifier("all", kernel=kernel, metric=metric, alpha=1e-2, random_state=0)
    definite, found = kernel == "laplacian", []
    for solver in ("ridge", CG(1e-2, tol=1e-9, max_iter=2000)):
        found.append(outputs(model.set_params(solver=solver).fit(A, b), X_test / 7.0))
    assert ("kernel ridge" in model.solver_info_) is definite
    if not definite:
        np.testing.assert_allclose(*found, atol=1e-4)


def test_a_landmark_whose_activation_for_itself_is_zero_is_no_error():
    model = RBFClassifier(9, kernel="thin-plate", solver=Ridge(1e-2), random_state=0).fit(X, y)
    direct = outputs(model, X_test)
    model.set_params(solver=CG(1e-2, preconditioner=1, tol=1e-9, max_iter=500)).fit(X, y)
    np.testing.assert_allclose(outputs(model, X_test), direct, atol=1e-4)
    model.set_params(centers=np.zeros((3, X.shape[1]))).fit(X, y)  # 0 for all centers
    assert np.isfinite(outputs(model, X_test)).all()


@pytest.mark.slow
@pytest.mark.parametrize("n_centers", ["all", 100])
def test_a_start_saves_iterations_and_changes_nothing(n_centers):
    solver = CG(1e-4, preconditioner=60, **TIGHT)
    cold = RBFClassifier(n_centers, solver=solver, random_state=0)
    cold.fit(X, y)
    near = clone(cold).set_params(solver__alpha=1.1e-4).fit(X, y)
    warm = clone(near).set_params(solver__start=cold.coef_.T).fit(X, y)
    assert warm.n_iter_ < near.n_iter_
    np.testing.assert_allclose(outputs(warm, X_test), outputs(near, X_test), atol=1e-6)
    with pytest.raises(ValueError, match=r"start must be finite numbers of shape \(\d+, 10\)"):
        clone(cold).set_params(solver__start=np.zeros((3, 10))).fit(X, y)


def test_it_says_when_it_did_not_arrive():
    solver = CG(1e-8, tol=1e-12, max_iter=2, preconditioner=5)
    with pytest.warns(ConvergenceWarning, match="max_iter=2 iterations with a relative residual"):
        model = RBFClassifier("all", solver=solver, random_state=0).fit(X, y)
    assert model.n_iter_ == 2
    assert model.score(X, y) > 0.5


def test_the_default_takes_it_for_many_centers(monkeypatch):
    assert automatic(10_000)[0] == "ridge"
    assert automatic(10_001)[0] == "cg"
    monkeypatch.setattr("gpurbf.solvers._MAX_RIDGE_CENTERS", 100)
    few, many = (RBFClassifier(m, random_state=0).fit(X, y) for m in (100, 101))
    direct = RBFClassifier(100, solver="ridge", random_state=0).fit(X, y)
    np.testing.assert_array_equal(few.coef_, direct.coef_)  # bit for bit
    assert few.solver_info_ == "auto: ridge, 100 centers are up to 100"
    assert many.solver_info_.startswith("auto: cg, 101 centers are over 100: least squares")
    assert not hasattr(few, "n_iter_")
    assert not hasattr(many.set_params(solver="ridge").fit(X, y), "n_iter_")


@pytest.mark.parametrize("m", [60, 200])
def test_the_memory_that_is_named_keeps_h(m):
    A, b = make_moons(600, noise=0.3, random_state=0)
    model = RBFClassifier(m, solver="cg", random_state=0)
    with config_context(memory=0.1):
        said = model.fit(A, b).solver_info_
    named = float(re.search(r"memory=([\d.]+)\) keeps it", said).group(1))
    with config_context(memory=named):
        assert "H kept in" in model.fit(A, b).solver_info_
