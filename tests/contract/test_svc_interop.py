"""A fitted SVC is scikit-learn's and back: equal labels, outputs to 1e-5, whatever the kernel."""

import pickle

import numpy as np
import pytest
import scipy.sparse as sp
import sklearn.svm
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris
from sklearn.exceptions import NotFittedError
from sklearn.metrics.pairwise import laplacian_kernel

from gpurbf import SVC

ORIGINAL = sklearn.svm.SVC
DIGITS, LABELS = load_digits(return_X_y=True)
X, Y, X_TEST = DIGITS[:500] / 16, LABELS[:500], DIGITS[1000:] / 16
KERNELS = {
    "rbf": {"gamma": 0.5, "C": 3.0},
    "scale": {},
    "linear": {"kernel": "linear"},
    "poly": {"kernel": "poly", "degree": 2, "coef0": 1.0},
    "sigmoid": {"kernel": "sigmoid", "gamma": 0.01},
    "callable": {"kernel": laplacian_kernel},
}


def same(ours, theirs, X):
    """Both models answer the same."""
    assert np.array_equal(ours.predict(X), theirs.predict(X))
    for shape in ("ovr", "ovo"):
        ours.set_params(decision_function_shape=shape)
        theirs.set_params(decision_function_shape=shape)
        np.testing.assert_allclose(
            ours.decision_function(X), theirs.decision_function(X), rtol=0, atol=1e-5
        )


@pytest.mark.parametrize("binary", [False, True], ids=["classes", "binary"])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("direction", ["to", "from"])
def test_a_model_answers_the_same_in_the_other_class(direction, kernel, sparse, binary):
    y = Y < 5 if binary else Y.astype(str)
    train, test = (sp.csr_matrix(part) if sparse else part for part in (X, X_TEST))
    if direction == "to":
        ours = SVC(**KERNELS[kernel]).fit(train, y)
        theirs = ours.to_sklearn()
        assert type(theirs) is ORIGINAL
    else:
        theirs = ORIGINAL(**KERNELS[kernel]).fit(train, y)
        ours = SVC.from_sklearn(theirs)
    same(ours, theirs, test)
    same(pickle.loads(pickle.dumps(ours)), pickle.loads(pickle.dumps(theirs)), test)
    if kernel == "linear":
        coefs = [model.coef_.toarray() if sparse else model.coef_ for model in (ours, theirs)]
        np.testing.assert_allclose(*coefs)


def test_a_precomputed_kernel_goes_both_ways():
    K, K_test = X @ X.T, X_TEST @ X.T
    ours = SVC(kernel="precomputed").fit(K, Y)
    same(ours, ours.to_sklearn(), K_test)
    same(SVC.from_sklearn(ours.to_sklearn()), ours.to_sklearn(), K_test)


@pytest.mark.filterwarnings("ignore:.*deprecated:FutureWarning")
def test_probabilities_go_both_ways_but_for_the_coupling():
    for cls in (SVC, ORIGINAL):
        model = cls(probability=True, random_state=0).fit(X, Y)
        other = model.to_sklearn() if cls is SVC else SVC.from_sklearn(model)
        assert np.array_equal(model.probA_, other.probA_)
        # scikit-learn's coupling stops at an error of 0.005 / n_classes.
        expected = model.predict_proba(X_TEST)
        np.testing.assert_allclose(other.predict_proba(X_TEST), expected, rtol=0, atol=0.01)


def test_parameters_that_both_have_are_kept():
    pytest.importorskip("pandas")
    data = load_iris(as_frame=True)
    ours = SVC(C=2.5, max_iter=99_999, break_ties=True, gamma="auto").fit(data.data, data.target)
    made = ours.to_sklearn()
    assert made.get_params() == ORIGINAL(**made.get_params()).get_params()
    assert (made.C, made.max_iter, made.break_ties, made.gamma) == (2.5, 99_999, True, "auto")
    assert list(made.feature_names_in_) == list(data.feature_names)
    again = SVC.from_sklearn(made)
    assert again.get_params() == ours.get_params()
    assert clone(again).fit(data.data, data.target).score(data.data, data.target) > 0.9


def test_parameters_set_since_fit_are_not_the_models():
    ours = SVC(kernel="poly", degree=2).fit(X, Y)
    ours.set_params(kernel="rbf", degree=5, coef0=3.0)
    same(ours, ours.to_sklearn(), X_TEST)


def test_what_cannot_be_converted_is_refused_with_a_way_out():
    with pytest.raises(ValueError, match=r"no kernel 'laplacian'.*laplacian_kernel"):
        SVC(kernel="laplacian").fit(X, Y).to_sklearn()
    with pytest.raises(NotFittedError):
        SVC().to_sklearn()
    with pytest.raises(NotFittedError):
        SVC.from_sklearn(ORIGINAL())
    with pytest.raises(TypeError, match=r"sklearn\.svm\._classes\.NuSVC"):
        SVC.from_sklearn(sklearn.svm.NuSVC().fit(X, Y))


@pytest.mark.parametrize("index", [np.int32, np.int64])
def test_sparse_support_vectors_may_have_their_entries_in_any_order(index):
    # Each entry in two halves, the last columns first.
    mirrored = sp.csr_array(X[:200, ::-1])
    columns, ends = 63 - mirrored.indices.repeat(2), 2 * mirrored.indptr
    entries = mirrored.data.repeat(2) / 2, columns.astype(index), ends.astype(index)
    ours = SVC().fit(sp.csr_array(entries, shape=(200, 64)), Y[:200])
    assert not ours.support_vectors_.has_canonical_format
    before = ours.support_vectors_.toarray()
    same(ours, ours.to_sklearn(), sp.csr_matrix(X_TEST))
    np.testing.assert_array_equal(ours.support_vectors_.toarray(), before)
