"""FSVC's pass where a GPU computes: the walk is there, and the centers are those of the host."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

import gpurbf
from gpurbf import config_context


def digits():
    X, y = load_digits(return_X_y=True)
    return X[:900].astype(np.uint8), y[:900]


@pytest.mark.parametrize("selection", ["pass", "per-class", "error"])
def test_the_centers_are_those_of_the_host_and_activations_stay_there(cupy, selection):
    X, y = digits()
    options = {"selection": selection, "eval_radius": None, "max_centers": 60, "random_state": 0}
    there = gpurbf.FSVC(12.0, backend="cupy", **options)
    gpu = cupy.gpu
    before = gpu.bytes("out")
    there.fit(X, y)
    same = gpurbf.FSVC(12.0, backend="numpy", **options).fit(X, y)
    np.testing.assert_array_equal(there.center_indices_, same.center_indices_)
    assert len(same.center_indices_) == 60 and "walk" in gpu.kernels
    # Activity and verdicts come back, and the output weights; of 512² activations nothing.
    assert gpu.bytes("out") - before < 0.1 * 8 * 512**2


def test_where_the_activations_of_candidates_do_not_fit_the_host_walks(cupy):
    X, y = digits()
    walks, models = [], []
    for megabytes in (3, None):
        cupy.gpu.kernels.clear()
        with config_context(gpu_memory=megabytes):
            models.append(gpurbf.FSVC(12.0, backend="cupy", random_state=0).fit(X, y))
        walks.append(cupy.gpu.kernels.count("walk"))
    assert walks[0] < walks[1]
    np.testing.assert_array_equal(models[0].center_indices_, models[1].center_indices_)
