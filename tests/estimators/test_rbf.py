"""RBFClassifier and RBFLayer as their users meet them."""

import numpy as np
import pytest
import reference
from callers import Recorder
from joblib import Parallel, delayed, parallel_config
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.metrics import log_loss
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from gpurbf import RBFClassifier, RBFClassifierCV, RBFLayer
from gpurbf.centers import CENTERS
from gpurbf.estimators import rbf
from gpurbf.runtime.threads import thread_limit
from gpurbf.solvers.calibration import fit_temperature, probabilities

X, y = load_digits(return_X_y=True)
X_train, y_train, X_test, y_test = X[:1200], y[:1200], X[1200:], y[1200:]


def test_it_is_ridge_regression_on_the_layer(backend):
    model = RBFClassifier(60, alpha=1e-4, random_state=0, backend=backend).fit(X_train, y_train)
    H = reference.hidden(X_train, model.centers_, "euclidean", "gaussian", model.gamma_)
    W, b = reference.ridge(H, np.eye(10)[y_train], None, 1e-4, True)
    H_test = reference.hidden(X_test, model.centers_, "euclidean", "gaussian", model.gamma_)
    np.testing.assert_allclose(model.decision_function(X_test), H_test @ W + b, atol=1e-6)
    assert model.backend_ == backend


def test_few_centers_that_are_much_alike(backend):
    """Their HᵀH, nearly singular, is summed in float64: float32 sums are off by 0.03 here."""
    X = X_train.astype(np.uint8)
    alike = RBFClassifier(200, gamma=6e-5, random_state=0, backend=backend)
    truth = clone(alike).set_params(precision="float64").fit(X, y_train).decision_function(X)
    np.testing.assert_allclose(alike.fit(X, y_train).decision_function(X), truth, atol=1e-3)


KERNELS = ["laplacian", "triangular", "multiquadric", "inverse-multiquadric", "thin-plate"]


@pytest.mark.parametrize("kernel", [*KERNELS, np.sqrt])
@pytest.mark.parametrize("metric", ["euclidean", "manhattan"])
def test_every_kernel_trains_at_its_default_scale(kernel, metric):
    for gamma in ("scale", "median"):
        model = RBFClassifier(150, kernel=kernel, metric=metric, gamma=gamma, random_state=0)
        assert model.fit(X_train, y_train).score(X_test, y_test) > 0.85


def test_a_kernel_may_be_an_object_that_has_no_hash():
    line, model = np.poly1d([-1e-4, 1.0]), RBFClassifier(50, centers="fsvc", random_state=0)
    assert line.__hash__ is None
    found, expected = (
        model.set_params(kernel=kernel).fit(X_train, y_train).decision_function(X_test)
        for kernel in (line, lambda squared: line(squared))
    )
    np.testing.assert_array_equal(found, expected)


def test_a_lower_alpha_between_batches_is_judged_anew():
    noisy = X + np.random.default_rng(0).random(X.shape) / 2
    model = RBFClassifier(centers=noisy[:300], gamma=1e-6, alpha=1.0)
    model.partial_fit(noisy[:900], y[:900], classes=range(10))
    assert "float64" not in model.solver_info_  # sums of 256 centers and more are rounded
    model.set_params(alpha=0.1).partial_fit(noisy[900:1200], y[900:1200])
    whole = clone(model).fit(noisy[:1200], y[:1200])
    np.testing.assert_array_equal(model.coef_, whole.coef_)
    with pytest.warns(UserWarning, match=r"rounded for alpha=0\.1.*with alpha=1e-10"):
        model.set_params(alpha=1e-10).partial_fit(noisy[1200:1500], y[1200:1500])
    assert "float64" in model.solver_info_
    model.partial_fit(noisy[1500:], y[1500:])  # it is said once


@pytest.mark.filterwarnings("ignore:.*1 of 3 classes:UserWarning")
def test_a_first_batch_without_weight_is_named():
    some = y < 3
    model = RBFClassifier(10, centers="random", gamma=1e-3, class_weight={0: 0.0, 1: 1.0, 2: 1.0})
    with pytest.raises(ValueError, match=r"class_weight\), are 0"):
        model.partial_fit(X[y == 0], y[y == 0], classes=[0, 1, 2])
    model.partial_fit(X[some], y[some], classes=[0, 1, 2])
    model.partial_fit(X[y == 0], y[y == 0])


def test_a_batch_without_weight_changes_nothing():
    model = RBFClassifier(random_state=0).partial_fit(X[:300], y[:300], classes=range(10))
    assert model.solver_info_.endswith("they would add to the penalty")
    before = dict(vars(model))
    model.partial_fit(X[300:600], y[300:600], sample_weight=np.zeros(300))
    assert vars(model) == before  # the same objects


@pytest.mark.parametrize("n_centers", [200, 1000])
def test_probabilities_are_calibrated_also_where_most_samples_are_centers(n_centers):
    """Centers answer to themselves as to no new sample: they are left out with their samples."""
    losses = []
    for seed in range(10):
        train, test = np.split(np.random.default_rng(seed).permutation(len(X)), [1200])
        model = RBFClassifier(n_centers, random_state=0).fit(X[train], y[train])
        outputs = model.decision_function(X[test])
        best = probabilities(outputs, fit_temperature(outputs, y[test], None))
        losses.append([log_loss(y[test], P) for P in (model.predict_proba(X[test]), best)])
    found, least = np.sum(losses, axis=0)
    assert found < 1.1 * least


@pytest.mark.parametrize("centers", ["random", "fsvc"])
@pytest.mark.parametrize("n_centers", [80, 100])
def test_equal_samples_of_two_classes_are_one_center_if_classes_do_not_matter(centers, n_centers):
    layer = RBFLayer(n_centers, centers=centers, random_state=0)
    with pytest.warns(UserWarning, match=f"n_centers={n_centers} is more than the 50 distinct"):
        layer.fit(np.repeat(X[:50], 2, axis=0), np.arange(100) % 2)
    assert len(np.unique(layer.centers_, axis=0)) == len(layer.centers_) == 50


@pytest.mark.parametrize("solver", ["lms", "one-hot"])
def test_samples_learned_one_by_one_are_learned_in_an_order_of_their_values(solver):
    """Classes alternate in the file, are sorted, or samples are repeated instead of weighted."""
    rng = np.random.default_rng(0)
    y = np.where(np.arange(2400) % 2, rng.integers(1, 3, 2400), 0)
    X, w = rng.standard_normal((2400, 2)) + 2.5 * y[:, None], rng.integers(0, 3, 2400)
    by_class, repeated = y.argsort(), rng.permutation(np.repeat(np.arange(2400), w))
    forms = (X, y, w), (X[by_class], y[by_class], w[by_class]), (X[repeated], y[repeated])
    model = RBFClassifier(20, solver=solver, random_state=0)
    first, *others = (clone(model).fit(*form) for form in forms)
    for other in others:
        outputs = other.decision_function(X)
        np.testing.assert_allclose(outputs, first.decision_function(X), atol=1e-12)
        assert np.isclose(other.temperature_, first.temperature_, rtol=1e-6)
    assert log_loss(y, first.predict_proba(X)) < 0.6


@pytest.mark.parametrize("solver", ["lms", "one-hot"])
def test_a_class_of_weight_zero_has_no_votes(solver):
    """It has every second sample."""
    X, y = np.random.default_rng(0).standard_normal((3000, 2)), np.arange(3000) % 2
    model = RBFClassifier(50, solver=solver, class_weight={0: 0}, random_state=0).fit(X, y)
    assert (model.predict(X) == 1).all()


@pytest.mark.parametrize("centers", sorted(CENTERS))
def test_every_rule_trains_and_gives_as_many_centers_as_asked(centers):
    """Auto is 1000 or all there are; three are fewer than classes."""
    model = RBFClassifier(100, centers=centers, random_state=0).fit(X_train, y_train)
    assert model.score(X_test, y_test) > 0.9
    assert hasattr(model, "center_indices_") == (not centers.startswith("kmeans"))
    layer = RBFLayer(3, centers=centers, random_state=0, n_jobs=1)
    assert len(layer.fit(X_test, y_test).centers_) == 3
    assert len(layer.set_params(n_centers="auto").fit(X, y).centers_) == 1000
    few, labels = np.vstack([X[:40], X[:20]]), np.append(y[:40], y[:20])
    for n_centers in ("auto", "all"):
        m = len(layer.set_params(n_centers=n_centers).fit(few, labels).centers_)
        assert m == 40 or (m <= 60 and "kmeans" in centers)


def test_weights_that_are_no_weights_are_named():
    words = {-1.0: "Negative values", 0.0: "all samples have zero or negative", np.nan: "NaN"}
    for weight, message in words.items():
        with pytest.raises(ValueError, match=message):
            RBFClassifier(10).fit(X, y, np.full(len(y), weight))


@pytest.mark.parametrize("parallelism", ["loky", "threading"])
def test_grid_search_with_two_jobs_gives_the_answer_of_one(parallelism):
    grid = {"rbfclassifier__gamma": [1e-3, 1e-2], "rbfclassifier__alpha": [1e-6, 1e-4]}
    pipeline = make_pipeline(StandardScaler(), RBFClassifier(60, random_state=0))
    one = GridSearchCV(pipeline, grid, cv=3).fit(X_train, y_train)
    with parallel_config(parallelism):
        two = GridSearchCV(pipeline, grid, cv=3, n_jobs=2).fit(X_train, y_train)
    found, expected = (each.cv_results_["mean_test_score"] for each in (two, one))
    np.testing.assert_allclose(found, expected)


def test_one_thread_a_worker_inside_loky():
    with parallel_config("loky", inner_max_num_threads=1):
        assert Parallel(n_jobs=2)(delayed(thread_limit)() for _ in range(2)) == [1, 1]


def test_columns_of_the_layer_are_named_after_it():
    layer = RBFLayer(7, random_state=0).fit(X_train)
    assert list(layer.get_feature_names_out()) == [f"rbflayer{i}" for i in range(7)]


def test_progress_is_reported_and_can_stop_a_fit(monkeypatch):
    callback = pytest.importorskip("sklearn.callback")
    monkeypatch.setattr(rbf, "_ROWS_A_STEP", 600)
    stop = Recorder(stop_after="hidden layer")
    model = RBFClassifier(centers=X_train[:100], gamma=1e-3)
    stopped = clone(model).set_callbacks(stop).fit(X_train, y_train)
    assert stop.ended == ["hidden layer", "fit"]
    model.fit(X_train[:600], y_train[:600])
    np.testing.assert_allclose(stopped.coef_, model.coef_, rtol=1e-6, atol=1e-9)
    assert stopped.temperature_ == pytest.approx(model.temperature_, rel=1e-6)
    assert "ended the fit after 600 of 1,200 samples" in stopped.solver_info_
    by_class = y_train.argsort()
    with pytest.warns(UserWarning, match="600 of 1,200 samples, which have 6 of 10 classes"):
        clone(model).set_callbacks(stop).fit(X_train[by_class], y_train[by_class])
    pytest.importorskip("rich")
    RBFClassifier(100, random_state=0).set_callbacks(callback.ProgressBar()).fit(X_train, y_train)


def test_input_is_neither_modified_nor_kept():
    before = np.broadcast_to(X_train, X_train.shape)  # who modifies it gets an error
    model = RBFClassifier(50, random_state=0).fit(before, y_train)
    assert not any(value is before for value in vars(model).values())
    centers = X_train[:20].copy()
    model = RBFClassifier(centers=centers).fit(X_train, y_train)
    scores, centers[:] = model.decision_function(X_train), 0
    model.set_params(backend="numpy")  # makes the layer anew
    np.testing.assert_allclose(model.decision_function(X_train), scores, atol=1e-4)


@pytest.mark.parametrize("model", [RBFClassifier, RBFClassifierCV])
@pytest.mark.parametrize("centers", ["stratified", "random"])
def test_centers_are_rows_of_all_samples_those_of_no_weight_too(model, centers):
    X, y = load_digits(return_X_y=True)
    weights = np.arange(len(X)) % 3
    found = model(50, centers=centers, random_state=0).fit(X, y, weights)
    np.testing.assert_array_equal(X[found.center_indices_], found.centers_)
    assert weights[found.center_indices_].all()
    if model is RBFClassifier:
        votes = found.set_params(solver="one-hot").fit(X, y, weights)
        np.testing.assert_array_equal(votes.coef_.argmax(axis=0), y[votes.center_indices_])


@pytest.mark.parametrize("rule", ["random", "fsvc"])
def test_centers_of_several_classes_vote_for_that_of_most_weight(rule):
    """The class was that of the first of equal samples: another one in another order."""
    A = np.repeat(np.random.default_rng(0).normal(size=(12, 2)), 4, axis=0)
    b = np.tile([0, 1, 1, 2], 12)
    weights = np.tile([1.0, 0.75, 0.75, 1.25], 12)
    model = RBFClassifier(12, centers=rule, solver="one-hot", gamma=1e3, random_state=0)
    outputs = [
        model.fit(A[order], b[order], weights[order]).decision_function(A)
        for order in (np.arange(48), np.arange(48)[::-1], np.argsort(-b, kind="stable"))
    ]
    assert (model.predict(A) == 1).all()
    np.testing.assert_allclose(outputs[1:], [outputs[0]] * 2, rtol=0, atol=1e-12)
    # Those of a class of weight 0 have no vote.
    model.set_params(class_weight={0: 1.0, 1: 0.0, 2: 1.0}).fit(A, np.arange(48) // 4 % 3)
    assert model.coef_.sum(axis=1).tolist() == [4, 0, 4]
    # Sums of these weights are equal up to rounding, which another order does otherwise.
    weights, b = np.tile([0.1, 0.2, 0.3, 0.6], 12), np.tile([0, 0, 0, 1], 12)
    model.set_params(class_weight=None)
    ways = [model.fit(A[::s], b[::s], weights[::s]).predict(A) for s in (1, -1)]
    np.testing.assert_array_equal(*ways)
