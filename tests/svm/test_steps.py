"""Steps of SVC's solver: of two samples, and of all free ones together."""

from types import SimpleNamespace

import numpy as np
import pytest

from gpurbf.svm._free_cg_kernels import solve_free
from gpurbf.svm._smo_kernels import solve_block, subtraction_of
from gpurbf.svm.pair_kernel import MatrixPair, rows_of


def all_rows(K):
    """A matrix whose rows are all there."""
    return rows_of(K, K)


def free_steps(rows, *numbers_and_limits):
    """The steps of `solve_free`."""
    K, words, _ = rows
    minus = subtraction_of(K.dtype).address
    return solve_free(K, words.ctypes.data, minus, *numbers_and_limits)[0]


def numbers_of(low, high, beta, f):
    """The numbers of a problem whose kernel has a diagonal of 1."""
    return np.array([np.ones(len(f)), low, high, beta, f, f, f])


def test_steps_that_numbers_cannot_hold_end_the_loop():
    # The best step is lost beside coefficients of 1e20.
    beta, f = np.array([1e20, -1e20]), np.array([1.0, -1.0])
    low, high = np.array([0.0, -np.inf]), np.array([np.inf, 0.0])
    numbers = numbers_of(low, high, beta, f)
    steps, violation, stuck = solve_block(all_rows(np.eye(2)), numbers, 1e-3, 100)
    assert (steps, violation, stuck) == (0, 2.0, True)


def test_a_step_that_one_of_two_numbers_cannot_hold_is_not_the_end():
    # The best pair is of equal samples, the one next to its bound by less than the other's last
    # bit: the other, which is at a bound, stays there and must not be taken for free.
    beta, f = np.array([-1e-15, 30.0, -30.0, 0.0]), np.array([5.0, 4.9, 1.0, -1.0])
    low, high = np.array([-30.0, 0.0, -30.0, -30.0]), np.array([0.0, 30.0, 0.0, 0.0])
    K = np.eye(4)
    K[0, 1] = K[1, 0] = 1.0
    numbers = numbers_of(low, high, beta, f)
    steps, violation, stuck = solve_block(all_rows(K), numbers, 1e-3, 100)
    beta, f = numbers[3:5]
    assert steps > 1 and not stuck and violation < 1e-3
    assert f[beta < high].max() - f[beta > low].min() == violation


def block(seed=0, n=80, rank=80, bound=1.0, dtype=np.float32):
    """A kernel, its bounds, and a feasible point with a third of the samples at a bound."""
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(n, rank))
    K = (A @ A.T / rank).astype(dtype)
    low, high = np.full(n, -bound), np.full(n, bound)
    beta = rng.uniform(-0.1, 0.1, n)
    beta -= beta.mean()
    beta[: n // 3] = np.where(np.arange(n // 3) % 2, low[: n // 3], high[: n // 3])
    y = np.sign(rng.normal(size=n))
    return K, low, high, beta, y, y - K.astype(float) @ beta


def ascend(K, low, high, beta, y, f, goal=1e-3, most=1000, values=10**9):
    """Conjugate gradients on the free samples; how many steps they took.

    They gain, keep the bounds, the sum and the samples at a bound, and f is what it says.
    """
    before, wide = beta.copy(), K.astype(float)
    closed = (beta == low) | (beta == high)
    numbers = numbers_of(low, high, beta, f)
    steps = free_steps(all_rows(K), numbers, goal, most, values)
    beta[:], f[:] = numbers[3:5]
    scale = max(1.0, np.abs(beta).max())
    assert f == pytest.approx(y - wide @ beta, abs=1e-9 * scale)
    assert (low <= beta).all() and (beta <= high).all()
    assert beta.sum() == pytest.approx(before.sum(), abs=1e-10 * scale)
    np.testing.assert_array_equal(beta[closed], before[closed])
    if steps:
        gain = y @ (beta - before) - (beta @ wide @ beta - before @ wide @ before) / 2
        assert gain > 0
    return steps


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("bound", [1.0, 1e6])
def test_the_free_end_where_none_of_them_gains_and_the_others_stay(bound, dtype):
    K, low, high, beta, y, f = block(bound=bound, dtype=dtype)
    assert 0 < ascend(K, low, high, beta, y, f) < 1000
    free = (low < beta) & (beta < high)
    assert np.ptp(f[free]) < 1e-3 and free.sum() > 2


def test_who_comes_to_a_bound_is_exactly_there():
    # Of few dimensions: the dual is linear in most directions and ends at bounds.
    K, low, high, beta, y, f = block(rank=5)
    before = ((low < beta) & (beta < high)).sum()
    ascend(K, low, high, beta, y, f)
    after = ((low < beta) & (beta < high)).sum()
    assert after < before / 2
    assert not ((low < beta) & (beta < low + 1e-12)).any()
    assert not ((high > beta) & (beta > high - 1e-12)).any()


def test_the_sum_stays_where_a_sample_at_its_bound_is_far_from_the_free():
    K, low, high, beta, y, _ = block(rank=3, bound=1e3, dtype=np.float64)
    f, before = 1e-8 * y, beta.sum()
    first = np.flatnonzero((low < beta) & (beta < high))[0]
    f[first], high[first] = 1.0, beta[first] + 1e-6
    numbers = numbers_of(low, high, beta, f)
    assert free_steps(all_rows(K), numbers, 1e-12, 1000, 10**9) > 1
    beta = numbers[3]
    assert beta[first] == high[first]
    assert beta.sum() == pytest.approx(before, abs=1e-15 * np.abs(beta).sum())


@pytest.mark.parametrize("most", [0, 1, 3])
def test_directions_are_limited(most):
    assert ascend(*block(bound=1e6), goal=1e-9, most=most) == most


def test_nothing_is_done_that_might_read_more_than_it_may():
    K, low, high, beta, y, f = block()
    m = int(((low < beta) & (beta < high)).sum())
    before = beta.copy(), f.copy()
    assert ascend(K, low, high, beta, y, f, goal=1e-9, values=m**3 - 1) == 0
    np.testing.assert_array_equal((beta, f), before)
    assert ascend(K, low, high, beta, y, f, goal=1e-9, values=m**3) > 0


@pytest.mark.parametrize("bounded", [True, False])
def test_an_indefinite_kernel_ends_at_bounds_or_is_left_where_there_are_none(bounded):
    K, low, high, beta, y, _ = block()
    if not bounded:
        low, high = np.full((2, len(K)), [[-np.inf], [np.inf]])
    K -= (2 if bounded else 3) * np.eye(len(K), dtype=K.dtype)
    assert bounded <= ascend(K, low, high, beta, y, y - K.astype(float) @ beta) < 1000


def test_rows_that_are_not_there_yet_are_copied():
    K, low, high, beta, _, f = block(n=90)
    whole = np.r_[np.arange(10, 40), np.arange(50, 90)]
    own = numbers_of(low, high, beta, f)[:, whole].copy()
    alone = own.copy()
    copied, limits = np.ascontiguousarray(K[np.ix_(whole, whole)]), (1e-3, 1000, 10**9)
    kernel = SimpleNamespace(rounding=0.0, linear=False)
    pair = MatrixPair(K, 10, 50, kernel, slice(10, 40), slice(50, 90))
    steps = free_steps(pair.rows, own, *limits)
    assert steps == free_steps(all_rows(copied), alone, *limits) > 0
    np.testing.assert_array_equal(own, alone)
