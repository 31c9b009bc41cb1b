"""Equal samples of a class are one to SVC's solver."""

import tracemalloc

import numpy as np
import pytest

from gpurbf.svm.train import _spread, group_samples


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


@pytest.mark.parametrize(("share", "most"), [(1.0, 1.6), (0.0, 2.6)])
def test_coefficients_of_many_classes_are_in_memory_once_beside_those_of_the_groups(share, most):
    """And once more if some are too small for a number."""
    rng = np.random.default_rng(0)
    X, y = rng.integers(0, 4, (1500, 5)).repeat(2, axis=0), np.arange(3000) // 2 % 100
    groups, C = group_samples(X, y, None), rng.uniform(0, 1, 3000)
    C[::20] *= share
    table = rng.normal(size=(99, len(groups.first))) * (np.arange(len(groups.first)) % 3 > 0)
    tracemalloc.start()
    members, coefficients = _spread(table, groups, C, groups.sums(C))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert coefficients.flags.c_contiguous and (y[members[1:]] >= y[members[:-1]]).all()
    assert peak < most * coefficients.nbytes
