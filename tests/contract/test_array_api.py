"""Everything follows X: arrays of any library in, answers in the same out."""

import elsewhere
import numpy as np
import pytest
import sklearn
from callers import ESTIMATORS, answers
from sklearn.base import clone
from sklearn.datasets import load_digits

MODELS = {type(model).__name__: model for model in ESTIMATORS}
X, Y = (part[:200] for part in load_digits(return_X_y=True))
WEIGHTS = np.linspace(0.5, 2, 200)


def dispatching(monkeypatch, on):
    monkeypatch.setenv("SCIPY_ARRAY_API", "1")
    return sklearn.config_context(array_api_dispatch=on)


@pytest.mark.parametrize("library", ["elsewhere", "array_api_strict", "torch"])
@pytest.mark.parametrize("name", MODELS)
def test_under_dispatch_and_no_other_answers_are_arrays_of_the_library_of_X(
    monkeypatch, name, library
):
    xp = pytest.importorskip(library, reason=f"{library} is not installed")
    here, there = (clone(MODELS[name]).set_params(backend="numpy") for _ in range(2))
    here.fit(X, Y, WEIGHTS)
    with dispatching(monkeypatch, True):
        there.fit(*map(xp.asarray, (X, Y, WEIGHTS)))
        for method, expected in answers(here, X).items():
            found = getattr(there, method)(xp.asarray(X))
            assert type(found) is type(xp.asarray(X)), method
            assert found.device == xp.asarray(X).device
            np.testing.assert_array_equal(np.asarray(found), expected)
            # The model is NumPy's, so NumPy's samples are answered as such.
            assert isinstance(getattr(there, method)(X), np.ndarray)
        if hasattr(here, "score"):
            given = map(xp.asarray, (X, Y, WEIGHTS))
            assert there.score(*given) == here.score(X, Y, WEIGHTS)
    with dispatching(monkeypatch, False):
        others = elsewhere.asarray(X), elsewhere.asarray(Y)
        unfollowed = answers(here.fit(*others), others[0])
        assert {type(answer) for answer in unfollowed.values()} == {np.ndarray}
    for key, value in vars(there).items():
        assert type(value).__module__.split(".")[0] != library, key


def test_string_labels_are_numpy_arrays_and_numbers_follow_X(monkeypatch):
    words = np.array(["even", "odd"])[Y % 2]
    with dispatching(monkeypatch, True):
        for name in ("RBFClassifier", "FSVC", "SVC"):
            model = clone(MODELS[name]).fit(elsewhere.asarray(X), words)
            assert set(model.predict(elsewhere.asarray(X))) == {"even", "odd"}
            model = clone(MODELS[name]).fit(X, Y)  # both NumPy's
            assert isinstance(model.predict(elsewhere.asarray(X)), elsewhere.Array)


@pytest.mark.filterwarnings("ignore:.*outside the radius:UserWarning")
@pytest.mark.parametrize("name", MODELS)
def test_another_library_s_arrays_on_the_gpu_are_used_in_place(cupy, name):
    """Whatever dispatch says: NumPy could not take them.

    A few numbers are copied to the host, however many samples there are, but for outputs of SVC.
    """
    codes = X.astype(np.uint8)
    there, y = (elsewhere.from_dlpack(cupy.asarray(part)) for part in (codes, Y))
    here, model = (clone(MODELS[name]).set_params(backend="cupy") for _ in range(2))
    here.fit(codes, Y)
    model.fit(there, y)
    for method, expected in answers(here, codes).items():
        before = cupy.gpu.bytes("out")
        found = getattr(model, method)(there)
        copied = cupy.gpu.bytes("out") - before
        assert isinstance(found, elsewhere.OnGpu), method
        assert copied <= 16 or (name, method) == ("SVC", "decision_function"), method
        np.testing.assert_array_equal(found.there.get(), expected)
    if hasattr(here, "score"):
        assert model.score(there, y) == here.score(codes, Y)
        assert model.score(there.there, y.there) == here.score(codes, Y)  # CuPy's
