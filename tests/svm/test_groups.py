"""Equal samples of a class are one to SVC's solver."""

import numpy as np

from gpurbf.svm.train import group_samples


def test_samples_without_twins_keep_their_order():
    X, y = np.arange(12.0).reshape(6, 2), np.array([1, 0, 1, 0, 2, 1])
    groups = group_samples(X, y, np.full(6, 3.0))
    assert groups.first.tolist() == [1, 3, 0, 2, 5, 4]
    assert groups.class_starts.tolist() == [0, 2, 5, 6]
