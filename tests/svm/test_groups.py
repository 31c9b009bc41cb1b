"""Equal samples of a class are one to SVC's solver."""

import numpy as np

from gpurbf.svm.train import group_samples


def test_samples_keep_their_order_but_for_twins_in_a_class_which_are_one_group():
    X, y = np.arange(12.0).reshape(6, 2), np.array([1, 0, 1, 0, 2, 1])
    groups = group_samples(X, y, np.full(6, 3.0))
    assert groups.first.tolist() == [1, 3, 0, 2, 5, 4]
    assert groups.class_starts.tolist() == [0, 2, 5, 6]
    X, y = np.array([[1.0], [2.0], [1.0], [3.0], [1.0]]), np.array([1, 0, 0, 1, 0])
    assert group_samples(X[:4], y[:4], None).first.tolist() == [1, 2, 0, 3]
    groups = group_samples(X, y, None)
    assert groups.sums(np.ones(5)).tolist() == [1, 2, 1, 1]
    assert groups.class_starts.tolist() == [0, 2, 4]


def test_many_classes_are_sorted():
    y = np.random.default_rng(0).permutation(np.arange(140_000) // 2)
    groups = group_samples(np.arange(140_000.0)[:, None], y, None)
    np.testing.assert_array_equal(groups.first, np.argsort(y, kind="stable"))
