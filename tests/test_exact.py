"""Sums that do not round, and what is made of them: no order and no part shows."""

from fractions import Fraction

import numpy as np

from gpurbf.network.exact import exact_sum
from gpurbf.network.gamma import resolve_gamma

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
    gamma = resolve_gamma("scale", X, weights=w.astype(float))
    assert gamma == resolve_gamma("scale", X[order], weights=w[order].astype(float))
    assert gamma == resolve_gamma("scale", np.repeat(X, w, axis=0))
