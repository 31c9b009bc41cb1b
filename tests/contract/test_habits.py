"""What users of scikit-learn reach for is there, in every estimator and under the usual name."""

import inspect
import re
import typing

import numpy as np
import pytest
from callers import ESTIMATORS, outputs
from sklearn.base import clone
from sklearn.datasets import load_iris

import gpurbf
from gpurbf import (
    FSVC,
    SVC,
    BackendUnavailable,
    RBFClassifier,
    RBFClassifierCV,
    RBFLayer,
    config_context,
)
from gpurbf.solvers import CG, LMS

X, Y = load_iris(return_X_y=True)
parametrized = pytest.mark.parametrize("model", ESTIMATORS, ids=lambda m: type(m).__name__)
pytestmark = pytest.mark.filterwarnings("ignore:(The|Attribute) `prob:FutureWarning")


@parametrized
def test_every_fitted_attribute_and_parameter_is_described(model):
    fitted = [clone(model).fit(X, Y)]
    if isinstance(model, SVC):
        fitted.append(SVC(kernel="linear", probability=True).fit(X, Y))
    if isinstance(model, RBFClassifier):
        fitted.append(RBFClassifier("all", solver="cg").fit(X, Y))
    names = {name for each in fitted for name in dir(each) if re.fullmatch(r"[a-zA-Z]\w*_", name)}
    text = inspect.getdoc(type(model))
    parameters, attributes = text.split("Parameters\n")[1].split("Attributes\n")
    described = set(re.findall(r"\w+_(?=[, ].*:|\b *:)", attributes))
    assert "classes_" in names or isinstance(model, RBFLayer)
    assert names - {"feature_names_in_"} <= described
    assert all(
        re.search(rf"^(\w+, )*{name}( :|,)", parameters, re.M) for name in model.get_params()
    )


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
            data = X
            if value == "precomputed":
                data = X @ X.T
            elif name == "precision":
                data = np.round(X)
            try:
                outputs(clone(model).set_params(**{name: value}).fit(data, Y), data)
            except BackendUnavailable:
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


def test_the_layer_has_the_defaults_of_the_classifier():
    layer, classifier = RBFLayer().get_params(), RBFClassifier().get_params()
    assert layer.items() <= classifier.items()
    # Labels are not needed for it.
    centers = [
        RBFLayer(9, random_state=0, **own).fit(X).centers_ for own in ({}, {"centers": "random"})
    ]
    assert np.array_equal(*centers)


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


def test_set_config_holds_until_it_is_set_again():
    before = gpurbf.get_config()
    try:
        gpurbf.set_config(memory=64)
        with gpurbf.config_context(backend="numpy"):
            gpurbf.set_config(memory=32)
            assert gpurbf.get_config() == before | {"memory": 32, "backend": "numpy"}
        assert gpurbf.get_config() == before | {"memory": 64}
        with pytest.raises(ValueError, match=r"^memory must be"):
            gpurbf.set_config(memory=-1, backend="mkl")
        assert gpurbf.get_config() == before | {"memory": 64}
    finally:
        gpurbf.set_config(**before)
    assert gpurbf.get_config() == before


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
        found, plain = (
            clone(model).set_params(**{name: v}).fit(X, Y) for v in (value, float(value))
        )
        np.testing.assert_array_equal(*(outputs(each, X) for each in (found, plain)), name)


def test_memory_may_be_a_number_of_numpy_s():
    expected = RBFLayer(20, random_state=0).fit_transform(X)
    for megabytes in (np.int32(4096), np.uint8(200)):
        with config_context(memory=megabytes):
            np.testing.assert_array_equal(RBFLayer(20, random_state=0).fit_transform(X), expected)
