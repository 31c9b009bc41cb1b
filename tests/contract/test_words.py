"""What messages say: values as one writes them, the option that exists, the way out."""

import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_iris

from gpurbf import FSVC, SVC, RBFClassifier, RBFLayer
from gpurbf.estimators import _fitted_layer

X, Y = load_iris(return_X_y=True)
CALLS = {
    "svc, one class": lambda: SVC().fit(X, Y * 0),
    "svc, one class weighted": lambda: SVC().fit(X, Y, (Y == 1).astype(float)),
    "svc, number": lambda: SVC(C=np.float64(-1)).fit(X, Y),
    "rbf, number": lambda: RBFClassifier(np.int64(0)).fit(X, Y),
    "rbf, one class": lambda: RBFClassifier(5).fit(X, Y * 0),
    "fsvc, number": lambda: FSVC(np.float64(-1)).fit(X, Y),
    "rbf, new labels": lambda: RBFClassifier(5).partial_fit(X, Y, classes=[0, 1]),
    "rbf, other classes": lambda: (
        RBFClassifier(5).partial_fit(X, Y, classes=[0, 1, 2]).partial_fit(X, Y, classes=[1, 2, 3])
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_no_message_shows_numpys_types(name):
    with pytest.raises((ValueError, TypeError)) as error:
        CALLS[name]()
    assert "np." not in str(error.value) and "array(" not in str(error.value)


def test_probability_names_its_successor_which_works():
    with pytest.raises(ValueError, match="CalibratedClassifierCV"):
        SVC(probability=True).fit(X, Y)
    model = CalibratedClassifierCV(SVC(probability=False), ensemble=False).fit(X, Y)
    assert model.predict_proba(X).shape == (150, 3)
    assert SVC(probability="deprecated").fit(X, Y).score(X, Y) > 0.9


@pytest.mark.parametrize("estimator", [RBFClassifier, RBFLayer])
def test_rbf_is_another_word_for_gaussian(estimator):
    models = [estimator(9, kernel=name, random_state=0).fit(X, Y) for name in ("rbf", "gaussian")]
    method = "transform" if estimator is RBFLayer else "decision_function"
    np.testing.assert_array_equal(*(getattr(model, method)(X) for model in models))
    assert models[0].kernel == "rbf"


def test_a_frame_of_sparse_columns_is_predicted_as_it_is_fitted():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X).astype(pandas.SparseDtype("float", 0))
    frame.columns = frame.columns.astype(str)
    model = SVC().fit(frame, Y)
    assert np.array_equal(model.predict(frame), SVC().fit(X, Y).predict(X))
    assert sp.issparse(model.support_vectors_)


def wide():
    return sp.random_array((40, 300_000), density=1e-3, random_state=0, format="csr")


def test_wide_sparse_data_warn_where_they_would_take_minutes(monkeypatch):
    y = np.arange(40) % 2
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SVC().fit(wide(), y)
        RBFClassifier(10, random_state=0).fit(wide(), y)
    monkeypatch.setattr(_fitted_layer, "_LONG", 0.0)
    with pytest.warns(UserWarning, match="300,000 features.*LinearSVC"):
        SVC().fit(wide(), y)
    # What few entries these rows have is all that is multiplied, but for Manhattan distances.
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        RBFClassifier(10, random_state=0).fit(wide(), y)
    with pytest.warns(UserWarning, match="300,000 features.*TruncatedSVD"):
        RBFClassifier(10, metric="manhattan", kernel="laplacian", random_state=0).fit(wide(), y)


def test_the_warning_counts_the_products_of_the_kernel(monkeypatch):
    full = sp.csr_array(np.ones((30, 5)))
    monkeypatch.setattr(_fitted_layer, "_SPARSE", 30 * 30 * 5 / _fitted_layer._LONG)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _fitted_layer.warn_if_sparse_takes_long(full[:29])
    monkeypatch.setattr(_fitted_layer, "_SPARSE", 30 * 30 * 5 / _fitted_layer._LONG / 1.01)
    with pytest.warns(UserWarning, match="about 1 min"):
        _fitted_layer.warn_if_sparse_takes_long(full)
