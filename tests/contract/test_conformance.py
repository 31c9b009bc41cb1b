"""Every public estimator passes every check of scikit-learn, with no expected failure."""

import inspect
import warnings

import pytest
from sklearn.base import BaseEstimator
from sklearn.utils.estimator_checks import parametrize_with_checks

import gpurbf
from gpurbf.layer.backends import available_backends

ESTIMATORS = [
    gpurbf.RBFLayer(),
    gpurbf.RBFClassifier(),
    gpurbf.RBFClassifierCV(),
    gpurbf.FSVC(),
    gpurbf.SVC(),
]
AVAILABLE = [name for name, problem in available_backends().items() if problem is None]
CHECKED = [type(estimator)(backend=name) for estimator in ESTIMATORS for name in AVAILABLE]


@parametrize_with_checks(CHECKED)
def test_scikit_learn_check(estimator, check):
    with warnings.catch_warnings():
        # The checks' data have fewer samples than the default number of centers, among others.
        warnings.simplefilter("ignore")
        check(estimator)


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)
def test_the_checks_run_on_every_backend(backend, estimator):
    """Skipped by name where a backend is missing, and a failure if GPURBF_REQUIRE names it."""
    assert (type(estimator), backend) in {(type(each), each.backend) for each in CHECKED}


def test_every_public_estimator_is_checked():
    public = {getattr(gpurbf, name) for name in gpurbf.__all__}
    estimators = {x for x in public if inspect.isclass(x) and issubclass(x, BaseEstimator)}
    assert estimators == {type(estimator) for estimator in ESTIMATORS}


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)
def test_parameters_after_the_first_are_keyword_only(estimator):
    kinds = [p.kind for p in inspect.signature(type(estimator)).parameters.values()]
    assert all(kind is inspect.Parameter.KEYWORD_ONLY for kind in kinds[1:])
