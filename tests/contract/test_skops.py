"""skops keeps fitted models without pickle, and asks about no type of ours but the estimator."""

import numpy as np
import pytest
from callers import ESTIMATORS, outputs
from sklearn.datasets import load_digits
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from gpurbf import FSVC, RBFClassifier

skops = pytest.importorskip("skops.io")

X, Y = load_digits(return_X_y=True)


def kept(model, estimator):
    """The model after skops has kept it, which asks about the class of the estimator alone."""
    content = skops.dumps(model)
    unknown = skops.get_untrusted_types(data=content)
    assert unknown == [f"{type(estimator).__module__}.{type(estimator).__name__}"]
    return skops.loads(content, trusted=unknown)


MODELS = [*ESTIMATORS, FSVC(20.0, random_state=0), FSVC.sfsvc(500.0)]


@pytest.mark.parametrize("model", MODELS, ids=str)
@pytest.mark.parametrize("scaled", [False, True], ids=["", "scaled"])
def test_models_come_back_the_same(model, scaled):
    whole = make_pipeline(*[StandardScaler()] * scaled, model).fit(X[:500], Y[:500])
    assert np.array_equal(outputs(kept(whole, model), X), outputs(whole, X))


@pytest.mark.parametrize(
    "model", [RBFClassifier(300, random_state=0), FSVC(20.0, backend="numpy")], ids=str
)
def test_a_stream_goes_on_where_it_was_kept(model):
    model.partial_fit(X[:400], Y[:400], classes=range(10))
    assert not [name for name in vars(model) if "callback" in name]
    again = kept(model, model)
    for one in (model, again):
        one.partial_fit(X[400:700], Y[400:700])
    assert np.array_equal(again.decision_function(X), model.decision_function(X))
