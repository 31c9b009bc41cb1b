"""FSVC's pass where a GPU computes: the walk is on the host, and so are its centers."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

import gpurbf


def digits():
    X, y = load_digits(return_X_y=True)
    return X[:900].astype(np.uint8), y[:900]


@pytest.mark.parametrize("selection", ["pass", "per-class", "error"])
def test_the_centers_are_those_of_the_host(cupy, selection):
    X, y = digits()
    options = {"selection": selection, "eval_radius": None, "max_centers": 60, "random_state": 0}
    there = gpurbf.FSVC(12.0, backend="cupy", **options)
    there.fit(X, y)
    same = gpurbf.FSVC(12.0, backend="numpy", **options).fit(X, y)
    np.testing.assert_array_equal(there.center_indices_, same.center_indices_)
    assert len(same.center_indices_) == 60
