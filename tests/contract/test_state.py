"""Models of older releases load and say what they said; another version is warned of."""

import copy
import inspect
import pickle
import runpy
from pathlib import Path

import numpy as np
import pytest

import gpurbf
from gpurbf import SVC

FOLDER = Path(__file__).parents[1] / "fixtures"
RELEASES = sorted(FOLDER.glob("*.pickle"))
MAKE = runpy.run_path(str(FOLDER / "make.py"), run_name="make")


def test_this_release_has_a_fixture():
    assert f"{gpurbf.__version__}.pickle" in {path.name for path in RELEASES}


@pytest.mark.filterwarnings("ignore:This .* was written by gpurbf:UserWarning")
@pytest.mark.parametrize("path", RELEASES, ids=lambda path: path.stem)
def test_models_of_old_releases_give_the_answers_they_gave(path, backend):
    for name, (content, X, outputs, labels) in pickle.loads(path.read_bytes()).items():
        model = pickle.loads(content).set_params(backend=backend)
        if model.get_params().get("metric") == "manhattan" and backend == "cupy":
            continue
        found, said = MAKE["answers"](model, X)
        np.testing.assert_allclose(found, outputs, rtol=1e-4, atol=1e-4, err_msg=name)
        np.testing.assert_array_equal(said, labels, err_msg=name)


@pytest.mark.parametrize("version", ["0.0.9", None])
def test_another_version_is_warned_of(version):
    model = SVC().fit(MAKE["X"], MAKE["y"])
    state = model.__getstate__() | {"_gpurbf_version": version}
    if version is None:
        del state["_gpurbf_version"]
    with pytest.warns(UserWarning, match=f"SVC was written by gpurbf {version or 'before'}"):
        other = SVC.__new__(SVC)
        other.__setstate__(state)
    np.testing.assert_array_equal(other.predict(MAKE["X"]), model.predict(MAKE["X"]))
    assert not hasattr(other, "_gpurbf_version")


@pytest.mark.parametrize("base", [SVC, gpurbf.RBFClassifier, gpurbf.RBFLayer], ids=str)
def test_a_subclass_may_ask_for_an_argument(base):
    class Named(base):
        def __init__(self, name):
            super().__init__()
            self.name = name

    X = np.random.default_rng(0).normal(size=(40, 3))
    model = copy.deepcopy(Named("a").fit(X, X[:, 0] > 0))
    assert model.name == "a" and model.n_features_in_ == 3
    del vars(model)["backend"]  # as if written before there was this parameter
    assert copy.deepcopy(model).backend == "auto"


def test_an_ensemble_reads_the_signatures_of_its_class_once(monkeypatch):
    models = [SVC(C=c) for c in range(1, 21)]
    content, read, signature = pickle.dumps(models), [], inspect.signature
    monkeypatch.setattr(inspect, "signature", lambda f: read.append(f) or signature(f))
    assert [model.C for model in pickle.loads(content)] == list(range(1, 21))
    assert len(read) < len(SVC.__mro__) + len(models)
