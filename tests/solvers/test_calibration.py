"""What predict_proba is calibrated on: samples left out with all their weight, of all batches."""

import pickle

import numpy as np
import pytest
from sklearn.datasets import make_classification

from gpurbf import RBFClassifier, RBFClassifierCV

X, y = make_classification(1500, 20, n_informative=10, flip_y=0.2, random_state=0)
RNG = np.random.default_rng(0)
HEAVY = RNG.exponential(50, len(X))
FEW = {"centers": X[:300], "gamma": 0.02}
# As many centers as samples: what a sample leaves behind of itself is then all that there is.
MODELS = [
    RBFClassifier("all", solver="ridge", random_state=0),
    RBFClassifierCV("all", alphas=[1e-6], random_state=0),
]


def temperature(model, X, y, weights=None):
    return model.fit(X, y, weights).temperature_


def stream(cuts, weights=None, **options):
    """A model of the batches between these cuts."""
    model = RBFClassifier(**FEW, **options)
    for rows in np.split(np.arange(len(X)), cuts):
        own = None if weights is None else weights[rows]
        model.partial_fit(X[rows], y[rows], classes=[0, 1], sample_weight=own)
    return model


@pytest.mark.parametrize("model", MODELS, ids=str)
@pytest.mark.parametrize("weights", [np.ones(400), HEAVY[:400]], ids=["equal", "heavy"])
def test_the_scale_of_weights_is_nothing(model, weights):
    found = [temperature(model, X[:400], y[:400], c * weights) for c in (1e-3, 1, 10, 100)]
    np.testing.assert_allclose(found, found[1], rtol=0.05)


@pytest.mark.parametrize("model", [*MODELS, RBFClassifier(solver="cg", **FEW)], ids=str)
def test_copies_are_left_out_together(model):
    """More rows than are left out, so that not all copies are among them."""
    once = temperature(model, X[:400], y[:400])
    found = temperature(model, np.repeat(X[:400], 7, axis=0), np.repeat(y[:400], 7))
    assert found == pytest.approx(once, rel=0.05)
    assert found == pytest.approx(temperature(model, X[:400], y[:400], np.full(400, 7.0)), rel=0.05)


@pytest.mark.parametrize("model", MODELS, ids=str)
def test_samples_are_left_out_as_their_weights_rounded_them(model):
    doubles = type(model)(**model.get_params()).set_params(precision="float64")
    expected = temperature(doubles, X[:600], y[:600], HEAVY[:600])
    assert temperature(model, X[:600], y[:600], HEAVY[:600]) == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("alpha", [1e-6, 1e-10])
def test_equal_centers_are_left_out_together(alpha):
    """A sample in two classes is two centers; the inverse has no digits of one beside the other."""
    A, a = np.concatenate([X[:200], X[:2]]), np.concatenate([y[:200], 1 - y[:2]])
    for model in (RBFClassifier("all", solver="ridge"), RBFClassifierCV("all", alphas=[alpha])):
        model.set_params(**{"alpha": alpha} if "alpha" in model.get_params() else {})
        model.set_params(random_state=0, gamma=0.02).fit(A, a)
        assert 0.1 < model.temperature_ < 10


@pytest.mark.parametrize("cuts", [None, [100, 250]], ids=["fit", "stream"])
def test_copies_of_other_weights_are_left_out_together(cuts):
    """On the grid each is rounded by its weight; there are more centers than samples."""
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 20, 400)
    A, a, w = X[rows], y[rows], rng.exponential(1.0, 400)
    options = {"centers": np.repeat(X[:30], 10, axis=0), "gamma": 0.05}
    found = []
    for precision in ("auto", "float64"):
        model = RBFClassifier(precision=precision, **options)
        for part in np.split(np.arange(400), cuts or []):
            model.partial_fit(A[part], a[part], [0, 1], w[part])
        found.append(model.temperature_ if cuts else model.fit(A, a, w).temperature_)
    # What rounding adds to the penalty is felt; at the bound, 54.6, it would be garbage.
    assert found[0] == pytest.approx(found[1], rel=0.5)
    path = RBFClassifierCV(alphas=[1e-6], **options).fit(A, a, w)
    assert path.temperature_ == pytest.approx(found[1], rel=0.5)


@pytest.mark.parametrize("precision", ["auto", "float64"])
@pytest.mark.parametrize("weights", [None, HEAVY], ids=["plain", "weighted"])
@pytest.mark.parametrize("cuts", [[700, 1499], [700, 1497], [3, 4, 1200], range(100, 1500, 100)])
def test_batches_give_the_model_and_the_calibration_of_one_fit(cuts, weights, precision):
    whole = RBFClassifier(**FEW, precision=precision).fit(X, y, weights)
    parts = stream(cuts, weights, precision=precision)
    assert parts.temperature_ == pytest.approx(whole.temperature_, rel=2e-3)
    np.testing.assert_allclose(parts.decision_function(X), whole.decision_function(X), atol=1e-8)


def test_a_stream_is_calibrated_by_its_samples_in_any_order_and_number():
    once, often = RBFClassifier(**FEW), RBFClassifier(**FEW)
    once.partial_fit(X, y, classes=[0, 1])
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(X))
        for rows in np.split(order, [1, 10, 900]):
            often.partial_fit(X[rows], y[rows], classes=[0, 1])
    assert often.temperature_ == pytest.approx(once.temperature_, rel=1e-3)


def test_a_stream_goes_on_after_a_pickle_and_keeps_no_more_than_it_says():
    model = stream([700, 1400])
    other = pickle.loads(pickle.dumps(stream([700])))
    assert len(model._left_out.centers) == len(other._left_out.centers) == 800
    more = X[:9] + 1
    model.partial_fit(more, y[:9]), other.partial_fit(more, y[:9])
    assert model.temperature_ == pytest.approx(other.temperature_, rel=2e-3)
    # One from before samples were kept begins with those that come.
    state = other.__getstate__()
    del state["_left_out"]
    old = RBFClassifier.__new__(RBFClassifier)
    old.__setstate__(state)
    assert np.isfinite(old.partial_fit(X, y).temperature_)
    assert not hasattr(model.fit(X, y), "_left_out")


def test_samples_of_no_weight_calibrate_nothing():
    parts = stream([1000], class_weight={0: 1.0, 1: 2.0})
    before = parts.temperature_
    nothing = parts.set_params(class_weight={0: 0.0, 1: 1.0}).partial_fit(X[y == 0] + 1, y[y == 0])
    assert nothing.temperature_ == pytest.approx(before, rel=1e-6)
