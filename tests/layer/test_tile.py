"""Tiles: forced ones belong to a thread and to the layers prepared meanwhile; no result changes."""

from unittest.mock import Mock

import numpy as np
import pytest
import reference
from callers import layer_of, run_threads, sums_of

from gpurbf import config_context
from gpurbf.layer.activation import Activation
from gpurbf.layer.backends import Tile, forced, forced_tile, get_backend

DEFAULT = Tile()


def test_forced_tiles_nest_and_belong_to_a_thread():
    with forced(Tile(M=24)):
        with forced(DEFAULT):
            assert forced_tile() == DEFAULT
        assert forced_tile() == Tile(M=24)
        seen = run_threads(forced_tile)
    assert seen == [DEFAULT] == [forced_tile()]
    with pytest.raises(ValueError, match="> 0"), forced(Tile(M=0)):
        pass


@pytest.mark.parametrize(
    ("tile", "shape", "blocks"),
    [(Tile(M=96), (500, 9), [96]), (Tile(M=5000), (2, 300_000), range(1, 100))],
)
def test_a_layer_keeps_its_first_tile_but_for_the_memory_of_many_inputs(tile, shape, blocks):
    X = np.random.default_rng(0).normal(size=shape)
    layer = layer_of(X, backend="numba")
    with forced(tile):
        layer.activations(X)  # worker threads have no forced tile, and need none
    layer.activations(X)
    (prepared,) = layer._prepared.values()
    assert prepared.block in blocks


@pytest.mark.parametrize("precision", ("exact", "float32", "float64"))
@pytest.mark.parametrize("metric", ["euclidean", "manhattan"])
def test_no_tile_changes_a_result(backend, metric, precision):
    rng = np.random.default_rng(0)
    X = rng.integers(0, 256, (600, 21)).astype(np.uint8 if precision == "exact" else precision)
    X, C = X[:300], X[300:]
    gamma = 1e-4 / X.shape[1] / (X.shape[1] if metric == "manhattan" else 1)
    H = reference.hidden(X, C, metric, "gaussian", gamma)
    W, T = rng.normal(size=(len(C), 3)), rng.normal(size=(len(X), 2))
    tiles = (Tile(M=1), Tile(M=37), Tile(M=5000))
    if backend == "numba-cuda" or (backend, metric) == ("cupy", "manhattan"):
        tiles = (Tile(M=128, B=16), Tile(M=64, B=8))
    for cut in (DEFAULT, *tiles):
        layer = layer_of(C, gamma, metric, backend=backend, precision=precision)
        within = reference.TOLERANCE[layer.dtype]
        with forced(cut):
            found = layer.activations(X), layer.matvec(X, W), *sums_of(layer, X, T)
        for value, expected in zip(found, (H, H @ W, H.T @ H, H.T @ T)):
            scale = max(1.0, np.abs(expected).max())
            np.testing.assert_allclose(value, expected, rtol=0, atol=10 * within * scale)


@pytest.mark.parametrize(("memory", "largest"), [(0.25, 96), (4, 1632), (256, 4000)])
def test_a_tile_of_a_product_stays_within_the_memory_budget(memory, largest):
    numpy = get_backend("numpy")[0]
    X, C = np.ones((5000, 5), np.float32), np.ones((160, 5), np.float32)
    with forced(Tile(M=4000)):
        layer = numpy.prepare(C, Activation("euclidean", "gaussian"), np.float32, None)
    multiply = Mock(wraps=layer.product.multiply)
    layer.product = layer.product._replace(multiply=multiply)
    H = np.empty((5000, 160), np.float32)
    with config_context(memory=memory):
        layer.activations(X, H)
    sizes = [len(call.args[2]) for call in multiply.call_args_list]
    assert max(sizes) == largest and sum(sizes) == len(X)
    np.testing.assert_array_equal(H, 1)
