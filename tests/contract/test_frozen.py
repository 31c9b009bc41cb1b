"""A fitted model stays as it was fitted; backend and precision alone may change, and do at once."""

import pickle

import numpy as np
import pytest
from callers import outputs
from sklearn.base import clone
from sklearn.datasets import load_digits

from gpurbf import FSVC, RBFClassifier, RBFLayer, config_context

pytestmark = pytest.mark.filterwarnings("ignore:.*outside the radius of every center:UserWarning")

X, y = load_digits(n_class=4, return_X_y=True)
X, REAL = X / 16, X + 0.1 * np.sqrt(X)
MODELS = [
    RBFClassifier(40, random_state=0),
    RBFLayer(40, random_state=0),
    FSVC(2.0, solver="one-hot", random_state=0),
    FSVC.sfsvc(4.0),
]


def copies(model):
    """The model as it is, after it has answered, and after a pickle."""
    used = clone(model).fit(X, y)
    outputs(used, X)
    return clone(model).fit(X, y), used, pickle.loads(pickle.dumps(used))


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_the_kernel_is_that_of_the_fit_whatever_is_set_later(model):
    later = {"kernel": "triangular", "metric": "manhattan", "gamma": 3.0, "n_centers": 7}
    later |= {"radius": 0.1, "eval_radius": 9.0, "overlap": 3.0, "solver": "ridge", "alpha": 1.0}
    expected = outputs(clone(model).fit(X, y), X + 5)
    for copy in copies(model):
        copy.set_params(**{k: v for k, v in later.items() if k in copy.get_params()})
        assert np.array_equal(outputs(copy, X + 5), expected)
        assert np.array_equal(outputs(pickle.loads(pickle.dumps(copy)), X + 5), expected)


@pytest.mark.parametrize("how", ["parameter", "context", "environment"])
@pytest.mark.parametrize("model", MODELS, ids=str)
def test_a_change_of_backend_takes_effect_at_once_and_can_be_undone(model, how, monkeypatch):
    model = clone(model).set_params(backend="numpy" if how == "parameter" else "auto")
    for copy in copies(model):
        before, name = outputs(copy, X), copy._layer().backend.name
        other = "numba" if name == "numpy" else "numpy"
        context = {"backend": other} if how == "context" else {}
        with monkeypatch.context() as patch, config_context(**context):
            if how == "parameter":
                patch.setattr(copy, "backend", other)
            if how == "environment":
                patch.setenv("GPURBF_BACKEND", other)
            assert copy._layer().backend.name == other
            outputs(copy, X)
        assert copy._layer().backend.name == name
        assert np.array_equal(outputs(copy, X), before)


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_a_change_of_precision_takes_effect_at_once(model):
    for copy in copies(model):
        copy.set_params(precision="float32")
        assert copy._layer().dtype == np.float32
        copy.set_params(precision="exact")
        with pytest.raises(ValueError, match="precision='exact' needs"):
            outputs(copy, REAL)


def test_partial_fit_keeps_the_kernel_and_radius_of_its_first_call():
    parts = [(X[:300], y[:300]), (X[300:], y[300:])]
    model, expected = FSVC(2.0, random_state=0), FSVC(2.0, random_state=0)
    for part in parts:
        model.partial_fit(*part, classes=range(4)).set_params(kernel="triangular", radius=9.0)
        expected.partial_fit(*part, classes=range(4))
    assert np.array_equal(outputs(model, X), outputs(expected, X))


# What comes first and what later: on another quantization, on none, on one only later.
STREAMS = {
    "below 0": (np.arange(0, 30), np.arange(-30, 30)),
    "finer": (np.arange(0, 2), np.arange(0, 256) / 255),
    "sixteenths": (np.arange(0, 9), np.arange(0, 60) / 16),
    "real later": (np.arange(0, 9), np.sqrt(np.arange(0, 99))),
    "real first": (np.sqrt(np.arange(0, 99)), np.arange(0, 9)),
    "wider": (np.arange(0, 9), np.arange(0, 600)),
}


@pytest.mark.parametrize("pickled", [False, True], ids=["", "pickled"])
@pytest.mark.parametrize("stream", STREAMS)
def test_a_stream_is_quantized_as_all_its_batches_together(stream, pickled):
    rng = np.random.default_rng(0)
    batches = [rng.choice(values, (60, 5)) for values in STREAMS[stream]]
    labels = [rng.integers(0, 3, 60) for _ in batches]
    model = FSVC(2.0, selection="pass", eval_radius=None, solver="one-hot")
    whole = clone(model).partial_fit(np.concatenate(batches), np.concatenate(labels), range(3))
    for some, their in zip(batches, labels, strict=True):
        model.partial_fit(some, their, range(3))
        if pickled:
            model = pickle.loads(pickle.dumps(model))
    assert np.array_equal(model.center_indices_, whole.center_indices_)
    assert model.backend_info_ == whole.backend_info_
    assert np.array_equal(outputs(model, batches[1]), outputs(whole, batches[1]))
