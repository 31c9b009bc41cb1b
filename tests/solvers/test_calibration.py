"""What predict_proba is calibrated on: samples left out with all their weight, of all batches."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import make_classification

from gpurbf import RBFClassifier, RBFClassifierCV
from gpurbf.solvers import CG
from gpurbf.solvers.calibration import fit_temperature

X, y = make_classification(1500, 20, n_informative=10, flip_y=0.2, random_state=0)
RNG = np.random.default_rng(0)
HEAVY = RNG.exponential(50, len(X))
FEW = {"centers": X[:300], "gamma": 0.02}
# As many centers as samples: what a sample leaves behind of itself is then all that there is.
MODELS = [
    RBFClassifier("all", solver="ridge", random_state=0),
    RBFClassifierCV("all", alphas=[1e-6], random_state=0),
]
# With and without landmarks.
SOLVERS = [CG(1e-2, preconditioner=n, tol=1e-4, max_iter=500) for n in (None, 100)]
SLOW = [
    pytest.param(RBFClassifier(m, solver=solver, random_state=0), marks=pytest.mark.slow)
    for m in (300, "all")
    for solver in SOLVERS
]


def temperature(model, X, y, weights=None):
    return model.fit(X, y, weights).temperature_


def stream(model, X, y, cuts, weights=None):
    """The model of the batches between these cuts."""
    for rows in np.split(np.arange(len(X)), cuts):
        own = None if weights is None else weights[rows]
        model.partial_fit(X[rows], y[rows], classes=[0, 1], sample_weight=own)
    return model


@pytest.mark.parametrize("model", [*MODELS, *SLOW], ids=str)
@pytest.mark.parametrize("weights", [np.ones(400), HEAVY[:400]], ids=["equal", "heavy"])
def test_the_scale_of_weights_is_nothing(model, weights):
    found = []
    for scale in (1, 1 / weights.sum(), 1e-3, 100, 1e4):
        model.fit(X[:400], y[:400], scale * weights)
        assert model in MODELS or "H kept in 16 bits" in model.solver_info_
        found.append([model.decision_function(X), model.predict_proba(X)[:, 1]])
        np.testing.assert_allclose(found[-1], found[0], atol=5e-3)


@pytest.mark.parametrize("model", [*MODELS, RBFClassifier(solver="cg", **FEW)], ids=str)
def test_copies_are_left_out_together(model):
    """More rows than are left out, so that not all copies are among them."""
    once = temperature(model, X[:400], y[:400])
    copies = np.repeat(X[:400], 7, axis=0), np.repeat(y[:400], 7)
    found = temperature(model, *copies)
    assert found == pytest.approx(once, rel=0.05)
    unequal = np.tile([0.5, 2, 1, 1.5, 0.25, 0.75, 1], 400)  # of a sample 7 in all
    assert temperature(model, *copies, unequal) == pytest.approx(once, rel=0.05)
    assert found == pytest.approx(temperature(model, X[:400], y[:400], np.full(400, 7.0)), rel=0.05)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", ["ridge", "stream", "cg", "path"])
def test_a_sample_is_left_out_of_all_its_classes(name, weighted):
    """Of features with few values, samples are in several classes: the others would answer."""
    rng = np.random.default_rng(0)
    A = rng.integers(0, 2, (600, 6)).astype(float)
    a = (A.sum(axis=1) + 1.5 * rng.standard_normal(600) > 3).astype(int)
    w = 0.3 + a + rng.integers(0, 2, 600) if weighted else np.ones(600)
    model = RBFClassifierCV(alphas=[1e-4]) if name == "path" else RBFClassifier(alpha=1e-4)
    if name == "cg":
        model.set_params(solver=CG(1e-4, tol=1e-6, max_iter=1000))
    centers = rng.uniform(0, 1, (30 if name == "cg" else 300, 6))
    model.set_params(centers=centers, gamma=0.5)
    scores = np.empty(600)
    for same in {tuple(row): (A == row).all(axis=1) for row in A}.values():
        scores[same] = model.fit(A[~same], a[~same], w[~same]).decision_function(A[same])
    expected = fit_temperature(scores[:, None], a, w)
    model = clone(model)
    found = stream(model, A, a, [100, 400], w) if name == "stream" else model.fit(A, a, w)
    assert found.temperature_ == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("alpha", [1e-6, 1e-10])
def test_equal_centers_are_left_out_together(alpha):
    """A sample in two classes is two centers; the inverse has no digits of one beside the other."""
    A, a = np.concatenate([X[:200], X[:2]]), np.concatenate([y[:200], 1 - y[:2]])
    options = {"n_centers": "all", "random_state": 0, "gamma": 0.02}
    ridge = RBFClassifier(solver="ridge", alpha=alpha, **options)
    for model in (ridge, RBFClassifierCV(alphas=[alpha], **options)):
        assert 0.1 < temperature(model, A, a) < 10


@pytest.mark.parametrize("precision", ["auto", "float64"])
@pytest.mark.parametrize("weights", [None, HEAVY], ids=["plain", "weighted"])
@pytest.mark.parametrize("cuts", [[700, 1499], [700, 1497], [3, 4, 1200], range(100, 1500, 100)])
def test_batches_give_the_model_and_the_calibration_of_one_fit(cuts, weights, precision):
    whole = RBFClassifier(**FEW, precision=precision)
    parts = stream(clone(whole), X, y, cuts, weights)
    whole.fit(X, y, weights)
    assert parts.temperature_ == pytest.approx(whole.temperature_, rel=2e-3)
    np.testing.assert_allclose(parts.decision_function(X), whole.decision_function(X), atol=1e-8)


def test_a_stream_is_calibrated_by_its_samples_in_any_order_and_number():
    once, often = stream(RBFClassifier(**FEW), X, y, []), RBFClassifier(**FEW)
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(X))
        stream(often, X[order], y[order], [1, 10, 900])
    assert often.temperature_ == pytest.approx(once.temperature_, rel=1e-3)


def test_a_stream_goes_on_after_a_pickle_and_keeps_no_more_than_it_says():
    model = stream(RBFClassifier(**FEW), X, y, [700, 1400])
    other = pickle.loads(pickle.dumps(stream(RBFClassifier(**FEW), X, y, [700])))
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
    parts = stream(RBFClassifier(**FEW, class_weight={0: 1.0, 1: 2.0}), X, y, [1000])
    before = parts.temperature_
    nothing = parts.set_params(class_weight={0: 0.0, 1: 1.0}).partial_fit(X[y == 0] + 1, y[y == 0])
    assert nothing.temperature_ == pytest.approx(before, rel=1e-6)
