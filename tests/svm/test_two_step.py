"""Steps ahead of SVC's solver: the plane of the last two changes."""

import numpy as np
import pytest

from gpurbf.svm.two_step import TwoStep


def test_the_point_ahead_is_the_best_of_its_plane():
    rng = np.random.default_rng(0)
    A = rng.normal(size=(30, 30))
    K, y = A @ A.T, np.sign(rng.normal(size=30))
    moves = rng.normal(size=(2, 30))
    moves -= moves.mean(axis=1, keepdims=True)
    plane, beta = TwoStep(30), np.zeros(30)
    points = [beta, beta + moves[0], beta + moves[0] + moves[1]]
    bound = np.full(30, 1e9)
    for beta in points:
        assert plane.ahead(-bound, bound, 30) is None
        plane.add(beta, y - K @ beta)
    ahead = plane.ahead(-bound, bound, 0)
    assert len(ahead.members) == 0
    beta, f = ahead.point
    assert f == pytest.approx(y - K @ beta, abs=1e-6)
    slope = np.abs(moves @ (y - K @ points[2])).max()
    assert moves @ f == pytest.approx([0, 0], abs=1e-5 * slope)
    assert np.linalg.matrix_rank(np.vstack([moves, beta]), 1e-6) == 2


def test_the_point_ahead_keeps_bounds_and_sum():
    rng = np.random.default_rng(1)
    A = rng.normal(size=(40, 10))
    K, y = A @ A.T + np.eye(40), np.sign(rng.normal(size=40))
    plane, bound = TwoStep(40), np.full(40, 0.05)
    for scale in (0, 1e-3, 2.5e-3):
        move = np.where(np.arange(40) < 20, 1.0, -1.0) * scale
        plane.add(move, y - K @ move)
    plane.add(move + 1e-4 * (y - y.mean()), y - K @ (move + 1e-4 * (y - y.mean())))
    ahead = plane.ahead(-bound, bound, 40)
    beta, f = ahead.point
    assert np.abs(beta).max() <= 0.05 + 1e-15
    assert len(ahead.members) > 0
    assert beta.sum() == pytest.approx(0, abs=1e-12)
    f -= ahead.change @ K[ahead.members]
    assert f == pytest.approx(y - K @ beta, abs=1e-9)
    assert plane.ahead(-bound, bound, 0) is None
