"""SVC in use: that it ends, warns, can be stopped and changed; what it refuses."""

import os
import signal
import threading

import numpy as np
import pytest
from callers import Recorder, interrupts
from sklearn import svm
from sklearn.datasets import load_breast_cancer, load_iris
from sklearn.exceptions import ConvergenceWarning

from gpurbf import SVC

X, y = load_iris(return_X_y=True)
ANIMALS = np.array(["ant", "bee", "cat"])[y]


@pytest.mark.filterwarnings("ignore:float64 rounds kernel values and coefficients:UserWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("C", [1e-3, 1e6])
@pytest.mark.parametrize("gamma", [1e-3, 1e3])
@pytest.mark.parametrize("kernel", ["rbf", "sigmoid", "poly"])
def test_always_ends_with_feasible_coefficients(C, gamma, kernel):
    X, y = load_breast_cancer(return_X_y=True)  # unscaled
    model = SVC(C=C, gamma=gamma, kernel=kernel, max_iter=20_000).fit(X, y)
    alpha = np.abs(model.dual_coef_)
    assert alpha.max() <= C
    assert abs(model.dual_coef_.sum()) <= 1e-9 * alpha.sum()
    assert (model.fit_status_ == 0) == bool((model.violation_ < model.tol).all())


def test_warning_names_the_class_pair_and_what_is_left():
    with pytest.warns(ConvergenceWarning, match=r"max_iter=12.*bee vs cat by [0-9.]+\.$") as caught:
        model = SVC(C=100, max_iter=12).fit(X, ANIMALS)
    assert caught[0].filename == __file__
    assert model.fit_status_ == 1 and model.n_iter_.max() == 12


def test_warning_names_the_limit_of_steps_only_where_it_was_reached():
    far = np.random.default_rng(0).normal(size=(60, 3))
    y = (far[:, 0] > 0).astype(int)
    far[5] = 1e153
    for limit, reason in ((-1, "steps are too small for float64"), (5, "max_iter=5")):
        with pytest.warns(ConvergenceWarning, match=rf"early \({reason}[^=]*\).*0 vs 1"):
            model = SVC(kernel="linear", max_iter=limit).fit(far, y)
        assert (model.n_iter_[0] == 5) == (limit == 5)


def test_a_cache_may_be_larger_than_any_memory():
    models = [SVC(cache_size=size).fit(X, y) for size in (1e303, 200)]
    np.testing.assert_array_equal(*(model.dual_coef_ for model in models))


@pytest.mark.skipif(os.name != "posix", reason="sends a signal to this process")
@pytest.mark.parametrize("n_samples", [600, 3000, 10_000])
def test_interrupt_ends_a_fit_that_would_never_end(n_samples):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(n_samples, 2)), rng.integers(0, 4, n_samples)
    model = SVC(C=1e10, gamma=0.1, tol=1e-300, max_iter=20_000)
    with pytest.warns(ConvergenceWarning):  # kernels are loaded: llvmlite drops an interrupt there
        model.fit(X, y)
    timer = threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT])
    with interrupts(), pytest.raises(KeyboardInterrupt):
        timer.start()
        model.set_params(max_iter=-1).fit(X, y)
    timer.join()


def test_callbacks_hear_of_every_pair_and_can_stop_also_one_that_is_alone():
    pytest.importorskip("sklearn.callback", reason="scikit-learn has callbacks from 1.9 on")
    recorder = Recorder()
    SVC().set_callbacks(recorder).fit(X, ANIMALS)
    assert sorted(recorder.ended) == ["ant vs bee", "ant vs cat", "bee vs cat", "fit"]
    stopper = Recorder(stop_after=recorder.ended[0])
    with pytest.warns(ConvergenceWarning, match=r"early \(by a callback\)"):
        model = SVC(n_jobs=1).set_callbacks(stopper).fit(X, ANIMALS)
    assert (model.n_iter_ > 0).sum() == 1
    assert set(stopper.ended) == {stopper.stop_after, "fit"}  # of other pairs nothing is done
    rng = np.random.default_rng(0)
    stopper = Recorder(stop_after="working set")
    with pytest.warns(ConvergenceWarning, match=r"\(by a callback\).*0 vs 1"):
        model = SVC(C=1e6, max_iter=-1).set_callbacks(stopper)
        model.fit(rng.normal(size=(1500, 2)), rng.integers(0, 2, 1500))
    assert set(stopper.ended) == {"working set", "fit"}


@pytest.mark.filterwarnings("ignore:(The|Attribute) `prob:FutureWarning")
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("last", ["ant vs bee", "probabilities, fold 2 of 5"])
def test_a_callback_ends_the_folds_too(last):
    pytest.importorskip("sklearn.callback", reason="scikit-learn has callbacks from 1.9 on")
    stopper = Recorder(stop_after=last)
    model = SVC(probability=True, n_jobs=1, random_state=0).set_callbacks(stopper).fit(X, ANIMALS)
    whole = SVC(probability=True, random_state=0).fit(X, ANIMALS)
    assert np.isfinite(model.predict_proba(X)).all() and np.any(model.probA_ != whole.probA_)


@pytest.mark.filterwarnings("ignore:The `probability:FutureWarning")
@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_progress_bar_is_one_line_for_the_whole_fit(n_classes, capsys):
    callback = pytest.importorskip("sklearn.callback")
    pytest.importorskip("rich")
    for model in (SVC(), SVC(probability=True)):
        model.set_callbacks(callback.ProgressBar()).fit(X, np.minimum(y, n_classes - 1))
        (line,) = capsys.readouterr().out.strip().splitlines()
        assert "SVC - fit" in line and "100%" in line


def test_a_weight_that_makes_no_bound_is_named():
    for factor in (0, -1, np.nan):
        with pytest.raises(ValueError, match=r"class_weight of 1 must be > 0.*sample_weight 0"):
            SVC(class_weight={1: factor}).fit(X, y)
    with pytest.raises(ValueError, match="larger C, or larger weights"):
        SVC(C=0.1).fit(X, y, np.where(np.arange(150) == 70, 5e-324, 1))
    with pytest.raises(ValueError, match="sum of sample_weight, which is beyond float64"):
        SVC(class_weight="balanced").fit(X, y, np.full(150, 1e308))
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
