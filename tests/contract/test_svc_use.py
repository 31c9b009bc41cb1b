"""SVC in use: that it ends, warns, can be stopped, copied and searched over; what it refuses."""

import os
import signal
import threading
import warnings

import numpy as np
import pytest
from callers import Recorder, interrupts
from sklearn import svm
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits, load_iris
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import GridSearchCV

from gpurbf import SVC

X, y = load_iris(return_X_y=True)
ANIMALS = np.array(["ant", "bee", "cat"])[y]


@pytest.mark.parametrize("C", [1e-3, 1e6])
@pytest.mark.parametrize("gamma", [1e-3, 1e3])
@pytest.mark.parametrize("kernel", ["rbf", "sigmoid", "poly"])
def test_always_ends_with_feasible_coefficients(C, gamma, kernel):
    X, y = load_breast_cancer(return_X_y=True)  # unscaled
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = SVC(C=C, gamma=gamma, kernel=kernel, max_iter=20_000).fit(X, y)
    alpha = np.abs(model.dual_coef_)
    assert alpha.max() <= C
    assert abs(model.dual_coef_.sum()) <= 1e-9 * alpha.sum()
    assert (model.fit_status_ == 0) == bool((model.violation_ < model.tol).all())


def test_warning_names_the_class_pair_and_what_is_left():
    with pytest.warns(ConvergenceWarning, match=r"max_iter=12.*bee vs cat by [0-9.]+\.$") as caught:
        model = SVC(C=100, max_iter=12).fit(X, ANIMALS)
    assert caught[0].filename == __file__
    assert model.fit_status_ == 1
    assert model.n_iter_.max() == 12


@pytest.mark.skipif(os.name != "posix", reason="sends a signal to this process")
@pytest.mark.parametrize("n_samples", [600, 3000, 10_000])
def test_interrupt_ends_a_fit_that_would_never_end(n_samples):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(n_samples, 2)), rng.integers(0, 4, n_samples)
    model = SVC(C=1e10, gamma=0.1, tol=1e-300, max_iter=-1)
    with pytest.warns(ConvergenceWarning):  # kernels are loaded: llvmlite drops an interrupt there
        clone(model).set_params(max_iter=20_000).fit(X, y)
    timer = threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT])
    with interrupts():
        timer.start()
        try:
            with pytest.raises(KeyboardInterrupt):
                model.fit(X, y)
        finally:
            timer.join()


def test_callbacks_hear_of_every_pair_and_can_stop():
    pytest.importorskip("sklearn.callback", reason="scikit-learn has callbacks from 1.9 on")
    recorder = Recorder()
    SVC().set_callbacks(recorder).fit(X, ANIMALS)
    assert sorted(recorder.ended) == ["ant vs bee", "ant vs cat", "bee vs cat", "fit"]
    stopper = Recorder(stop_after=recorder.ended[0])
    with pytest.warns(ConvergenceWarning):
        model = SVC().set_callbacks(stopper).fit(X, ANIMALS)
    assert (model.n_iter_ > 0).sum() == 1


def test_callbacks_can_stop_a_pair_that_is_alone():
    pytest.importorskip("sklearn.callback", reason="scikit-learn has callbacks from 1.9 on")
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(1500, 2)), rng.integers(0, 2, 1500)
    stopper = Recorder(stop_after="working set")
    with pytest.warns(ConvergenceWarning, match="0 vs 1"):
        SVC(C=1e6, max_iter=-1).set_callbacks(stopper).fit(X, y)
    assert set(stopper.ended) == {"working set", "fit"}


@pytest.mark.filterwarnings("ignore:The `probability:FutureWarning")
@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_progress_bar_is_one_line_for_the_whole_fit(n_classes, capsys):
    callback = pytest.importorskip("sklearn.callback")
    pytest.importorskip("rich")
    for model in (SVC(), SVC(probability=True)):
        model.set_callbacks(callback.ProgressBar()).fit(X, np.minimum(y, n_classes - 1))
        (line,) = capsys.readouterr().out.strip().splitlines()
        assert "SVC - fit" in line and "100%" in line


def test_one_row_and_the_batch_give_the_same():
    X, y = load_digits(return_X_y=True)
    model = SVC(gamma=0.02, C=10).fit(X, y)  # more than a thousand support vectors
    assert len(model.support_) > 1000
    one_by_one = np.vstack([model.decision_function(x[None]) for x in X[:20]])
    assert one_by_one == pytest.approx(model.decision_function(X)[:20], abs=1e-5)


@pytest.mark.parametrize("n_jobs", [1, 2])
def test_grid_search_finds_what_scikit_learn_finds(n_jobs):
    X, y = (part[:300] for part in load_digits(return_X_y=True))
    grid = {"C": [0.1, 10], "gamma": [1e-4, 1e-3]}
    scores = [
        GridSearchCV(model, grid, cv=3, n_jobs=n_jobs).fit(X, y).cv_results_["mean_test_score"]
        for model in (SVC(), svm.SVC())
    ]
    assert scores[0] == pytest.approx(scores[1], abs=0.005)


@pytest.mark.parametrize("factor", [0, -1, np.nan])
def test_a_class_weight_that_is_no_bound_is_named(factor):
    with pytest.raises(ValueError, match=r"class_weight of 1 must be > 0, got .*sample_weight 0"):
        SVC(class_weight={1: factor}).fit(X, y)


def test_a_bound_that_vanishes_is_an_error():
    with pytest.raises(ValueError, match="larger C, or larger weights"):
        SVC(C=0.1).fit(X, y, np.where(np.arange(150) == 70, 5e-324, 1))
    # Iris has equal samples, which share an infinite bound.
    models = [cls(class_weight={1: np.inf}).fit(X, y) for cls in (SVC, svm.SVC)]
    assert np.array_equal(*(model.predict(X) for model in models))


@pytest.mark.parametrize("left_out", [0, 1, 2])
def test_a_class_without_weight_is_left_out(left_out):
    some = y != left_out
    model, plain = SVC().fit(X, y, np.where(some, 1, -1)), SVC().fit(X[some], y[some])
    assert model.classes_.tolist() == plain.classes_.tolist()
    assert np.array_equal(model.decision_function(X), plain.decision_function(X))


@pytest.mark.parametrize("n_classes", [2, 3])
def test_changing_dual_coef_or_intercept_does_not_change_predictions(n_classes):
    """As in scikit-learn, but for numbers in dual_coef_ of three classes, which it shares."""
    for cls in (SVC, svm.SVC):
        model = cls(kernel="linear").fit(X, np.minimum(y, n_classes - 1))
        expected = model.decision_function(X)
        if isinstance(model, SVC) or n_classes == 2:
            model.dual_coef_ *= 2
        model.intercept_ += 1
        model.dual_coef_ = 2 * model.dual_coef_
        model.intercept_ = model.intercept_ + 1
        assert np.array_equal(model.decision_function(X), expected)
        other = model.to_sklearn() if isinstance(model, SVC) else SVC.from_sklearn(model)
        assert other.decision_function(X) == pytest.approx(expected, abs=1e-6)
        model.support_vectors_ = model.support_vectors_ * 1.1
        assert not np.allclose(model.decision_function(X), expected)


def test_a_fit_keeps_nothing_of_a_fit_with_another_kind_of_kernel():
    plain, given = SVC().fit(X, y), SVC(kernel=lambda A, B: A @ B.T).fit(X[:, :3], y)
    again = SVC().fit(X, y).set_params(kernel=given.kernel).fit(X[:, :3], y)
    assert vars(again).keys() == vars(given).keys()
    assert vars(again.set_params(kernel="rbf").fit(X, y)).keys() == vars(plain).keys()
