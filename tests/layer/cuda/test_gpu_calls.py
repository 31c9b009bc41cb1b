"""How lean calls on a GPU are: launches, copies, waits and blocks from the driver, counted.

By the stand-in for CuPy; what they cost in time was not measured on a GPU.
"""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits
from standin.samples import GAUSSIAN, data

import gpurbf
from gpurbf.layer.backends.cuda import cupy_
from gpurbf.layer.layer import HiddenLayer, OutputWeights

# Launches, copies, waits, blocks.
NOTHING_ELSE = [0, 0, 0]


def counted(gpu, call):
    """What the second call takes: the first compiles, and fills the pool."""
    call()
    before = gpu.counts()
    call()
    launches, *others = (gpu.counts() - before).tolist()
    return launches, others


@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
def test_resident_data_take_three_launches_a_tile_and_nobody_waits(cupy, dtype):
    X, C = data(dtype, N=5000, m=60)
    layer = HiddenLayer(C, GAUSSIAN._replace(gamma=1e-5), backend="cupy")
    x, out = cupy.asarray(X), cupy.empty((5000, 60), layer.dtype)
    W, T = OutputWeights(cupy.asarray(np.ones((60, 10)))), cupy.asarray(np.ones((5000, 10)))
    sums = cupy.zeros((60, 60)), cupy.zeros((60, 10))
    assert counted(cupy.gpu, lambda: layer.matvec(x, W)) == (3, NOTHING_ELSE)
    assert cupy.gpu.kernels[-2:] == ["rows", "scores"]
    assert counted(cupy.gpu, lambda: layer.activations(x, out)) == (3, NOTHING_ELSE)
    # Two tiles, because of the sums; the mean, which is NumPy's, crosses the bus.
    assert counted(cupy.gpu, lambda: layer.gram(x, T, out=sums)) == (2 * 7, [1, 0, 0])


def test_a_further_chunk_is_two_launches_more(cupy, monkeypatch):
    """A chunk is some thousand rows, or more if their products are few bytes; MNIST has eight."""
    monkeypatch.setattr(cupy_, "_CHUNK_BYTES", 0)
    X, C = data(np.uint8, N=20_000, m=60)
    layer = HiddenLayer(C, GAUSSIAN._replace(gamma=1e-5), backend="cupy")
    x, W = cupy.asarray(X), OutputWeights(cupy.asarray(np.ones((60, 10))))
    assert counted(cupy.gpu, lambda: layer.matvec(x, W)) == (1 + 2 * 3, NOTHING_ELSE)
    assert {call[2] for call in cupy.gpu.calls} == {8192, 20_000 - 2 * 8192}


def test_a_call_from_the_host_copies_in_and_out_and_asks_once_for_free_memory(cupy):
    X, C = data(np.uint8, N=1000)
    layer, W = HiddenLayer(C, GAUSSIAN._replace(gamma=1e-5), backend="cupy"), np.ones((37, 10))
    layer.matvec(X, W)
    asked, crossed = cupy.gpu.asked, cupy.gpu.bytes("in")
    assert counted(cupy.gpu, lambda: layer.matvec(X, W)) == (3, [2, 1, 0])
    # Weights are packed once.
    assert cupy.gpu.asked - asked == 2 and cupy.gpu.bytes("in") - crossed == 2 * X.nbytes
    S = layer.matvec(X, 2 * W)
    np.testing.assert_allclose(S, 2 * layer.matvec(X, W), rtol=1e-6)


# Launches, copies and waits of a fit of 1,797 digits and of a prediction, from the host and of what
# is on the device: what docs/notes/cuda.md says. More is a step back.
COUNTS = {
    "RBFClassifier": ((46, 27, 13), (3, 3, 1), (8, 4, 1)),
    "RBFClassifier, lms": ((69, 19, 14), (3, 3, 1), (8, 4, 1)),
    "FSVC": ((58, 25, 13), (3, 3, 1), (8, 4, 2)),
    "SVC": ((11, 4, 4), (11, 3, 1), (12, 5, 1)),
    "RBFLayer": ((0, 0, 0), (3, 2, 1), (3, 0, 0)),
}
MODELS = {
    "RBFClassifier": gpurbf.RBFClassifier(100, random_state=0, gamma=1e-3),
    "RBFClassifier, lms": gpurbf.RBFClassifier(100, solver="lms", random_state=0, gamma=1e-3),
    "FSVC": gpurbf.FSVC(40.0, selection="pass", eval_radius=None, random_state=0),
    "SVC": gpurbf.SVC(C=10, gamma=0.001),
    "RBFLayer": gpurbf.RBFLayer(100, random_state=0, gamma=1e-3),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_estimators_take_no_more_than_they_did(cupy, name):
    X, y = load_digits(return_X_y=True)
    X = X.astype(np.uint8)
    model = clone(MODELS[name]).set_params(backend="cupy")
    rows = slice(600) if name == "SVC" else slice(None)
    fit, host, resident = COUNTS[name]
    before = cupy.gpu.counts()
    model.fit(X[rows], y[rows])
    assert ((cupy.gpu.counts() - before)[:3] <= fit).all(), cupy.gpu.counts() - before
    call = model.transform if name == "RBFLayer" else model.predict
    there = cupy.asarray(X)
    for data_, most in ((X, host), (there, resident)):
        launches, others = counted(cupy.gpu, lambda data_=data_: call(data_))
        assert others[-1] == 0
        assert (np.array([launches, *others[:2]]) <= most).all(), (launches, others)
