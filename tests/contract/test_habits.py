"""What users of scikit-learn reach for is there, in every estimator and under the usual name.

Messages show values as one writes them, the option that exists and the way out.
"""

import inspect
import io
import re
import typing

import numpy as np
import pytest
import scipy.sparse as sp
from callers import ESTIMATORS, outputs
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_iris
from sklearn.metrics import accuracy_score

import gpurbf
from gpurbf import FSVC, SVC, RBFClassifier, RBFClassifierCV, RBFLayer
from gpurbf.solvers import CG, LMS

X, Y = load_iris(return_X_y=True)
parametrized = pytest.mark.parametrize("model", ESTIMATORS, ids=lambda m: type(m).__name__)
pytestmark = pytest.mark.filterwarnings("ignore:(The|Attribute) `prob:FutureWarning")


@parametrized
def test_every_fitted_attribute_is_described(model):
    more = SVC(kernel="linear", probability=True), RBFClassifier("all", solver="cg")
    fitted = [clone(each).fit(X, Y) for each in (model, *more) if type(each) is type(model)]
    names = {name for each in fitted for name in dir(each) if re.fullmatch(r"[a-zA-Z]\w*_", name)}
    attributes = inspect.getdoc(type(model)).split("Attributes\n")[1]
    described = set(re.findall(r"\w+_(?=[, ].*:|\b *:)", attributes))
    assert "classes_" in names or isinstance(model, RBFLayer)
    assert names - {"feature_names_in_"} <= described


@parametrized
def test_every_name_in_an_annotation_is_taken(model):
    hints = typing.get_type_hints(type(model).__init__)
    assert {"backend", "precision", "kernel"} <= set(hints)
    options = {
        name: [value for each in (hint, *typing.get_args(hint)) for value in typing.get_args(each)]
        for name, hint in hints.items()
    }
    for name, values in options.items():
        for value in (value for value in values if isinstance(value, str)):
            data = {"precomputed": X @ X.T, "exact": np.round(X)}.get(value, X)
            try:
                outputs(clone(model).set_params(**{name: value}).fit(data, Y), data)
            except gpurbf.BackendUnavailable:
                assert name in ("backend", "precision")
            except ValueError as error:
                # Needs a GPU, or gives no two centers on these data.
                assert value in ("tf32", "ratio"), error


@parametrized
def test_rbf_is_another_word_for_gaussian(model):
    models = [clone(model).set_params(kernel=name).fit(X, Y) for name in ("rbf", "gaussian")]
    assert np.array_equal(*(outputs(each, X) for each in models))
    assert [each.kernel for each in models] == ["rbf", "gaussian"]
    if isinstance(model, SVC):
        assert models[1].to_sklearn().kernel == "rbf"


@parametrized
@pytest.mark.parametrize("heard", [True, False], ids=["callbacks", "before 1.9"])
def test_verbose_prints_lines_of_progress(model, heard, capsys, monkeypatch):
    if not heard:
        callback = pytest.importorskip("sklearn.callback")
        monkeypatch.delattr(callback.CallbackSupportMixin, "_init_callback_context")
    expected = outputs(clone(model).fit(X, Y), X)
    assert not capsys.readouterr().out
    assert np.array_equal(outputs(clone(model).set_params(verbose=True).fit(X, Y), X), expected)
    lines = capsys.readouterr().out.splitlines()
    assert lines and all(line.startswith(f"[{type(model).__name__}] ") for line in lines)
    if isinstance(model, SVC):  # a line for each pair of classes
        assert len(lines) == 3 and min(lines).startswith("[SVC] 0 vs 1: ")


def test_an_output_without_letters_of_the_labels_does_not_end_a_fit(monkeypatch):
    said = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(said, "ascii"))
    SVC(verbose=1).fit(X, np.array(["ä", "b", "c"])[Y])
    assert rb"[SVC] b vs \xe4: " in said.getvalue()


@pytest.mark.parametrize("dtype", [np.uint8, np.uint64])
@pytest.mark.parametrize(
    "model",
    [
        RBFClassifier(130, n_jobs=2, random_state=0),
        RBFClassifier(130, centers="kmeans-class", random_state=0),
        FSVC(1e-3, max_centers=255, selection="per-class", random_state=0),
        SVC(max_iter=250),
    ],
    ids=repr,
)
def test_numbers_may_be_integers_of_numpy(model, dtype):
    expected = outputs(clone(model).fit(X, Y), X)
    own = {name: dtype(v) for name, v in model.get_params().items() if type(v) is int and v > 1}
    own.pop("cache_size", None)
    assert np.array_equal(outputs(clone(model).set_params(**own).fit(X, Y), X), expected)


def test_the_layer_has_the_defaults_of_the_classifier():
    layer, classifier = RBFLayer().get_params(), RBFClassifier().get_params()
    assert layer.items() <= classifier.items()
    # Labels are not needed for it.
    layers = RBFLayer(9, random_state=0), RBFLayer(9, centers="random", random_state=0)
    assert np.array_equal(*(layer.fit(X).centers_ for layer in layers))


@pytest.mark.parametrize("model", [ESTIMATORS[1], ESTIMATORS[2], SVC(probability=True)], ids=repr)
def test_log_probabilities_are_there_with_probabilities(model):
    model = clone(model).fit(X, Y)
    np.testing.assert_allclose(np.exp(model.predict_log_proba(X)), model.predict_proba(X))


def test_best_params_are_those_of_the_classifier():
    search = RBFClassifierCV(20, gamma=1.0, gammas=[0.1, 0.5], random_state=0).fit(X, Y)
    assert set(search.cv_results_["param_gamma"]) == {0.1, 0.5}
    assert search.best_params_ == {"alpha": search.alpha_, "gamma": search.gamma_}
    assert all(type(value) is float for value in search.best_params_.values())
    model = RBFClassifier(20, random_state=0, **search.best_params_).fit(X, Y)
    np.testing.assert_allclose(search.decision_function(X), model.decision_function(X), atol=1e-6)


def test_set_config_holds_until_it_is_set_again(request):
    before = gpurbf.get_config()
    request.addfinalizer(lambda: gpurbf.set_config(**before))
    gpurbf.set_config(memory=64)
    with gpurbf.config_context(backend="numpy"):
        gpurbf.set_config(memory=32)
        assert gpurbf.get_config() == before | {"memory": 32, "backend": "numpy"}
    assert gpurbf.get_config() == before | {"memory": 64}
    with pytest.raises(ValueError, match=r"^memory must be 'auto' or a finite"):
        gpurbf.set_config(memory=-1, backend="mkl")
    assert gpurbf.get_config() == before | {"memory": 64}


NUMBERS = [
    (SVC(), "C gamma tol cache_size"),
    (SVC(kernel="poly"), "coef0"),
    (RBFClassifier(20, random_state=0), "gamma alpha"),
    (RBFClassifier(20, solver=CG(), random_state=0), "solver__alpha solver__tol"),
    (RBFClassifier(9, gamma=99, solver=LMS(), random_state=0), "solver__learning_rate"),
    (FSVC(2.0, random_state=0), "radius eval_radius overlap alpha"),
]


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.longdouble, np.uint8])
@pytest.mark.parametrize(("model", "names"), NUMBERS)
def test_numbers_may_be_of_any_type(model, names, dtype):
    for name in names.split():
        value = dtype(1 if dtype == np.uint8 else 0.3)
        models = (clone(model).set_params(**{name: v}) for v in (value, float(value)))
        np.testing.assert_array_equal(*(outputs(each.fit(X, Y), X) for each in models), name)


CALLS = {
    "svc, one class": lambda: SVC().fit(X, Y * 0),
    "svc, weights of one label": lambda: SVC().fit(X, Y, (Y == 1).astype(float)),
    "rbf, one class": lambda: RBFClassifier(5).fit(X, Y * 0),
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


FLAGS = "break_ties fit_intercept shrinking shuffle"
# Names of parameters, a value that they do not take, and what they must be.
MUST_BE = [
    ("C alpha cache_size eval_radius overlap radius tol", np.float64(0), "> 0"),
    ("eval_radius gamma", np.float64(-1), "> 0"),
    ("degree learning_rate verbose", -1, ">= 0"),
    ("max_centers n_centers n_epochs n_left_out", np.int64(0), ">= 1"),
    ("max_iter", -2, ">= -1"),
    ("n_centers n_epochs n_left_out", 2.5, "an integer"),
    ("n_centers", True, "an integer"),
    ("verbose", None, "an integer"),
    ("radius", None, "a number"),
    ("coef0", np.inf, "finite"),
    ("alpha", 10**400, "finite"),
    ("class_weight", "even", "None, 'balanced' or a dict, got 'even'"),
    *(("alphas", value, "a list of numbers > 0") for value in [(), 0.1, ("a",)]),
    *(("n_jobs", value, "None, a number of threads") for value in [1.5, "two", True, 0]),
    *((FLAGS, value, "True or False") for value in ["False", None, 1]),
]
UNKNOWN = {
    "n_centers": "most", "centers": "best", "kernel": "cosine", "metric": "cosine", "gamma": "big",
    "precision": "half", "backend": "torch", "radius": "best", "selection": "all", "solver": "smo",
    "outside": "random", "n_left_out": "few", "decision_function_shape": "both",
}  # fmt: skip
OTHERS = [
    (RBFClassifier(centers=np.ones((3, 5))), r"centers must have shape \(m, 4\)"),
    (RBFClassifier(centers=np.full((3, 4), np.nan)), "centers contains NaN"),
    (SVC(random_state="a"), "'a' cannot be used to seed"),
    (RBFClassifierCV(9, alphas=[0.1, 0.0]), "Each of alphas must be > 0, got 0.0"),
    (RBFClassifierCV(9, gammas=[np.nan]), "Each of gammas must be > 0, got nan"),
    (RBFClassifierCV(9, gammas=[np.inf]), "Each of gammas must be finite, got inf"),
    (RBFClassifierCV(9, gamma=1e-20, gammas=[1e-308]), "Each of gammas times gamma=1e-20 must"),
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


@parametrized
def test_a_bad_parameter_is_refused_by_name(model):
    for names, value, what in MUST_BE:
        # A wrong type is a ValueError, too, as in scikit-learn.
        of_type = what in ("a number", "an integer", "True or False")
        for name in set(names.split()) & model.get_params().keys():
            with pytest.raises(ValueError, match=rf"^{name} must be {what}((?!np\.).)*$") as caught:
                clone(model).set_params(**{name: value}).fit(X, Y)
            assert isinstance(caught.value, TypeError) == of_type
    for name in UNKNOWN.keys() & model.get_params().keys():
        with pytest.raises(ValueError, match=rf"^Unknown {name} '{UNKNOWN[name]}'.*: use .*one of"):
            clone(model).set_params(**{name: UNKNOWN[name]}).fit(X, Y)


@pytest.mark.parametrize(
    "model, message", OTHERS, ids=[f"{type(m).__name__}, {t}" for m, t in OTHERS]
)
def test_a_parameter_that_does_not_fit_the_data_or_others_is_refused(model, message):
    with pytest.raises(ValueError, match=message):
        model.fit(X + 0.1 * np.sqrt(X), Y)  # on no quantization


def test_probability_is_deprecated_as_in_scikit_learn_and_its_successor_works():
    model = CalibratedClassifierCV(SVC(), ensemble=False).fit(X, Y)
    assert model.predict_proba(X).shape == (150, 3)
    assert SVC(probability="deprecated").fit(X, Y).score(X, Y) > 0.9
    pytest.importorskip("sklearn.callback", reason="scikit-learn deprecates it from 1.9 on")
    with pytest.warns(FutureWarning, match="CalibratedClassifierCV"):
        assert SVC(probability=True).fit(X, Y).predict_proba(X).shape == (150, 3)


def test_a_frame_of_sparse_columns_is_predicted_as_it_is_fitted():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X).astype(pandas.SparseDtype("float", 0))
    frame.columns = frame.columns.astype(str)
    model = SVC().fit(frame, Y)
    assert np.array_equal(model.predict(frame), SVC().fit(X, Y).predict(X))
    assert sp.issparse(model.support_vectors_)


WEIGHTED = [RBFClassifier(9), RBFClassifier("all", solver="cg"), RBFClassifierCV(9), FSVC()]


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


@pytest.mark.parametrize("name", ["memory", "gpu_memory"])
def test_invalid_settings_are_named(name):
    no_limit = [None] * (name == "memory")  # which the memory of a GPU may have
    for value in ("a", 0, -1, np.nan, np.inf, 1e305, 10**400, True, [256], *no_limit):
        with (
            pytest.raises(ValueError, match=f"^{name} must be "),
            gpurbf.config_context(**{name: value}),
        ):
            pass
