"""Sums that do not round, and what is made of them: no order and no part shows."""

import sys
from fractions import Fraction
from unittest.mock import Mock

import numpy as np
import pytest
import scipy.sparse as sp

from gpurbf.data.exact_sums import exact_sum
from gpurbf.layer.gamma import SUMS, resolve_gamma
from gpurbf.runtime.memory import scratch

RNG = np.random.default_rng(0)
V = RNG.normal(size=3000) * 10.0 ** RNG.integers(-300, 300, 3000)
W = RNG.random(3000) * 10.0 ** RNG.integers(-5, 5, 3000)


def test_sums_are_those_of_fractions():
    for n in (1, 2, 100, 256, 257, 3000):
        assert exact_sum(V[:n]) == sum(map(Fraction, V[:n]))
    small = V * (abs(V) < 1e200)
    assert exact_sum(small, W) == sum(Fraction(v) * Fraction(w) for v, w in zip(small, W))
    assert exact_sum(np.full(3, 5e-324)) == 3 * Fraction(5e-324)
    assert exact_sum(np.zeros(0)) == 0


def test_what_is_not_finite_is_said_and_not_added():
    assert exact_sum(np.array([np.inf, 1.0])) == np.inf
    assert exact_sum(np.array([1e308, 1e308])) == np.inf
    assert np.isnan(exact_sum(np.array([np.inf, -np.inf])))
    assert np.isnan(exact_sum(np.array([1.0, np.nan])))
    assert np.isnan(exact_sum(np.array([np.inf, 1.0]), np.zeros(2)))


def test_gamma_is_the_same_bits_for_every_order_and_repeated_is_weighted():
    X, w = RNG.normal(size=(5000, 7)), RNG.integers(1, 4, 5000)
    order = RNG.permutation(5000)
    found = resolve_gamma("scale", X, weights=w.astype(float))
    assert found == resolve_gamma("scale", X[order], weights=w[order].astype(float))
    assert found == resolve_gamma("scale", np.repeat(X, w, axis=0))


@pytest.mark.parametrize("offset", [0, 3.8, 3.9, 10, 1e4, 1e8, -1e12])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("make", [np.asarray, sp.csr_array])
def test_scale_keeps_its_digits_where_data_are_far_from_zero(offset, weighted, make):
    X = RNG.normal(size=(300, 7)) + offset
    w = RNG.integers(1, 4, 300).astype(float) if weighted else None
    terms = [Fraction(x) for x in (np.repeat(X, w.astype(int), axis=0) if weighted else X).ravel()]
    mean = sum(terms) / len(terms)
    variance = sum((x - mean) ** 2 for x in terms) / len(terms)
    # Rows that are summed about zero lose up to four bits of those that they were rounded to.
    off = abs(resolve_gamma("scale", make(X), weights=w) * 7 * float(variance) - 1)
    assert off < 16 * np.finfo(float).eps


@pytest.mark.parametrize("metric", ["euclidean", "manhattan"])
def test_the_median_distance_is_the_same_far_from_zero(metric):
    X = np.round(RNG.normal(size=(300, 3)) * 64) / 64  # such steps survive the offset
    found = [
        resolve_gamma("median", X + offset, metric=metric, random_state=np.random.RandomState(0))
        for offset in (0, 1e6, 1.6e9, -1e12)
    ]
    np.testing.assert_allclose(found, found[0], rtol=1e-12)


@pytest.mark.parametrize("store", [np.asarray, sp.csr_array])
def test_the_median_distance_of_wide_samples_is_the_same_far_from_zero(store):
    X = np.zeros((100, 1100))
    X[:, 7] = np.round(RNG.normal(size=100) * 64) / 64
    found = []
    for offset in (0, 1.6e9):
        X[:, 7] += offset
        found.append(resolve_gamma("median", store(X), random_state=np.random.RandomState(0)))
    assert found[1] == pytest.approx(found[0], rel=1e-9)


@pytest.mark.parametrize("far", [0, 1e6])
def test_the_median_distance_keeps_its_digits_beside_one_sample_far_away(far):
    X = np.round(RNG.normal(size=(300, 3)) * 64) / 64 + far
    expected = resolve_gamma("median", X[1:], random_state=np.random.RandomState(0))
    X[0] = 1e12  # it moves a median of distances by little, and a mean by a lot
    found = resolve_gamma("median", X, random_state=np.random.RandomState(0))
    assert found == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize(("offset", "n_looks"), [(0, 1), (3.5, 1), (4.5, 2)])
def test_data_that_lie_about_zero_are_looked_at_once(offset, n_looks):
    X = RNG.normal(size=(300, 7)) + offset
    watched = Mock(shape=X.shape)
    watched.over_rows.side_effect = lambda task, *_: task(X, None, None, 0)
    assert resolve_gamma("scale", watched) == resolve_gamma("scale", X)
    assert watched.over_rows.call_count == n_looks


@pytest.mark.parametrize("shape", [(1, 1), (300, 7), (40, 784), (2, 70_000), (5, 0)])
def test_moments_of_bytes_are_exact(shape):
    X = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    X[0] = 255  # 70,000 squares are beyond 32 bits
    w, numbers = np.arange(1, len(X) + 1), X.astype(np.int64)
    expected = [w.sum(), (w @ numbers).sum(), (w @ numbers**2).sum()]
    mapped = np.broadcast_to(X, X.shape)  # read-only
    for rows in (X, mapped, np.asfortranarray(X), np.repeat(X, 2, axis=0)[::2]):
        assert SUMS(rows, None, w.astype(float), 0).tolist() == expected
        assert rows.flags.writeable == (rows is not mapped)


@pytest.mark.parametrize("name", ["scale", "auto", "median"])
@pytest.mark.parametrize("w", [None, RNG.random(2000)], ids=["equal", "weighted"])
def test_gamma_of_bytes_is_that_of_the_same_numbers(name, w):
    X = np.random.default_rng(0).integers(0, 256, (2000, 100)).astype(np.uint8)
    options = [{"weights": w, "random_state": np.random.RandomState(0)} for _ in range(3)]
    assert len({resolve_gamma(name, X.astype(t), **own) for t, own in zip("Bfd", options)}) == 1


def test_sums_are_right_where_the_handler_of_a_signal_computes_in_between():
    """It uses the memory that the thread keeps for kernels."""
    X = np.arange(200.0).reshape(50, 4)

    def handler(frame, event, of):
        if event == "c_call" and frame.f_code.co_name == "tile":
            scratch(0)[0][:] = 1

    expected = SUMS(X, None, None, 0)
    before = sys.getprofile()
    sys.setprofile(handler)
    try:
        found = SUMS(X, None, None, 0)
    finally:
        sys.setprofile(before)
    np.testing.assert_array_equal(found, expected)
