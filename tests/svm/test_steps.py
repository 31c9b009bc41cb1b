"""Steps of SVC's solver on numbers that hardly hold them."""

import numpy as np

from gpurbf.svm.smo import all_rows, solve_block


def test_steps_that_numbers_cannot_hold_end_the_loop():
    # The best step is lost beside coefficients of 1e20.
    beta, f = np.array([1e20, -1e20]), np.array([1.0, -1.0])
    low, high = np.array([0.0, -np.inf]), np.array([np.inf, 0.0])
    K = np.array([[1.0, 0.0], [0.0, 1.0]])
    steps, violation, stuck = solve_block(all_rows(K), np.ones(2), low, high, beta, f, 1e-3, 100)
    assert (steps, violation, stuck) == (0, 2.0, True)


def test_a_step_that_one_of_two_numbers_cannot_hold_is_not_the_end():
    # The best pair is of equal samples, the one next to its bound by less than the other's last
    # bit: the other, which is at a bound, stays there and must not be taken for free.
    beta, f = np.array([-1e-15, 30.0, -30.0, 0.0]), np.array([5.0, 4.9, 1.0, -1.0])
    low, high = np.array([-30.0, 0.0, -30.0, -30.0]), np.array([0.0, 30.0, 0.0, 0.0])
    K = np.eye(4)
    K[0, 1] = K[1, 0] = 1.0
    steps, violation, stuck = solve_block(all_rows(K), np.ones(4), low, high, beta, f, 1e-3, 100)
    assert steps > 1 and not stuck and violation < 1e-3
    assert f[beta < high].max() - f[beta > low].min() == violation
