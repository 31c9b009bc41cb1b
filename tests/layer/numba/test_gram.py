"""Sums on a grid: exact under every kernel, the same bits however the rows come."""

import numpy as np
import pytest

from gpurbf import config_context
from gpurbf.layer.activation import Activation
from gpurbf.layer.backends.numba import gram
from gpurbf.layer.backends.numba.tile_layer import TileLayer
from gpurbf.layer.layer import HiddenLayer
from gpurbf.runtime.linalg import mirror
from gpurbf.runtime.threads import limited
from tests.layer.numba.test_tiles import PIXELS

RNG = np.random.default_rng(0)
GAUSSIAN = Activation("euclidean", "gaussian", 3e-6)


def data(N, m, k):
    X, C = (RNG.integers(0, 256, (rows, 20)).astype(np.uint8) for rows in (N, m))
    return X, C, np.eye(max(k, 1))[RNG.integers(0, max(k, 1), N)][:, :k]


def rounded(H, T, weights, mean, grid):
    """The definition: H and T rounded to the grid, as 64-bit integers."""
    roots = np.ones(len(H)) if weights is None else np.sqrt(weights)
    factors = (roots / grid.step).astype(H.dtype)
    Q = np.rint((H - mean.astype(H.dtype)) * factors[:, None]).astype(np.int64)
    return Q, np.rint(T * (roots[:, None] / grid.target_step)).astype(np.int64)


def assert_sums(layer, X, T, weights, mean, grid):
    """The sums are those of the definition; H and T on the grid."""
    (m, k), (Q, R) = (layer.m, T.shape[1]), rounded(gram.values(layer, X), T, weights, mean, grid)
    G, B, alone = np.zeros((m, m)), np.zeros((m, k)), np.zeros((m, k))
    layer.gram(X, T, weights, gram.Sums(G, B, mean, grid))
    np.testing.assert_array_equal(np.tril(G), np.tril(Q.T @ Q) * grid.step**2)
    np.testing.assert_array_equal(B, (Q.T @ R) * (grid.step * grid.target_step))
    layer.gram(X, T, weights, gram.Sums(None, alone, mean, grid))
    np.testing.assert_array_equal(B, alone)
    return Q, R


@pytest.mark.parametrize("bits", [15, 3])
@pytest.mark.parametrize("sign", [1, -1, 0], ids=["largest", "least", "both"])
@pytest.mark.parametrize("N, m", [(1, 1), (2, 16), (3, 17), (301, 33), (4100, 210)])
def test_sums_of_numbers_of_any_size_do_not_overflow(kernel, N, m, sign, bits):
    """H is 1 or -1: at most 32767 steps, as weights take off the last one."""
    X, C = (RNG.normal(size=(rows, 20)).astype(np.float32) for rows in (N, m))
    X, C = (sign * np.abs(X), np.abs(C)) if sign else (X, C)
    layer = TileLayer(C, Activation("dot", "sigmoid", 1e9), np.float32, None)
    weights, grid = np.full(N, (32767 / 32768) ** 2), gram.Grid(2.0**-bits, 2.0**-20)
    Q, _ = assert_sums(layer, X, np.ones((N, 1)), weights, np.zeros(m), grid)
    assert (np.abs(Q) == min(2**bits, 32767)).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_does_not_become_one(value):
    X, C, T = data(9, 40, 1)
    X[4] = C[39]
    function = Activation("euclidean", lambda s: np.where(s == 0, value, np.exp(-3e-6 * s)))
    G, B = np.zeros((40, 40)), np.zeros((40, 1))
    layer = TileLayer(C, function, np.float32, PIXELS)
    layer.gram(X, T, None, gram.Sums(G, B, np.full(40, 0.25), gram.Grid.of(0.75, 1.0)))
    assert not np.isfinite(G[39]).any() and not np.isfinite(B[39]).any()
    assert np.isfinite(np.tril(G)[:39]).all()


@pytest.mark.parametrize("range_", [0.75, 0.1], ids=["all rows fit", "some do not"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "N, m, k", [(1, 1, 1), (2, 2, 0), (300, 210, 17), (5001, 33, 3), (0, 5, 2)]
)
def test_sums_are_those_of_the_rounded_numbers(kernel, N, m, k, dtype, weighted, range_):
    X, C, T = data(N, m, k)
    weights = 3 * RNG.random(N) if weighted else None
    grid = gram.Grid.of(range_, 1.0, 3.0 if weighted else 1.0)
    layer = TileLayer(C, GAUSSIAN, dtype, PIXELS)
    Q, _ = assert_sums(layer, X, T, weights, np.full(m, 0.25), grid)
    assert N < 300 or (np.abs(Q).max() > 32767) == (range_ < 0.75)


def test_targets_beyond_the_grid_are_exact_too():
    X, C, _ = data(400, 30, 2)
    layer, T = TileLayer(C, GAUSSIAN, np.float32, PIXELS), RNG.normal(0, 3, (400, 2))
    _, R = assert_sums(layer, X, T, None, np.full(30, 0.25), gram.Grid.of(0.75, 1.0))
    assert 0 < (np.abs(R) > 2**21).any(axis=1).mean() < 1


@pytest.mark.parametrize(
    "activation",
    [
        Activation("manhattan", "laplacian", 1e-3),
        Activation("euclidean", "multiquadric", 1e-4),
        Activation("euclidean", lambda s: np.exp(-3e-6 * s)),
    ],
)
def test_any_metric_and_profile_can_be_rounded(activation):
    X, C, T = data(500, 40, 3)
    layer = TileLayer(C, activation, np.float32, PIXELS)
    assert_sums(layer, X, T, None, np.full(40, 0.5), gram.Grid.of(1.5, 1.0))


def normal(backend, X, C, T, weights=None, order=None, parts=1, range_=0.75):
    """The sums of a layer, whose rows come in an order and in parts."""
    layer = HiddenLayer(C, GAUSSIAN, backend=backend)
    order = np.arange(len(X)) if order is None else order
    out = np.zeros((len(C), len(C))), np.zeros((len(C), T.shape[1]))
    grid, mean = gram.Grid.of(range_, 1.0, 3.0), np.full(len(C), 0.25)
    for part in np.array_split(order, parts):
        w = None if weights is None else weights[part]
        layer.gram(X[part], T[part], w, mean, out, grid)
    mirror(out[0])
    return out


@pytest.mark.parametrize("range_", [0.75, 0.1], ids=["all rows fit", "some do not"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("backend", ["numba", "numpy", "mkl"], indirect=True)
def test_bits_do_not_depend_on_how_the_rows_come(backend, weighted, range_):
    X, C, T = data(6001, 130, 3)
    weights = 3 * RNG.random(len(X)) if weighted else None
    expected = normal(backend, X, C, T, weights, range_=range_)

    def same(**how):
        found = normal(backend, X, C, T, weights, range_=range_, **how)
        np.testing.assert_equal(found, expected)

    for parts in (2, 7, 600):
        same(parts=parts)
    same(order=RNG.permutation(len(X)), parts=3)
    for memory in (1, 8, 64):
        with config_context(memory=memory):
            same()
    for n_jobs in (1, 2):
        with limited(n_jobs):
            same()


def test_a_forced_precision_is_not_rounded():
    C = data(300, 40, 2)[1]
    for precision in ("auto", "exact", "float32", "float64"):
        layer = HiddenLayer(C, GAUSSIAN, backend="numba", precision=precision)
        assert layer.exact_sums == (precision in ("auto", "exact"))


def test_the_nearest_on_the_grid_is_what_is_summed():
    X, C, T = data(40, 50, 1)
    layer, mean = HiddenLayer(C, GAUSSIAN, backend="numba"), np.full(50, 0.25)
    grid = gram.Grid.of(0.1, 1.0)
    H = grid.nearest(layer.activations(X), mean) - mean
    out = np.zeros((50, 50)), np.zeros((50, 1))
    layer.gram(X, T, None, mean, out, grid)
    np.testing.assert_array_equal(np.tril(out[0]), np.tril(H.T @ H))


def test_a_grid_holds_what_it_is_made_for():
    for largest, target, weight in RNG.lognormal(0, 5, (50, 3)):
        grid = gram.Grid.of(largest, target, weight)
        assert np.frexp(grid.step)[0] == np.frexp(grid.target_step)[0] == 0.5
        assert 2**13 < np.sqrt(weight) * largest / grid.step < 2**15
        assert 2**19 < np.sqrt(weight) * target / grid.target_step <= 2**21
