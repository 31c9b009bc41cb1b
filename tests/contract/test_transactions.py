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


class State:
    """Everything that is seen of a model: its pickle, and what it answers."""

    def __init__(self, model):
        self.model = model
        self.pickled, self.outputs = pickle.dumps(model), outputs(model, B)

    def assert_unchanged(self):
        assert pickle.dumps(self.model) == self.pickled
        assert np.array_equal(outputs(self.model, B), self.outputs)


@pytest.mark.parametrize("model", MODELS, ids=str)
@pytest.mark.parametrize(
    "change",
    [
        {"precision": "exact"},
        {"precision": "half"},
        {"gamma": -1.0, "C": -1.0, "overlap": -1.0, "alpha": -1.0},
    ],
    ids=str,
)
def test_a_refused_refit_leaves_the_model_as_it_was(model, change):
    model = clone(model).fit(A, a)
    known = {name: value for name, value in change.items() if name in model.get_params()}
    before = {name: model.get_params()[name] for name in known}
    state = State(model)
    with pytest.raises(ValueError):
        model.set_params(**known).fit(B + 0.3 * np.sqrt(B), OTHER)
    model.set_params(**before)
    state.assert_unchanged()


def raise_in_package(k, error, call):
    """Raise at the k-th call of the package's functions; how many there are."""
    with threadpool_limits(1):  # other threads have no tracer
        return raising_at(k, error, call, PACKAGE)


def check_every_boundary(model, call):
    """Broken off anywhere the call leaves the model as it was; repeated, it does what it does.

    ``call(model)`` is the call to be made: to look up its method, which may ask whether the model
    has it, is not part of it.
    """
    fitted = hasattr(model, "n_features_in_")
    pickled = pickle.dumps(pickle.loads(pickle.dumps(model)))  # strings are shared as in a copy
    expected = pickle.loads(pickled)
    call(expected)()  # from here on nothing is compiled or imported
    fresh = pickle.loads(pickled)
    n_calls = raise_in_package(None, None, call(fresh))
    tried = np.arange(1, n_calls + 1)
    if not EVERY:
        tried = np.sort(np.random.default_rng(0).choice(tried, min(TRIED, n_calls), replace=False))
    print(f"{n_calls} calls, raised at {tried.tolist()}")
    assert n_calls > 20
    answers = outputs(model, B) if fitted else None
    for k in tried.tolist():
        broken = pickle.loads(pickled)
        error = ArithmeticError if k % 2 else KeyboardInterrupt
        with pytest.raises(error, match=f"at call {k}"):
            raise_in_package(k, error, call(broken))
        assert pickle.dumps(broken) == pickled
        if fitted:
            assert np.array_equal(outputs(broken, B), answers)
        else:
            with pytest.raises(NotFittedError):
                outputs(broken, B)
    call(broken)()
    assert np.array_equal(outputs(broken, B), outputs(expected, B))


@pytest.mark.filterwarnings("ignore:.*outside the radius of every center:UserWarning")
@pytest.mark.parametrize("fitted", [True, False])
@pytest.mark.parametrize(
    ("method", "model"),
    [*(("fit", model) for model in MODELS), *(("partial_fit", model) for model in STREAMS)],
    ids=str,
)
def test_a_call_broken_off_anywhere_leaves_what_was(method, model, fitted):
    model = clone(model)
    classes = {} if method == "fit" else {"classes": [0, 1, 2]}
    if fitted:
        getattr(model, method)(A, a, **classes)
    samples = (B + 0.5, OTHER) if method == "fit" else (B, b)
    check_every_boundary(model, lambda model: partial(getattr(model, method), *samples, **classes))


@pytest.mark.parametrize(
    ("model", "change", "labels", "message"),
    [
        (STREAMS[0], {"alpha": "1e-6"}, b, "alpha must be"),
        (STREAMS[0], {"alpha": -1.0}, b, "alpha must be"),
        # The order of the samples decides how far they go: one in twenty does not overflow.
        (FSVC(12.0, **LMS, **HOST), {"learning_rate": 1e6}, b, r"=1e\+06 is too high"),
        *((model, {}, np.append(b[:-1], 7), "not among classes") for model in STREAMS),
    ],
    ids=str,
)
def test_a_batch_that_was_refused_counts_once_when_it_is_repeated(model, change, labels, message):
    model = clone(model).partial_fit(A, a, classes=[0, 1, 2])
    expected, before = pickle.loads(pickle.dumps(model)).partial_fit(B, b), model.get_params()
    state = State(model)
    with pytest.raises((TypeError, ValueError), match=message):
        model.set_params(**change).partial_fit(B, labels)
    model.set_params(**{name: before[name] for name in change})
    state.assert_unchanged()
    model.partial_fit(B, b)
    assert np.array_equal(model.decision_function(X), expected.decision_function(X))


@pytest.mark.parametrize("model", STREAMS, ids=str)
@pytest.mark.parametrize("classes", [None, [0, 1], [1], range(5, 9)], ids=str)
def test_a_refused_first_call_leaves_an_unfitted_estimator(model, classes):
    model = clone(model)
    state = pickle.dumps(model)
    with pytest.raises(ValueError, match="classes"):
        model.partial_fit(A, a, classes=classes)
    assert pickle.dumps(model) == state
    with pytest.raises(NotFittedError):
        model.predict(A)


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
        self.fails, self.torn_down = False, 0

    def teardown(self, estimator, context):
        self.torn_down += 1

    def on_fit_task_end(self, estimator, context):
        if self.fails:
            raise ArithmeticError("of the callback")


@pytest.mark.parametrize("model", [m for m in MODELS if hasattr(m, "set_callbacks")], ids=str)
def test_a_callback_that_raises_leaves_the_model_and_is_torn_down(model):
    failing = Failing()
    fitted = clone(model).fit(A, a).set_callbacks(failing)
    state = State(fitted)
    failing.fails = True
    with pytest.raises(ArithmeticError, match="of the callback"):
        fitted.fit(B, OTHER)
    assert failing.torn_down == 1
    failing.fails, failing.torn_down = False, 0
    state.assert_unchanged()
    fitted.fit(B, OTHER)
    assert failing.torn_down == 1 and set(fitted.classes_) == set(OTHER)
    assert not [name for name in vars(fitted) if name.startswith("_callback")]
