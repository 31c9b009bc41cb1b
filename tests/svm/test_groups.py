"""Equal samples of a class are one to SVC's solver."""

import numpy as np

from gpurbf.svm.train import group_samples


def test_samples_without_twins_keep_their_order():
    X, y = np.arange(12.0).reshape(6, 2), np.array([1, 0, 1, 0, 2, 1])
    groups = group_samples(X, y, np.full(6, 3.0))
    assert groups.first.tolist() == [1, 3, 0, 2, 5, 4]
    assert groups.class_starts.tolist() == [0, 2, 5, 6]


def test_equal_samples_of_a_class_become_one_wherever_they_are():
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 2, size=(60, 3)).astype(float), rng.integers(0, 2, size=60)
    weights = rng.integers(1, 4, size=60).astype(float)
    order = rng.permutation(60)
    a, b = group_samples(X, y, weights), group_samples(X[order], y[order], weights[order])
    assert np.array_equal(X[a.first], X[order][b.first])
    assert np.array_equal(a.sums(weights), b.sums(weights[order]))
    distinct = {(*x, c) for x, c in zip(X, y)}
    assert len(a.first) == len(distinct)
