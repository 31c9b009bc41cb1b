"""RBFClassifierCV: its errors are those of refits without a sample, its choice what they say."""

import sys
import tracemalloc

import numpy as np
import pytest
import reference
from sklearn.datasets import load_breast_cancer, load_digits, load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.preprocessing import StandardScaler

from gpurbf import RBFClassifier, RBFClassifierCV
from gpurbf.estimators.rbf_cv import settled
from gpurbf.solvers.ridge.path import RidgePath, tridiagonal
from tests.solvers.test_ridge import sums

RNG = np.random.default_rng(0)
ALPHAS = np.array([1e-4, 1e-2, 1.0])
digits, labels = load_digits(return_X_y=True)
iris = load_iris()
order = RNG.permutation(150)
X, y = StandardScaler().fit_transform(iris.data)[order][:70], iris.target[order][:70]
# The first twenty are centers, of which two samples have no copy and one stands for many.
C = X[:20]
w = np.where(np.arange(70) == 3, 5.0, RNG.random(70))


def left_out(H, T, weights, ridge, intercept, row, center):
    """The output for a row by the definition: without it and without its center, if it is one."""
    columns = np.arange(H.shape[1]) != center
    kept = np.arange(len(H)) != row
    A = H[kept][:, columns]
    W, b = reference.least_squares(A, T[kept], ridge, weights[kept], intercept)
    return H[row, columns] @ W + b


@pytest.mark.parametrize("m", [1, 2, 50, 129, 300])
def test_a_tridiagonal_form_solves_every_shift(m):
    A = RNG.normal(size=(m + 9, m))
    A, shifts = A.T @ A, np.array([0.1, 2.0])
    form = tridiagonal(A.copy())
    V, U = RNG.normal(size=(2, 37, m))
    np.testing.assert_allclose(form.back(form.turn(V)), V, atol=1e-12)
    forms = form.forms(shifts, form.turn(U), form.turn(V))
    for i, shift in enumerate(shifts):
        solved, other = (np.linalg.solve(A + shift * np.eye(m), R.T).T for R in (V, U))
        np.testing.assert_allclose(form.back(form.solve(shift, form.turn(V))), solved, rtol=1e-7)
        expected = [(a * b).sum(axis=1) for a, b in ((U, other), (U, solved), (V, solved))]
        np.testing.assert_allclose(forms[:, i], expected, rtol=1e-7, atol=1e-9)
    assert form.lowest() == pytest.approx(np.linalg.eigvalsh(A)[0])


@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("w", [np.ones(70), w])
def test_the_score_is_the_error_of_refits(backend, intercept, w):
    options = {"centers": C, "gamma": 0.1, "fit_intercept": intercept, "backend": backend}
    model = RBFClassifierCV(alphas=ALPHAS, gammas=[1, 3], n_left_out=None, **options)
    model.fit(X, y, sample_weight=w)
    expected = []
    for gamma in (0.1, 0.3):
        H, T = reference.hidden(X, C, "euclidean", "gaussian", gamma), np.eye(3)[y]
        for ridge in reference.penalty(H, ALPHAS, w, intercept):
            given = H, T, w, ridge, intercept
            outputs = [left_out(*given, i, i if i < 20 else -1) for i in range(70)]
            expected.append(-np.average(np.square(outputs - T).mean(axis=1), weights=w))
    found = model.cv_results_
    np.testing.assert_allclose(found["mean_test_score"], expected, rtol=1e-6)
    best = int(np.argmax(expected))
    assert found["rank_test_score"][best] == 1
    assert model.best_score_ == found["mean_test_score"][best]
    assert model.alpha_ == ALPHAS[best % 3]
    assert model.gamma_ == pytest.approx((0.1, 0.3)[best // 3])
    plain = RBFClassifier(**options | {"gamma": model.gamma_}, alpha=model.alpha_)
    plain.fit(X, y, sample_weight=w)
    np.testing.assert_allclose(model.decision_function(X), plain.decision_function(X), atol=1e-8)


def test_weights_are_repeats_and_their_scale_and_the_order_are_nothing():
    weights = np.repeat([1, 2, 0, 3], [20, 20, 10, 20])
    model = RBFClassifierCV(30, n_left_out=40, random_state=0, class_weight="balanced")
    table = model.fit(X, y, weights).cv_results_
    assert {len(column) for column in table.values()} == {20}
    rows = RNG.permutation(np.repeat(np.arange(70), weights))
    for again in (model.fit(X, y, weights / 1024), model.fit(X[rows], y[rows])):
        path = again.cv_results_["mean_test_score"]
        np.testing.assert_allclose(path, table["mean_test_score"], rtol=1e-8)


@pytest.mark.parametrize("m", [100, "auto"])
def test_the_path_tells_what_new_samples_will_get(m):
    # Errors of samples with their own centers would choose penalties a thousand times as large.
    train, new = slice(0, 400), slice(400, None)
    model = RBFClassifierCV(m, gammas=[4.0], n_left_out=None, random_state=0)
    model.fit(digits[train], labels[train])
    told, errors = -model.cv_results_["mean_test_score"], []
    for alpha in model.cv_results_["param_alpha"]:
        plain = RBFClassifier(m, gamma=model.gamma_, alpha=alpha, random_state=0)
        outputs = plain.fit(digits[train], labels[train]).decision_function(digits[new])
        errors.append(np.square(outputs - np.eye(10)[labels[new]]).mean())
    assert np.corrcoef(told, errors)[0, 1] > 0.99
    assert errors[told.argmin()] < 1.05 * min(errors)


def test_samples_are_left_out_until_they_are_enough():
    model = RBFClassifierCV(100, random_state=0).fit(digits, labels)
    assert model.n_left_out_ == 256
    # With more the same is chosen, or what is hardly worse.
    more = RBFClassifierCV(100, n_left_out=1000, random_state=0).fit(digits, labels)
    scores = more.cv_results_["mean_test_score"]
    assert more.n_left_out_ == 1000
    assert scores[model.cv_results_["mean_test_score"].argmax()] > 1.01 * scores.max()
    # A few samples that are hard to tell make the most of the error: by how much is mostly noise.
    A, b = load_breast_cancer(return_X_y=True)
    A = StandardScaler().fit_transform(A)
    assert RBFClassifierCV(random_state=0).fit(A, b).n_left_out_ > 256
    for other in ({"scoring": "accuracy"}, {"gammas": [1, 2]}):
        assert RBFClassifierCV(100, **other).fit(digits, labels).n_left_out_ == 1000


def test_all_samples_are_left_out_as_so_many_are():
    """In whatever parts: H of a sample's copies, of other weights or classes, is their mean."""
    A, b = RNG.integers(0, 4, (2500, 6)) * 1.0, RNG.integers(0, 2, 2500)
    weights, found = 10 ** RNG.uniform(-2, 1, 2500), []
    for n in (None, 2500):
        model = RBFClassifierCV(256, alphas=[1e-4], n_left_out=n, random_state=0, gamma=0.3)
        found.append(model.fit(A, b, weights).best_score_)
    assert model.n_left_out_ > 2048 and found[0] == found[1]


def test_enough_is_two_standard_errors_of_the_differences():
    T, spread = np.zeros((100, 1)), np.tile([1.0, -1.0], 50)[:, None]
    best = np.ones((100, 1))  # its error is 1
    other = np.sqrt(1.05 + 0.2 * spread)  # 0.05 ± 0.02 more
    assert settled(np.stack([best, other]), T, np.ones(100))
    other = np.sqrt(1.05 + 0.4 * spread)  # 0.05 ± 0.04 more: 0.03 less is possible
    assert not settled(np.stack([best, other]), T, np.ones(100))
    # Weights are repeats for the error, not for the noise: fewer samples say less.
    assert not settled(np.stack([best, np.sqrt(1.05 + 0.2 * spread)]), T, np.arange(100) // 90)


@pytest.mark.parametrize("scoring", [None, "accuracy"])
def test_samples_whose_class_has_no_weight_are_not_left_out(scoring):
    model = RBFClassifierCV(30, scoring=scoring, class_weight={0: 0, 1: 0}, random_state=0)
    alone = model.set_params(n_left_out=None).fit(X, y)
    assert alone.n_left_out_ == (y == 2).sum()
    for n in (1, 2):  # the error was a division by 0
        assert model.set_params(n_left_out=n).fit(X, y).n_left_out_ == n


@pytest.mark.parametrize("scoring", ["accuracy", "neg_log_loss", "f1_macro"])
def test_other_scores_and_labels(scoring):
    names = iris.target_names[y]
    model = RBFClassifierCV(30, scoring=scoring, random_state=0).fit(X, names, w)
    assert model.best_score_ == model.cv_results_["mean_test_score"].max()
    assert set(model.predict(X)) == set(names)
    binary = RBFClassifierCV(30, scoring="roc_auc", random_state=0).fit(X, names == "setosa")
    assert binary.best_score_ == 1


@pytest.mark.filterwarnings("ignore:Only one class is present")
@pytest.mark.parametrize(
    ("scoring", "n", "k"), [("neg_log_loss", 2, 3), ("roc_auc_ovr", 2, 3), ("roc_auc", 1, 2)]
)
def test_a_scorer_that_needs_every_class_is_told_which_parameter_leaves_some_out(scoring, n, k):
    """Whether it raises or gives NaN."""
    model = RBFClassifierCV(30, scoring=scoring, n_left_out=n, random_state=0)
    b = y if k == 3 else y == 1
    with pytest.raises(ValueError, match=rf"{n} samples left out, .* of {k} classes.*n_left"):
        model.fit(X, b)
    assert model.set_params(n_left_out=None).fit(X, b).best_score_ <= 1.0


def test_a_scorer_gets_logarithms_of_probabilities():
    model = RBFClassifierCV(30, scoring="neg_log_loss", random_state=0).fit(X, y)

    def scorer(estimator, outputs, y):
        return float(estimator.predict_log_proba(outputs)[np.arange(len(y)), y].mean())

    found = RBFClassifierCV(30, scoring=scorer, random_state=0).fit(X, y)
    np.testing.assert_allclose(found.best_score_, model.best_score_)


def test_a_scorer_without_weights_sees_copies_as_samples():
    """And outputs of samples left out. Two of iris are equal: they are one that weighs 2."""

    def scorer(estimator, outputs, y):
        assert len(y) == 150
        return float((estimator.predict(outputs) == y).mean())

    found, expected = (
        RBFClassifierCV(30, scoring=scoring, random_state=0, n_left_out=None)
        .fit(iris.data, iris.target)
        .cv_results_["mean_test_score"]
        for scoring in (scorer, "accuracy")
    )
    np.testing.assert_array_equal(found, expected)


def test_penalties_that_rounding_outweighs_are_raised_and_said_so():
    normal = sums(np.diag([1.0, 1.0, 1.0, -1e-3]), 1)
    with pytest.warns(ConvergenceWarning, match="0.0013 was added"):
        W, _ = RidgePath(normal, np.array([1e-9, 1.0]), False).solution(0)
    np.testing.assert_allclose(W[:3, 0], 1, rtol=1e-2)
    assert np.isfinite(W).all()
    same = RBFClassifierCV(centers=C[:5].repeat(2, axis=0), alphas=[1e-300, 1e-6])
    with pytest.warns(ConvergenceWarning):
        assert np.isfinite(same.fit(X, y).cv_results_["mean_test_score"]).all()


@pytest.mark.parametrize("m", [2, 30, 64, 100])
def test_rows_that_threads_rotate_side_by_side_do_not_depend_on_each_other(m):
    """dormqr writes to few reflectors while it applies them."""
    rng = np.random.default_rng(0)
    A, V = rng.normal(size=(m, m)), rng.normal(size=(1500, m))
    turn = tridiagonal(A @ A.T).turn
    expected = np.concatenate([turn(part) for part in np.split(V, 15)])
    for _ in range(100):
        np.testing.assert_allclose(turn(V), expected, rtol=0, atol=1e-10)


def test_no_width_keeps_the_outputs_of_all_its_penalties():
    rng, peaks = np.random.default_rng(0), []
    X, y = rng.normal(size=(2000, 3)), rng.integers(0, 50, 2000)
    for gammas in (np.ones(1), np.linspace(0.5, 2, 20)):
        model = RBFClassifierCV(10, gammas=gammas, n_left_out=1000, random_state=0)
        tracemalloc.start()
        model.fit(X, y)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 2 * peaks[0]


def test_the_path_is_drawn_and_without_matplotlib_it_says_how_to_get_it(monkeypatch):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("agg")
    model = RBFClassifierCV(20, gammas=[2, 1], alphas=[1, 1e-3], random_state=0).fit(X, y)
    ax = model.plot_path()
    *lines, chosen = ax.get_lines()
    assert len(lines) == 2 and all((np.diff(line.get_xdata()) > 0).all() for line in lines)
    assert chosen.get_xydata().tolist() == [[model.alpha_, model.best_score_]]
    assert model.plot_path(ax) is ax
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        model.plot_path()


def test_on_a_device_it_chooses_the_same(cupy):
    options = {"n_centers": 30, "alphas": ALPHAS, "gammas": [1, 2], "random_state": 0}
    there = RBFClassifierCV(backend="cupy", **options).fit(cupy.asarray(X), y, w)
    here = RBFClassifierCV(backend="numpy", **options).fit(X, y, w)
    scores = there.cv_results_["mean_test_score"], here.cv_results_["mean_test_score"]
    np.testing.assert_allclose(*scores, rtol=1e-6)
    np.testing.assert_allclose(there.coef_, here.coef_, rtol=1e-5, atol=1e-6)
