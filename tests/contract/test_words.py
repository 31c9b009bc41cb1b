"""Messages show values as one writes them, the option that exists and the way out."""

import numpy as np
import pytest
import scipy.sparse as sp
from callers import ESTIMATORS
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_iris
from sklearn.metrics import accuracy_score

from gpurbf import FSVC, SVC, RBFClassifier, RBFClassifierCV, config_context

X, Y = load_iris(return_X_y=True)
CALLS = {
    "svc, one class": lambda: SVC().fit(X, Y * 0),
    "svc, weights of one label": lambda: SVC().fit(X, Y, (Y == 1).astype(float)),
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
    assert ("only one class" in str(error.value)) == ("one class" in name)


FLAGS = dict.fromkeys(["False", None, 1], "True or False")
MUST_BE = {
    "C": {0: "> 0"},
    "alpha": {0: "> 0"},
    **dict.fromkeys(("break_ties", "fit_intercept", "shrinking", "shuffle"), FLAGS),
    "alphas": dict.fromkeys([(), 0.1, ("a",)], "a list of numbers > 0"),
    "cache_size": {0: "> 0"},
    "class_weight": {"even": "None, 'balanced' or a dict, got 'even'"},
    "coef0": {np.inf: "finite"},
    "degree": {-1: ">= 0"},
    "eval_radius": {-1.0: "> 0"},
    "gamma": {-1.0: "> 0"},
    "learning_rate": {-0.1: ">= 0"},
    "max_centers": {0: ">= 1"},
    "max_iter": {-2: ">= -1"},
    "n_centers": {0: ">= 1", 2.5: "an integer", True: "an integer"},
    "n_epochs": {0: ">= 1", 1.5: "an integer"},
    "n_left_out": {0: ">= 1", 0.5: "an integer"},
    "overlap": {0: "> 0"},
    "radius": {0.0: "> 0", None: "a number"},
    "tol": {0.0: "> 0"},
    "verbose": {None: "an integer", -1: ">= 0"},
}
UNKNOWN = {
    "n_centers": "most", "centers": "best", "kernel": "cosine", "metric": "cosine", "gamma": "big",
    "precision": "half", "backend": "torch", "radius": "best", "selection": "all", "solver": "smo",
    "outside": "random", "n_left_out": "few", "decision_function_shape": "both",
}  # fmt: skip
OTHERS = [
    (RBFClassifier(centers=np.ones((3, 5))), r"centers must have shape \(m, 4\)"),
    (RBFClassifier(centers=np.full((3, 4), np.nan)), "centers contains NaN"),
    (RBFClassifierCV(9, alphas=[0.1, 0.0]), "Each of alphas must be > 0, got 0.0"),
    (RBFClassifierCV(9, gammas=[np.nan]), "Each of gammas must be > 0, got nan"),
    (RBFClassifierCV(9, gammas=[np.inf]), "Each of gammas must be finite, got inf"),
    (RBFClassifierCV(9, scoring="best"), "scoring"),
    (RBFClassifierCV(9, scoring=accuracy_score), "metric function rather than a scorer"),
    (FSVC(1e-170), "radius=1e-170 is too small"),
    (FSVC(1.0, eval_radius=1e-170), "eval_radius=1e-170 is too small"),
    (SVC(gamma="median"), "Unknown gamma 'median'"),
    *(
        (clone(model).set_params(precision="exact"), "precision='exact' needs")
        for model in ESTIMATORS
    ),
    *((clone(model).set_params(backend=None), "Unknown backend None") for model in ESTIMATORS),
]


@pytest.mark.parametrize("model", ESTIMATORS, ids=repr)
def test_a_bad_parameter_is_refused_by_name(model):
    for name in MUST_BE.keys() & model.get_params().keys():
        for value, what in MUST_BE[name].items():
            kinds = "a number", "an integer", "True or False"
            error = TypeError if what in kinds else ValueError
            with pytest.raises(error, match=f"^{name} must be {what}"):
                clone(model).set_params(**{name: value}).fit(X, Y)
    for name in UNKNOWN.keys() & model.get_params().keys():
        with pytest.raises(ValueError, match=rf"^Unknown {name} '{UNKNOWN[name]}'.*: use .*one of"):
            clone(model).set_params(**{name: UNKNOWN[name]}).fit(X, Y)


@pytest.mark.parametrize(
    "model, message", OTHERS, ids=[f"{type(m).__name__}, {t}" for m, t in OTHERS]
)
def test_a_parameter_that_does_not_fit_the_data_or_others_is_refused(model, message):
    with pytest.raises(ValueError, match=message):
        model.fit(X + 0.1 * np.sqrt(X), Y)  # on no quantization


def test_probability_is_deprecated_as_in_scikit_learn():
    pytest.importorskip("sklearn.callback", reason="scikit-learn deprecates it from 1.9 on")
    with pytest.warns(FutureWarning, match="CalibratedClassifierCV"):
        assert SVC(probability=True).fit(X, Y).predict_proba(X).shape == (150, 3)


def test_probability_names_its_successor_which_works():
    with pytest.raises(AttributeError) as error:
        SVC().predict_proba  # noqa: B018
    assert "CalibratedClassifierCV" in str(error.value.__cause__)
    model = CalibratedClassifierCV(SVC(), ensemble=False).fit(X, Y)
    assert model.predict_proba(X).shape == (150, 3)
    assert SVC(probability="deprecated").fit(X, Y).score(X, Y) > 0.9


def test_a_frame_of_sparse_columns_is_predicted_as_it_is_fitted():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X).astype(pandas.SparseDtype("float", 0))
    frame.columns = frame.columns.astype(str)
    model = SVC().fit(frame, Y)
    assert np.array_equal(model.predict(frame), SVC().fit(X, Y).predict(X))
    assert sp.issparse(model.support_vectors_)


RBFS = [RBFClassifier(9), RBFClassifier("all", solver="cg"), RBFClassifierCV(9)]
WEIGHTED = [*RBFS, FSVC()]


@pytest.mark.parametrize("model", WEIGHTED, ids=repr)
@pytest.mark.parametrize("weight", [5e-324, 1e-310, 1e200, 1e308])
def test_sample_weights_too_large_or_small_for_the_arithmetic_are_named(model, weight):
    for weights in (np.full(150, weight), np.where(np.arange(150) == 7, weight, 1.0)):
        with pytest.raises(ValueError, match=r"sample_weight has .*Divide them by their mean"):
            clone(model).fit(X, Y, sample_weight=weights)


@pytest.mark.parametrize("model", WEIGHTED, ids=repr)
@pytest.mark.parametrize("factor", [-1, np.nan, np.inf, 1e200, 5e-324])
def test_invalid_class_weights_are_named(model, factor):
    with pytest.raises(ValueError, match=r"class_weight of 1 must be 0, or from .*, got"):
        clone(model).set_params(class_weight={1: factor}).fit(X, Y)
    with pytest.raises(ValueError, match="class_weight is 0 for every class"):
        clone(model).set_params(class_weight=dict.fromkeys(range(3), 0)).fit(X, Y)


def test_balanced_class_weights_need_a_finite_sum_of_sample_weights():
    with pytest.raises(ValueError, match="sum of sample_weight, which is beyond float64"):
        SVC(class_weight="balanced").fit(X, Y, np.full(150, 1e308))


@pytest.mark.parametrize("n_jobs", [1.5, "two", True, 0])
@pytest.mark.parametrize("model", [SVC(), *RBFS], ids=repr)
def test_an_invalid_number_of_threads_is_named(model, n_jobs):
    with pytest.raises(ValueError, match="n_jobs must be None, a number of threads"):
        clone(model).set_params(n_jobs=n_jobs).fit(X, Y)


@pytest.mark.parametrize("name", ["memory", "gpu_memory"])
def test_invalid_settings_are_named(name):
    no_limit = [None] * (name == "memory")  # which the memory of a GPU may have
    for value in ("a", 0, -1, np.nan, np.inf, True, [256], *no_limit):
        with pytest.raises(ValueError, match=f"^{name} must be "), config_context(**{name: value}):
            pass
