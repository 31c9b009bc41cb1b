"""Conjugate gradients on the free samples of a block: where they end, and what they leave alone."""

import numpy as np
import pytest

from gpurbf.svm.smo import all_rows, part_rows, solve_free

PLENTY = 10**9


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


def objective(K, y, beta):
    return y @ beta - beta @ K.astype(float) @ beta / 2


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("bound", [1.0, 1e6])
def test_the_free_end_where_none_of_them_gains_and_the_others_stay(bound, dtype):
    K, low, high, beta, y, f = block(bound=bound, dtype=dtype)
    closed, before, start = (beta == low) | (beta == high), beta.copy(), objective(K, y, beta)
    steps = solve_free(all_rows(K), low, high, beta, f, 1e-3, 1000, PLENTY)
    free = (low < beta) & (beta < high)
    assert 0 < steps < 1000
    assert np.ptp(f[free]) < 1e-3 and free.sum() > 2
    assert f == pytest.approx(y - K.astype(float) @ beta, abs=1e-9 * bound)
    assert (low <= beta).all() and (beta <= high).all()
    assert beta.sum() == pytest.approx(before.sum(), abs=1e-10 * bound)
    np.testing.assert_array_equal(beta[closed], before[closed])
    assert objective(K, y, beta) > start


def test_who_comes_to_a_bound_is_exactly_there():
    # Of few dimensions: the dual is linear in most directions and ends at bounds.
    K, low, high, beta, _, f = block(rank=5)
    before = ((low < beta) & (beta < high)).sum()
    solve_free(all_rows(K), low, high, beta, f, 1e-3, 1000, PLENTY)
    after = ((low < beta) & (beta < high)).sum()
    assert after < before / 2
    assert not ((low < beta) & (beta < low + 1e-12)).any()
    assert not ((high > beta) & (beta > high - 1e-12)).any()


@pytest.mark.parametrize("most", [0, 1, 3])
def test_directions_are_limited(most):
    K, low, high, beta, y, f = block(bound=1e6)
    assert solve_free(all_rows(K), low, high, beta, f, 1e-9, most, PLENTY) == most
    assert f == pytest.approx(y - K.astype(float) @ beta, abs=1e-4)


def test_nothing_is_done_that_might_read_more_than_it_may():
    K, low, high, beta, _, f = block()
    m = int(((low < beta) & (beta < high)).sum())
    before = beta.copy(), f.copy()
    assert solve_free(all_rows(K), low, high, beta, f, 1e-9, 1000, m**3 - 1) == 0
    np.testing.assert_array_equal((beta, f), before)
    assert solve_free(all_rows(K), low, high, beta, f, 1e-9, 1000, m**3) > 0


def test_an_indefinite_kernel_ends_at_bounds():
    K, low, high, beta, y, f = block()
    K -= 2 * np.eye(len(K), dtype=K.dtype)
    start = objective(K, y, beta)
    assert solve_free(all_rows(K), low, high, beta, f, 1e-3, 1000, PLENTY) < 1000
    assert (low <= beta).all() and (beta <= high).all()
    assert objective(K, y, beta) > start


def test_without_bounds_an_indefinite_kernel_is_left():
    K, _, _, beta, _, f = block()
    K -= 3 * np.eye(len(K), dtype=K.dtype)
    endless = np.full(len(K), np.inf)
    steps = solve_free(all_rows(K), -endless, endless, beta, f, 1e-3, 1000, PLENTY)
    assert steps < 1000
    assert np.isfinite(beta).all() and np.isfinite(f).all()


def test_rows_that_are_not_there_yet_are_copied():
    K, low, high, beta, _, f = block(n=90)
    whole = np.r_[np.arange(10, 40), np.arange(50, 90)]
    own = [values[whole] for values in (low, high, beta, f)]
    alone = [values.copy() for values in own]
    rows = part_rows(K, slice(10, 40), slice(50, 90))
    steps = solve_free(rows, *own, 1e-3, 1000, PLENTY)
    copied = np.ascontiguousarray(K[np.ix_(whole, whole)])
    assert steps == solve_free(all_rows(copied), *alone, 1e-3, 1000, PLENTY) > 0
    np.testing.assert_array_equal(own, alone)
