"""Probabilities of SVC: Platt's sigmoids and their coupling, as LIBSVM's."""

import traceback

import numpy as np
import pytest
import sklearn.svm
from sklearn.calibration import _sigmoid_calibration
from sklearn.datasets import load_digits
from sklearn.metrics import log_loss

from gpurbf import SVC
from gpurbf.svm import platt
from gpurbf.svm.platt import class_probabilities, fit_sigmoid

pytestmark = pytest.mark.filterwarnings("ignore:(The|Attribute) `prob:FutureWarning")
X, Y = load_digits(return_X_y=True)
X_TRAIN, Y_TRAIN, X_TEST, Y_TEST = X[:1000], Y[:1000], X[1000:], Y[1000:]


class Cubic(SVC):
    """A subclass whose constructor takes other parameters than that of `SVC`."""

    def __init__(self, name="cubic"):
        super().__init__(kernel="poly", coef0=2.0, probability=True, random_state=0)
        self.name = name


def test_a_subclass_has_probabilities_of_its_own_kernel():
    own = SVC(kernel="poly", coef0=2.0, probability=True, random_state=0)
    expected, model = (each.fit(X[:200], Y[:200]) for each in (own, Cubic()))
    np.testing.assert_array_equal(model.predict_proba(X_TEST), expected.predict_proba(X_TEST))
    assert model.to_sklearn().get_params() == expected.to_sklearn().get_params()


@pytest.mark.parametrize("scale", [1e-100, 1e-7, 1, 1e4, 1e100])
@pytest.mark.parametrize("offset", [0, -3, 1e4])
def test_a_sigmoid_is_that_of_scikit_learns_calibration(scale, offset):
    """Whatever size outputs have, only the line is another."""
    rng = np.random.default_rng(0)
    f = rng.normal(size=500)
    first = f + rng.normal(size=500) > 0.3
    A, B = _sigmoid_calibration(f, first)
    moved = scale * (f + offset)
    found = fit_sigmoid(moved[first], moved[~first])
    np.testing.assert_allclose(found, [A / scale, B - A * offset], rtol=1e-4)


def test_separated_or_constant_outputs_have_finite_sigmoids():
    """And what outputs differ by in rounding is not learned."""
    one = np.ones(1)
    np.testing.assert_allclose(fit_sigmoid(one, -one), [-np.log(2), 0], atol=1e-6)
    targets = (3 * 4 / 5 + 5 * 1 / 7) / 8
    for value in (0.0, 0.3, 1.0):
        first, second = np.full(3, value), np.full(5, value)
        A, B = fit_sigmoid(first, second)
        np.testing.assert_allclose(platt.pair_probabilities(first, A, B), targets, rtol=1e-5)
        assert abs(A) < 1 and abs(B) < 1
        for digit in (1e-12 * value, -1e-12 * value):
            np.testing.assert_allclose(fit_sigmoid(first + digit, second), [A, B], rtol=1e-9)


def test_coupling_minimises_its_sum():
    """Of the squares of (1 - r) p_i - r p_j: at the least all its slopes are the same."""
    r = np.random.default_rng(0).uniform(size=(20, 10))
    p, (first, second) = class_probabilities(r, 5), np.triu_indices(5, 1)
    off, slopes = (1 - r) * p[:, first] - r * p[:, second], np.zeros((5, 20))
    np.add.at(slopes, first, ((1 - r) * off).T)
    np.add.at(slopes, second, (-r * off).T)
    np.testing.assert_allclose(np.ptp(slopes, axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(p.sum(axis=1), 1)
    assert (p > 0).all()


def test_no_output_is_of_a_model_that_saw_the_sample():
    codes = np.random.default_rng(0).integers(0, 3, 50)
    seen = []

    def outputs(train, test):
        assert not set(train) & set(test)
        # Each class has its share in every fold.
        shares = [np.bincount(codes[part], minlength=3) for part in (test, train)]
        assert (np.abs(platt.N_FOLDS * shares[0] - shares[0] - shares[1]) < platt.N_FOLDS).all()
        seen.extend(test)
        return np.zeros((len(test), 3))

    assert platt.fit_sigmoids(codes, np.random.RandomState(0), outputs).shape == (2, 3)
    assert sorted(seen) == list(range(50))


@pytest.mark.parametrize("binary", [False, True], ids=["classes", "binary"])
def test_the_same_sigmoids_give_scikit_learns_probabilities(binary):
    y = Y_TRAIN < 5 if binary else Y_TRAIN
    theirs = sklearn.svm.SVC(probability=True, random_state=0).fit(X_TRAIN, y)
    ours = SVC.from_sklearn(theirs)
    # LIBSVM ends its iterations at differences of 0.005 / n_classes.
    expected = theirs.predict_proba(X_TEST)
    np.testing.assert_allclose(ours.predict_proba(X_TEST), expected, atol=5e-3)
    np.testing.assert_array_equal(ours.to_sklearn().predict_proba(X_TEST), expected)
    np.testing.assert_array_equal(ours.probA_, theirs.probA_)
    np.testing.assert_array_equal(ours.probB_, theirs.probB_)


@pytest.mark.parametrize("kernel", ["rbf", "linear", lambda a, b: a @ b.T])
def test_probabilities_are_as_good_as_scikit_learns(kernel):
    losses = [
        log_loss(Y_TEST, model.fit(X_TRAIN, Y_TRAIN).predict_proba(X_TEST))
        for cls in (SVC, sklearn.svm.SVC)
        for model in [cls(kernel=kernel, probability=True, random_state=0)]
    ]
    assert losses[0] == pytest.approx(losses[1], rel=0.05)


def test_random_state_makes_them_reproducible():
    models = [SVC(probability=True, random_state=n).fit(X[:200], Y[:200]) for n in (0, 0, 1)]
    a, b, c = (model.predict_proba(X_TEST) for model in models)
    assert np.array_equal(a, b) and not np.array_equal(a, c)
    assert np.array_equal(models[0].decision_function(X_TEST), models[2].decision_function(X_TEST))
    np.testing.assert_allclose(a.sum(axis=1), 1)


@pytest.mark.parametrize("counts", [(1, 1), (1, 2, 3), (1, 30)])
def test_classes_of_one_sample_have_probabilities(counts):
    y = np.repeat(np.arange(len(counts)), counts)
    P = SVC(probability=True).fit(X[: len(y)], y).predict_proba(X)
    assert np.isfinite(P).all() and (P > 0).all() and P.shape == (len(X), len(counts))


def test_weights_class_weights_and_given_kernels_reach_the_folds():
    weights = np.random.default_rng(0).uniform(0.1, 2, 300) * (np.arange(300) % 7 > 0)
    options = {"C": 0.3, "class_weight": {1: 5.0, 2: 0.2}, "probability": True, "random_state": 0}
    A, K = X[:300] / 16, X[:300] @ X[:300].T / 256
    y = np.minimum(Y[:300], 3)
    given = SVC(kernel="precomputed", **options).fit(K, y, weights)
    linear = SVC(kernel="linear", **options).fit(A, y, weights)
    np.testing.assert_allclose(given.probA_, linear.probA_, rtol=0.02)
    some = weights > 0
    again = SVC(kernel="linear", **options).fit(A[some], y[some], weights[some])
    np.testing.assert_array_equal(again.predict_proba(A), linear.predict_proba(A))


@pytest.mark.parametrize("name", ["probA_", "probB_", "n_support_"])
def test_fitted_attributes_are_not_there_before_a_fit(name):
    model = SVC()
    with pytest.raises(AttributeError, match=f"{name} is available only after fit"):
        getattr(model, name)
    assert not getattr(model.fit(X[:100], Y[:100]), name).size or name == "n_support_"


def test_a_fit_without_probabilities_forgets_them():
    model = SVC(probability=True).fit(X[:100], Y[:100])
    model.set_params(probability=False).fit(X[:100], Y[:100])
    assert not hasattr(model, "predict_proba") and not model.probA_.size
    with pytest.raises(AttributeError, match="predict_log_proba") as error:
        model.predict_log_proba  # noqa: B018
    reasons = "".join(traceback.format_exception(error.value))
    assert "CalibratedClassifierCV(SVC(), ensemble=False)" in reasons


@pytest.mark.parametrize("n_classes, n", [(3, 10_000), (10, 2500), (101, 30)])
def test_coupling_does_not_depend_on_the_other_samples(n_classes, n):
    # n samples are several parts, solved on several threads.
    r = np.random.default_rng(0).uniform(0.01, 0.99, (n, n_classes * (n_classes - 1) // 2))
    alone = np.concatenate([class_probabilities(row, n_classes) for row in r[::7, None]])
    np.testing.assert_array_equal(class_probabilities(r, n_classes)[::7], alone)
    assert class_probabilities(r[:0], n_classes).shape == (0, n_classes)


def test_data_whose_gamma_would_be_infinite_have_probabilities_of_a_linear_kernel():
    model = SVC(kernel="linear", probability=True, random_state=0).fit(X[:200] * 1e-160, Y[:200])
    assert np.isfinite(model.predict_proba(X_TEST * 1e-160)).all()
