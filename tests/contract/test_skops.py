"""skops keeps fitted models without pickle, and asks about no type of ours but the estimator."""

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from gpurbf import FSVC, SVC, RBFClassifier, RBFClassifierCV, RBFLayer

skops = pytest.importorskip("skops.io")

X, Y = load_digits(return_X_y=True)


@pytest.mark.parametrize(
    "model",
    [
        SVC(),
        RBFClassifier(50, random_state=0),
        RBFClassifierCV(50, random_state=0),
        RBFLayer(50, random_state=0),
        FSVC(20.0, random_state=0),
        FSVC.sfsvc(500.0),
        FSVC(20.0, selection="error", eval_radius="auto", random_state=0),
    ],
    ids=str,
)
@pytest.mark.parametrize("scaled", [False, True], ids=["", "scaled"])
def test_models_come_back_the_same(model, scaled):
    name = f"{type(model).__module__}.{type(model).__name__}"
    model = make_pipeline(*[StandardScaler()] * scaled, model).fit(X[:500], Y[:500])
    content = skops.dumps(model)
    unknown = set(skops.get_untrusted_types(data=content))
    assert unknown == {name}
    again = skops.loads(content, trusted=sorted(unknown))
    method = "predict" if hasattr(model, "predict") else "transform"
    assert np.array_equal(getattr(again, method)(X), getattr(model, method)(X))


@pytest.mark.parametrize(
    "model", [RBFClassifier(300, random_state=0), FSVC(20.0, backend="numpy")], ids=str
)
def test_a_stream_goes_on_where_it_was_kept(model):
    model.partial_fit(X[:400], Y[:400], classes=range(10))
    assert not [name for name in vars(model) if "callback" in name]
    content = skops.dumps(model)
    unknown = skops.get_untrusted_types(data=content)
    assert unknown == [f"{type(model).__module__}.{type(model).__name__}"]
    again = skops.loads(content, trusted=unknown)
    for one in (model, again):
        one.partial_fit(X[400:700], Y[400:700])
    assert np.array_equal(again.decision_function(X), model.decision_function(X))
