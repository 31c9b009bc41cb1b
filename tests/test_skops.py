"""skops keeps fitted models without pickle, and has few types of ours to be asked about."""

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from gpurbf import SVC, RBFClassifier, RBFClassifierCV, RBFLayer

skops = pytest.importorskip("skops.io")

X, Y = load_digits(return_X_y=True)
PLAIN = {"gpurbf.backends.Activation", "gpurbf.backends.Lattice"}  # tuples of numbers and names


@pytest.mark.parametrize(
    "model",
    [
        SVC(),
        RBFClassifier(50, random_state=0),
        RBFClassifierCV(50, random_state=0),
        RBFLayer(50, random_state=0),
    ],
    ids=lambda model: type(model).__name__,
)
@pytest.mark.parametrize("scaled", [False, True], ids=["", "scaled"])
def test_models_come_back_the_same(model, scaled):
    name = f"{type(model).__module__}.{type(model).__name__}"
    model = make_pipeline(*[StandardScaler()] * scaled, model).fit(X[:500], Y[:500])
    content = skops.dumps(model)
    unknown = set(skops.get_untrusted_types(data=content))
    assert name in unknown and unknown <= {name} | PLAIN
    again = skops.loads(content, trusted=sorted(unknown))
    method = "predict" if hasattr(model, "predict") else "transform"
    assert np.array_equal(getattr(again, method)(X), getattr(model, method)(X))
