"""fit and partial_fit change a model as a whole or not at all, wherever they break off."""

import os
import pickle
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from callers import Callback, outputs, raising_at
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from threadpoolctl import threadpool_limits

import gpurbf
from gpurbf import FSVC, SVC, RBFClassifier, RBFClassifierCV, RBFLayer

PACKAGE = str(Path(gpurbf.__file__).parent)
# Call boundaries at which a tracer raises, of each method; all of them with GPURBF_EVERY_CALL=1.
TRIED = 25
EVERY = os.environ.get("GPURBF_EVERY_CALL") == "1"

X, y = load_digits(n_class=3, return_X_y=True)
A, a, B, b = X[:120], y[:120], X[120:240], y[120:240]
HOST = {"backend": "numpy", "random_state": 0}
LMS = {"solver": "lms", "learning_rate": 0.01}
MODELS = [
    RBFClassifier(20, **HOST),
    RBFClassifier(20, solver="lms", **HOST),
    RBFClassifier("all", solver="cg", **HOST),
    RBFClassifierCV(20, **HOST),
    RBFLayer(20, **HOST),
    FSVC(**HOST),
    FSVC(20.0, selection="error", random_state=0, **LMS),
    SVC(backend="numpy"),
]
STREAMS = [
    RBFClassifier(20, **HOST),
    FSVC(20.0, **HOST),
    FSVC(20.0, selection="per-class", **LMS, **HOST),
]
# Two more than the classes of the first fit, so that nothing of it can pass for the second.
OTHER = np.append(b[:-2] + 100, [200, 201])


# What the first call of a method needs besides samples.
CLASSES = {"fit": {}, "partial_fit": {"classes": [0, 1, 2]}}


def seen(model):
    """Everything that is seen of a model: its pickle, and what it answers if it is fitted."""
    pickled = pickle.dumps(model)
    try:
        return pickled, outputs(model, B).tolist()
    except NotFittedError:
        return pickled, None


def raise_in_package(k, error, call):
    """Raise at the k-th call of the package's functions; how many there are."""
    with threadpool_limits(1):  # other threads have no tracer
        return raising_at(k, error, call, PACKAGE)


@pytest.mark.filterwarnings("ignore:.*outside the radius of every center:UserWarning")
@pytest.mark.parametrize("fitted", [True, False])
@pytest.mark.parametrize(
    ("method", "model"),
    [*(("fit", model) for model in MODELS), *(("partial_fit", model) for model in STREAMS)],
    ids=str,
)
def test_a_call_broken_off_anywhere_leaves_what_was_and_can_be_repeated(method, model, fitted):
    model, samples = clone(model), (B + 0.5, OTHER) if method == "fit" else (B, b)
    if fitted:
        getattr(model, method)(A, a, **CLASSES[method])
    pickled = pickle.dumps(pickle.loads(pickle.dumps(model)))  # strings are shared as in a copy

    def copy():
        """A copy, and the call: to look up its method, which may ask for it, is not part of it."""
        model = pickle.loads(pickled)
        return model, partial(getattr(model, method), *samples, **CLASSES[method])

    expected, call = copy()
    call()  # from here on nothing is compiled or imported
    n_calls = raise_in_package(None, None, copy()[1])
    tried = np.arange(1, n_calls + 1)
    if not EVERY:
        tried = np.sort(np.random.default_rng(0).choice(tried, min(TRIED, n_calls), replace=False))
    print(f"{n_calls} calls, raised at {tried.tolist()}")
    assert n_calls > 20
    before = seen(pickle.loads(pickled))
    assert before[0] == pickled and (before[1] is not None) == fitted
    for k in tried.tolist():
        broken, call = copy()
        error = ArithmeticError if k % 2 else KeyboardInterrupt
        with pytest.raises(error, match=f"at call {k}"):
            raise_in_package(k, error, call)
        assert seen(broken) == before
    call()
    assert np.array_equal(outputs(broken, B), outputs(expected, B))


WRONG = {"gamma": -1.0, "C": -1.0, "overlap": -1.0, "alpha": -1.0}
CHANGES = [{"precision": "exact"}, {"precision": "half"}, WRONG]


@pytest.mark.parametrize(
    ("method", "model", "change", "labels", "message"),
    [
        *(("fit", m, change, OTHER, "precision|must be") for m in MODELS for change in CHANGES),
        ("partial_fit", STREAMS[0], {"alpha": "1e-6"}, b, "alpha must be"),
        ("partial_fit", STREAMS[0], {"alpha": -1.0}, b, "alpha must be"),
        # The order of the samples decides how far they go: one in twenty does not overflow.
        ("partial_fit", FSVC(12.0, **LMS, **HOST), {"learning_rate": 1e6}, b, "06 is too high"),
        *(("partial_fit", m, {}, np.append(b[:-1], 7), "not among classes") for m in STREAMS),
    ],
    ids=lambda each: None if isinstance(each, np.ndarray) else str(each),
)
def test_a_refused_call_leaves_the_model_as_it_was_and_counts_once_when_it_is_repeated(
    method, model, change, labels, message
):
    model = getattr(clone(model), method)(A, a, **CLASSES[method])
    expected, before = getattr(pickle.loads(pickle.dumps(model)), method)(B, b), seen(model)
    parameters = model.get_params()
    known = {name: value for name, value in change.items() if name in parameters}
    with pytest.raises((TypeError, ValueError), match=message):
        getattr(model.set_params(**known), method)(B + 0.3 * np.sqrt(B), labels)
    model.set_params(**{name: parameters[name] for name in known})
    assert seen(model) == before
    getattr(model, method)(B, b)
    assert np.array_equal(outputs(model, X), outputs(expected, X))


@pytest.mark.parametrize("model", STREAMS, ids=str)
@pytest.mark.parametrize("classes", [None, [0, 1], [1], range(5, 9)], ids=str)
def test_a_refused_first_call_leaves_an_unfitted_estimator(model, classes):
    model = clone(model)
    before = seen(model)
    with pytest.raises(ValueError, match="classes"):
        model.partial_fit(A, a, classes=classes)
    assert seen(model) == before == (pickle.dumps(model), None)


def test_warnings_name_the_line_that_called_fit():
    ill = RBFClassifier(centers=A[:5].repeat(2, axis=0), alpha=1e-300, backend="numpy")
    with pytest.warns(UserWarning) as caught:
        ill.fit(A, a)
        RBFClassifier(20, random_state=0).fit(A, a).partial_fit(B, b)
        RBFLayer(500).fit(A)
        FSVC(20.0).fit(A, a).partial_fit(B, b)
        FSVC(20.0, kernel="triangular").fit(A, a).predict(X + 1000)
    words = "eigenvalues", "keeps no sums", "distinct samples", "trained anew", "outside the radius"
    for warning, part in zip(caught, words, strict=True):
        assert part in str(warning.message) and warning.filename == __file__
    assert caught[0].category is ConvergenceWarning


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_an_answer_is_of_one_model_also_if_another_fit_ends_meanwhile(model):
    fitted = clone(model).fit(A, a)
    before = outputs(fitted, B)

    class Samples:
        """Samples whose conversion to an array is when another fit ends."""

        def __array__(self, dtype=None, copy=None):
            fitted.fit(B, OTHER)
            return B

    np.testing.assert_array_equal(outputs(fitted, Samples()), before)
    assert fitted.n_features_in_ == 64 and not np.array_equal(outputs(fitted, B), before)


class Failing(Callback):
    """Raise at the end of a task, and count how often it was torn down."""

    def __init__(self):
        self.fails, self.torn_down = True, 0

    def teardown(self, estimator, context):
        self.torn_down += 1

    def on_fit_task_end(self, estimator, context):
        if self.fails:
            raise ArithmeticError("of the callback")


@pytest.mark.parametrize("model", [m for m in MODELS if hasattr(m, "set_callbacks")], ids=str)
def test_a_callback_that_raises_leaves_the_model_and_is_torn_down(model):
    fitted, failing = clone(model).fit(A, a), Failing()
    before = seen(fitted.set_callbacks(failing))
    with pytest.raises(ArithmeticError, match="of the callback"):
        fitted.fit(B, OTHER)
    assert failing.torn_down == 1
    failing.torn_down = 0
    assert seen(fitted) == before
    failing.fails = False
    fitted.fit(B, OTHER)
    assert failing.torn_down == 1 and set(fitted.classes_) == set(OTHER)
    assert not [name for name in vars(fitted) if name.startswith("_callback")]
