"""Solvers are objects with parameters, by name or as they are, in every estimator that trains."""

import pickle
import re

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV

from gpurbf import FSVC, RBFClassifier
from gpurbf.solvers import CG, SOLVERS, make_solver
from gpurbf.solvers.lms import LMS
from gpurbf.solvers.one_hot import OneHot
from gpurbf.solvers.ridge import Ridge

X, y = load_digits(n_class=4, return_X_y=True)
rbf = RBFClassifier(40, random_state=0)
fsvc = FSVC(22.0, random_state=0)


TAKEN = [(rbf, name) for name in sorted(SOLVERS)]
TAKEN += [(fsvc, name) for name in sorted(SOLVERS) if name != "cg"]


@pytest.mark.parametrize(
    ("model", "name"), TAKEN, ids=[f"{type(m).__name__}-{n}" for m, n in TAKEN]
)
def test_a_name_is_the_object_with_the_estimators_own_parameters(model, name):
    own = model.get_params() | ({"fit_intercept": False} if model is fsvc else {})
    taken = clone(SOLVERS[name]()).get_params()
    solver = SOLVERS[name](**{key: own[key] for key in taken if key in own})
    named, given = (clone(model).set_params(solver=each).fit(X, y) for each in (name, solver))
    assert np.array_equal(named.decision_function(X), given.decision_function(X))


def test_a_rate_can_be_set_and_searched():
    model = clone(rbf).set_params(solver=LMS(learning_rate=0.001, n_epochs=1))
    slow, more = clone(model).fit(X, y), clone(model).set_params(solver__n_epochs=5).fit(X, y)
    assert not np.array_equal(slow.coef_, more.coef_)
    with pytest.raises(ValueError, match="learning_rate=90 is too high"):
        clone(model).set_params(solver__learning_rate=90.0, solver__n_epochs=30).fit(X, y)
    search = GridSearchCV(model, {"solver__learning_rate": [1e-9, 0.1]}, cv=2).fit(X, y)
    assert len(set(search.cv_results_["mean_test_score"])) == 2


def test_a_solver_is_cloned_shown_and_pickled_with_its_estimator():
    model = clone(rbf).set_params(solver=Ridge(1e-3, fit_intercept=False))
    for copy in (clone(model), pickle.loads(pickle.dumps(model))):
        assert repr(copy) == repr(model) and "Ridge(alpha=0.001, fit_intercept=False)" in repr(copy)
        assert copy.solver is not model.solver
        assert np.array_equal(copy.fit(X, y).coef_, clone(model).fit(X, y).coef_)
        assert not copy.intercept_.any()


def test_an_objects_parameters_are_its_own_in_a_stream_too():
    halves = (X[:300], y[:300]), (X[300:], y[300:])
    one, three = (clone(fsvc).set_params(solver=LMS(0.01, n_epochs=n)) for n in (1, 3))
    # A name: one epoch a chunk.
    named = clone(fsvc).set_params(solver="lms", learning_rate=0.01, n_epochs=3)
    for model in (one, three, named):
        for part in halves:
            model.partial_fit(*part, classes=range(4))
    assert np.array_equal(named.coef_, one.coef_) and not np.array_equal(one.coef_, three.coef_)
    assert (one.n_iter_, three.n_iter_, named.n_iter_) == (1, 3, 1)


@pytest.mark.parametrize("model", [rbf, fsvc], ids=lambda m: type(m).__name__)
@pytest.mark.parametrize(
    ("solver", "error", "message"),
    [
        (LMS, ValueError, "Unknown solver <class"),
        (None, ValueError, "Unknown solver None"),
        (3, ValueError, "Unknown solver 3"),
        (Ridge(0.0, fit_intercept=False), ValueError, "alpha must be > 0"),
        (Ridge("1", fit_intercept=False), TypeError, "alpha must be a number"),
        (Ridge(fit_intercept="no"), TypeError, "fit_intercept must be True or False"),
        (LMS(-1.0), ValueError, "learning_rate must be >= 0"),
        (LMS(n_epochs=0), ValueError, "n_epochs must be >= 1"),
        (CG(0), ValueError, "alpha must be > 0"),
        (CG(fit_intercept="no"), TypeError, "fit_intercept must be True or False"),
        (CG(tol=0.0), ValueError, "tol must be > 0"),
        (CG(max_iter=0), ValueError, "max_iter must be >= 1"),
        (CG(max_iter=1.5), TypeError, "max_iter must be an integer"),
        (CG(preconditioner=0), ValueError, "preconditioner must be >= 1"),
    ],
    ids=str,
)
def test_what_is_no_solver_or_has_a_bad_parameter_is_refused(model, solver, error, message):
    with pytest.raises(error, match=message):
        clone(model).set_params(solver=solver).fit(X, y)


def test_what_a_solver_needs_is_asked_for():
    for model, message in (
        (RBFClassifier(40, centers="kmeans", solver="one-hot"), "needs centers that are samples"),
        (FSVC(22.0, solver="cg"), "FSVC has few centers and no use for solver='cg'"),
        (FSVC(22.0, solver=Ridge()), "FSVC's outputs have no constant"),
    ):
        with pytest.raises(ValueError, match=message):
            model.fit(X, y)
    with pytest.raises(ValueError, match="Unknown solver 'newton'"):
        RBFClassifier(40, solver="newton").partial_fit(X, y, classes=range(4))
    for solver, said in ((OneHot(), r"OneHot\(\)"), ("lms", "'lms'"), ("cg", "'cg'")):
        with pytest.raises(AttributeError) as refused:
            _ = RBFClassifier(40, solver=solver).partial_fit
        reason = str(refused.value.__cause__)
        assert re.search(f"partial_fit needs solver='ridge'.*got {said}", reason)
    for solver in ("auto", "ridge", Ridge()):
        model = RBFClassifier(40, solver=solver).partial_fit(X, y, classes=range(4))
        assert model.score(X, y) > 0.9


def test_a_search_gives_an_object_its_best_epoch_and_leaves_it_alone():
    solver = LMS(0.01, n_epochs=4)
    model = FSVC(solver=solver, random_state=0).fit(X, y)
    named = FSVC(solver="lms", learning_rate=0.01, n_epochs=4, random_state=0).fit(X, y)
    assert model.n_iter_ == named.n_iter_ and np.array_equal(model.coef_, named.coef_)
    assert solver.n_epochs == 4 and make_solver(solver) is solver
