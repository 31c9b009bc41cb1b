"""Sparse data that would take minutes are warned of; an interrupt in a kernel is an interrupt."""

from unittest.mock import Mock

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.datasets import load_iris

from gpurbf import SVC, RBFClassifier
from gpurbf.estimators import _fitted_layer


def wide():
    return sp.random_array((40, 300_000), density=1e-3, random_state=0, format="csr")


@pytest.mark.slow
def test_wide_sparse_data_warn_where_they_would_take_minutes(monkeypatch):
    y = np.arange(40) % 2
    SVC().fit(wide(), y)  # a warning would be an error
    RBFClassifier(10, random_state=0).fit(wide(), y)
    monkeypatch.setattr(_fitted_layer, "_LONG", 0.0)
    with pytest.warns(UserWarning, match="300,000 features.*LinearSVC"):
        SVC().fit(wide(), y)
    # What few entries these rows have is all that is multiplied, but for Manhattan distances.
    RBFClassifier(10, random_state=0).fit(wide(), y)
    with pytest.warns(UserWarning, match="300,000 features.*TruncatedSVD"):
        RBFClassifier(10, metric="manhattan", kernel="laplacian", random_state=0).fit(wide(), y)


def test_the_warning_counts_the_products_of_the_kernel(monkeypatch):
    full = sp.csr_array(np.ones((30, 5)))
    monkeypatch.setattr(_fitted_layer, "_SPARSE", 30 * 30 * 5 / _fitted_layer._LONG / 1.01)
    _fitted_layer.warn_if_sparse_takes_long(full[:29])  # a warning would be an error
    with pytest.warns(UserWarning, match="about 1 min"):
        _fitted_layer.warn_if_sparse_takes_long(full)


def test_an_interrupt_while_a_kernel_returns_is_one(monkeypatch):
    """Numba calls Python to hand over arrays; an interrupt there is the cause of a SystemError."""
    X, y = load_iris(return_X_y=True)
    model = RBFClassifier(20, random_state=0).fit(X, y)
    before = dict(vars(model))
    again = SystemError("each caller in C raises it once more")
    again.__cause__ = TimeoutError()  # of a signal's handler
    for cause, seen in (
        (KeyboardInterrupt(), KeyboardInterrupt), (again, TimeoutError), (None, SystemError)
    ):  # fmt: skip
        error = SystemError("a result with an exception set")
        error.__cause__ = cause
        monkeypatch.setattr(RBFClassifier, "_choose_layer", Mock(side_effect=error))
        with pytest.raises(seen):
            model.fit(X, y)
        assert vars(model) == before
