"""Sums on a grid: exact under every kernel, the same bits however the rows come."""

import numpy as np
import pytest

from gpurbf import config_context
from gpurbf.layer.activation import Activation
from gpurbf.layer.backends.numba import gram
from gpurbf.layer.backends.numba.tile_layer import prepare
from gpurbf.layer.layer import HiddenLayer
from gpurbf.runtime.threads import limited
from tests.layer.numba.test_tiles import GAUSSIAN, PIXELS, of

RNG = np.random.default_rng(0)


def zeros(m, T):
    return np.zeros((m, m)), np.zeros((m, T.shape[1]))


def data(N, m, k):
    X, C = (RNG.integers(0, 256, (rows, 20)).astype(np.uint8) for rows in (N, m))
    return X, C, np.eye(max(k, 1))[RNG.integers(0, max(k, 1), N)][:, :k]


def assert_sums(layer, X, T, weights, mean, grid):
    """The sums are those of H and T rounded to the grid, as 64-bit integers; returns these."""
    H, roots = gram.values(layer, X), np.sqrt(np.ones(len(X)) if weights is None else weights)
    factors = (roots / grid.step).astype(H.dtype)
    Q = np.rint((H - mean.astype(H.dtype)) * factors[:, None]).astype(np.int64)
    R = np.rint(T * (roots[:, None] / grid.target_step)).astype(np.int64)
    (G, B), (_, alone) = zeros(layer.m, T), zeros(layer.m, T)
    gram.add_rounded(layer, X, T, weights, gram.Sums(G, B, mean), grid)
    np.testing.assert_array_equal(np.tril(G), np.tril(Q.T @ Q) * grid.step**2)
    np.testing.assert_array_equal(B, (Q.T @ R) * (grid.step * grid.target_step))
    gram.add_rounded(layer, X, T, weights, gram.Sums(None, alone, mean), grid)
    np.testing.assert_array_equal(B, alone)
    return Q, R


@pytest.mark.parametrize("bits", [15, 3])
@pytest.mark.parametrize("sign", [1, -1, 0], ids=["largest", "least", "both"])
@pytest.mark.parametrize("N, m", [(1, 1), (2, 16), (3, 17), (301, 33), (4100, 210)])
def test_sums_of_numbers_of_any_size_do_not_overflow(kernel, N, m, sign, bits):
    """H is 1 or -1: at most 32767 steps, as weights take off the last one."""
    X, C = (RNG.normal(size=(rows, 20)).astype(np.float32) for rows in (N, m))
    X, C = (sign * np.abs(X), np.abs(C)) if sign else (X, C)
    layer = prepare(C, Activation("dot", "sigmoid", 1e9), np.float32, None)
    weights, grid = np.full(N, (32767 / 32768) ** 2), gram.Grid(2.0**-bits, 2.0**-20)
    Q, _ = assert_sums(layer, X, np.ones((N, 1)), weights, np.zeros(m), grid)
    assert (np.abs(Q) == min(2**bits, 32767)).all()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_does_not_become_one(value):
    X, C, T = data(9, 40, 1)
    X[4] = C[39]
    function = Activation("euclidean", lambda s: np.where(s == 0, value, np.exp(-3e-6 * s)))
    layer, (G, B) = prepare(C, function, np.float32, PIXELS), zeros(40, T)
    sums = gram.Sums(G, B, np.full(40, 0.25))
    gram.add_rounded(layer, X, T, None, sums, gram.Grid.of(0.75))
    assert not np.isfinite(G[39]).any() and not np.isfinite(B[39]).any()
    assert np.isfinite(np.tril(G)[:39]).all()


@pytest.mark.parametrize("range_", [0.75, 0.1], ids=["all rows fit", "some do not"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    "N, m, k", [(1, 1, 1), (2, 2, 0), (300, 210, 17), (5001, 33, 3), (0, 5, 2)]
)
def test_sums_are_those_of_the_rounded_numbers(kernel, N, m, k, dtype, weighted, range_):
    X, C, T = data(N, m, k)
    weights = 3 * RNG.random(N) if weighted else None
    grid = gram.Grid.of(range_, 3.0 if weighted else 1.0)
    layer = prepare(C, GAUSSIAN, dtype, PIXELS)
    Q, _ = assert_sums(layer, X, T, weights, np.full(m, 0.25), grid)
    assert N < 300 or (np.abs(Q).max() > 32767) == (range_ < 0.75)


def test_targets_beyond_the_grid_are_exact_too():
    X, C, _ = data(400, 30, 2)
    layer, T = prepare(C, GAUSSIAN, np.float32, PIXELS), RNG.normal(0, 3, (400, 2))
    _, R = assert_sums(layer, X, T, None, np.full(30, 0.25), gram.Grid.of(0.75))
    assert 0 < (np.abs(R) > 2**21).any(axis=1).mean() < 1


OTHERS = [of("manhattan", "laplacian", 1e-3), of("euclidean", "multiquadric", 1e-4)]


@pytest.mark.parametrize("activation", [*OTHERS, of("euclidean", lambda s: np.exp(-3e-6 * s))])
def test_any_metric_and_profile_can_be_rounded(activation):
    X, C, T = data(500, 40, 3)
    layer = prepare(C, activation, np.float32, PIXELS)
    assert_sums(layer, X, T, None, np.full(40, 0.5), gram.Grid.of(1.5))


@pytest.mark.parametrize("range_", [0.75, 0.1], ids=["all rows fit", "some do not"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("backend", ["numba", "numpy", "mkl"], indirect=True)
def test_bits_do_not_depend_on_how_the_rows_come(backend, weighted, range_):
    X, C, T = data(6001, 130, 3)
    weights, grid = 3 * RNG.random(len(X)), gram.Grid.of(range_, 3.0)

    def sums(*parts):
        layer, (G, B) = HiddenLayer(C, GAUSSIAN, backend=backend), zeros(130, T)
        for part in parts:
            w = weights[part] if weighted else None
            layer.gram(X[part], T[part], w, np.full(130, 0.25), (G, B), grid)
        return np.tril(G), B

    whole = slice(0, len(X))
    expected = sums(whole)
    for cuts in ([3000], [1, 4, 15, 1000, 1033, 2000, 5990]):
        np.testing.assert_equal(sums(*np.split(np.arange(len(X)), cuts)), expected)
    np.testing.assert_equal(sums(*np.array_split(RNG.permutation(len(X)), 3)), expected)
    memories = (config_context(memory=memory) for memory in (1, 8, 64))
    for circumstances in (*memories, limited(1), limited(2)):
        with circumstances:
            np.testing.assert_equal(sums(whole), expected)


def test_a_forced_precision_is_not_rounded():
    C = data(300, 40, 2)[1]
    for precision in ("auto", "exact", "float32", "float64"):
        layer = HiddenLayer(C, GAUSSIAN, backend="numba", precision=precision)
        assert layer.exact_sums == (precision in ("auto", "exact"))


def test_a_grid_holds_what_it_is_made_for():
    for largest, weight in RNG.lognormal(0, 5, (50, 2)):
        grid = gram.Grid.of(largest, weight)
        assert np.frexp(grid.step)[0] == np.frexp(grid.target_step)[0] == 0.5
        assert 2**13 < np.sqrt(weight) * largest / grid.step < 2**15
        assert 2**19 < np.sqrt(weight) / grid.target_step <= 2**21
