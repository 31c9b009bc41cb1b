"""Every public estimator passes every check of scikit-learn, with no expected failure."""

import inspect

import pytest
from sklearn.base import BaseEstimator, clone
from sklearn.utils.estimator_checks import parametrize_with_checks

import gpurbf

ESTIMATORS = [
    gpurbf.RBFLayer(),
    gpurbf.RBFClassifier(),
    gpurbf.RBFClassifierCV(),
    gpurbf.FSVC(),
    gpurbf.SVC(),
    gpurbf.SVC(kernel="precomputed"),
    gpurbf.RBFClassifier("all", solver="cg"),
]


# The checks' data have fewer samples than the default number of centers, among others.
@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(ESTIMATORS)
def test_every_check_of_scikit_learn_passes_on_every_backend(estimator, check, backend):
    check(clone(estimator).set_params(backend=backend))


def test_every_public_estimator_is_checked():
    public = {getattr(gpurbf, name) for name in gpurbf.__all__}
    estimators = {x for x in public if inspect.isclass(x) and issubclass(x, BaseEstimator)}
    assert estimators == {type(estimator) for estimator in ESTIMATORS}


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=repr)
def test_parameters_after_the_first_are_keyword_only(estimator):
    kinds = [p.kind for p in inspect.signature(type(estimator)).parameters.values()]
    assert all(kind is inspect.Parameter.KEYWORD_ONLY for kind in kinds[1:])
