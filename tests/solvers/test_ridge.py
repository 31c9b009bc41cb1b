"""Ridge: sums give the weights of the definition, batches add up, bad conditioning is survived."""

import numpy as np
import pytest
import reference
import threadpoolctl
from callers import layer_of
from sklearn.exceptions import ConvergenceWarning

from gpurbf import RBFClassifier
from gpurbf.solvers.ridge import OwnCenters, Ridge
from gpurbf.solvers.ridge.fixed_point import fixed_point
from gpurbf.solvers.ridge.normal_equations import Equations, NormalEquations

RNG = np.random.default_rng(0)
X, C = RNG.normal(size=(90, 6)), RNG.normal(size=(25, 6))
T, w = RNG.normal(size=(90, 3)), RNG.random(90)


def normal_equations(layer, X, T, weights=None, alpha=0.0):
    """The sums of these samples for a ridge of at least alpha."""
    normal = NormalEquations(T.shape[1], *fixed_point(layer, X, alpha), alpha)
    normal.add(layer, X, T, weights)
    return normal


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("weights", [None, w, 10 * w], ids=["equal", "light", "heavy"])
@pytest.mark.parametrize("centers", [{}, {0: 3, 89: 24}], ids=["no centers", "centers"])
def test_weights_are_those_of_the_definition_and_leave_one_out_what_leaving_out_gives(
    intercept, weights, centers
):
    """Leaving out all of a sample's weight, and the center that it is."""
    H = reference.hidden(X, C, "euclidean", "gaussian", 0.1)
    v = np.ones(90) if weights is None else weights
    # Leaving a row out must not change the penalty.
    penalty = reference.penalty(H, 1e-3, v, intercept)
    own = OwnCenters(np.array([*centers]), np.eye(25)[:, [*centers.values()]]) if centers else None
    normal = normal_equations(layer_of(C, backend="numpy"), X, T, weights)
    solution = Ridge(1e-3, fit_intercept=intercept).solve(normal)
    W, b = reference.least_squares(H, T, penalty, v, intercept)
    np.testing.assert_allclose(solution.W, W, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(solution.intercept, b, rtol=1e-8, atol=1e-8)
    outputs = solution.leave_one_out(H, T, v, own)
    for i in (0, 17, 89):
        kept = np.delete(np.arange(90), i)
        A = np.delete(H, [centers[i]] if i in centers else [], axis=1)
        W, b = reference.least_squares(A[kept], T[kept], penalty, v[kept], intercept)
        np.testing.assert_allclose(outputs[i], A[i] @ W + b, rtol=1e-6, atol=1e-8)


def sums(G, b):
    """Sums of one output, HᵀH and HᵀT, as they are after some rows."""
    normal = NormalEquations(1, np.zeros(len(G)))
    normal.G, normal.B[:, 0], normal.weight = G, b, 1.0
    return normal


def test_a_matrix_that_is_not_positive_definite_is_solved_and_said_so():
    normal = sums(np.diag([1.0, 1.0, 1.0, -1e-3]), 1)
    with pytest.warns(ConvergenceWarning, match="solved by eigenvalues"):
        solution = Ridge(1e-9, fit_intercept=False).solve(normal)
    np.testing.assert_allclose(solution.W[:3, 0], 1, rtol=1e-6)
    assert np.isfinite(solution.W).all()


def test_a_failed_factorisation_leaves_the_matrix_whole():
    A, b = RNG.normal(size=(700, 900)), RNG.normal(size=(700, 1))
    G = A @ A.T
    # The smallest eigenvalue is beyond the first ridge and within the second.
    G -= (np.linalg.eigvalsh(G)[0] + 1e-5 * np.trace(G) / 700) * np.eye(700)
    expected = np.linalg.solve(G + 100 * 1e-6 * np.trace(G) / 700 * np.eye(700), b)
    with pytest.warns(ConvergenceWarning, match="multiplied by 100"):
        solution = Ridge(1e-6, fit_intercept=False).solve(sums(G, b[:, 0]))
    np.testing.assert_allclose(solution.W, expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("m", "k"), [(20_000, 1), (5000, 100)])
def test_the_intercept_does_not_depend_on_blas_threads(m, k):
    equations = Equations(None, None, RNG.normal(size=m), np.zeros(k), 1.0)
    W, found = RNG.normal(size=(m, k)), []
    for most in (1, None):
        with threadpoolctl.threadpool_limits(most):
            found.append(equations.intercept(W))
    np.testing.assert_array_equal(*found)


def test_eigenvalues_that_are_rounding_are_not_learned_and_no_thread_decides_them():
    pixels = RNG.integers(0, 256, (800, 2)).astype(np.uint8)
    y, outputs = pixels[:, 0] // 86, []
    for n_jobs in (1, None):
        model = RBFClassifier(300, gamma=1e-6, alpha=1e-18, random_state=0, n_jobs=n_jobs)
        with pytest.warns(ConvergenceWarning, match="solved by eigenvalues"):
            outputs.append(model.fit(pixels, y).decision_function(pixels))
    np.testing.assert_array_equal(*outputs)
    assert np.abs(outputs[0]).max() < 10 and model.score(pixels, y) > 0.9
