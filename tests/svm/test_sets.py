"""Around the steps of SVC's solver: who is chosen, where rows are kept, what they change."""

import numpy as np
import pytest

from gpurbf.svm import _working_set_kernels, kernel_matrix


def _set(f, beta, low, high, previous, last, size, goal=-np.inf):
    numbers = np.array([np.arange(len(f)) / 8, low, high, beta, f, f, f])
    return _working_set_kernels.next_set(numbers, previous, last, size, goal)


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("decimals", [0, 8])
@pytest.mark.parametrize("half", [1, 7, 40, 200])
def test_half_of_a_set_stays_and_the_worst_come_of_equals_the_first(half, decimals, last):
    rng = np.random.default_rng(half)
    f = np.round(rng.normal(size=150), decimals) + 0.0
    low, high, beta = -rng.random(150), rng.random(150), np.zeros(150)
    beta[rng.random(150) < 0.3] = -2.0  # these may not fall
    beta[rng.random(150) < 0.3] = 2.0  # and these not rise
    previous = rng.permutation(150)[:40]
    kept = previous[20:] if last else previous[:20]
    violation, members, begin, end, values = _set(f, beta, low, high, previous, last, 20 + 2 * half)
    up, down = np.where(beta < high, f, -np.inf), np.where(beta > low, f, np.inf)
    assert violation == up.max() - down.min()
    up[kept], down[kept] = -np.inf, np.inf
    rising = [k for k in np.argsort(-up, kind="stable")[:half] if up[k] > -np.inf]
    down[rising] = np.inf
    falling = [k for k in np.argsort(down, kind="stable")[:half] if down[k] < np.inf]
    others = np.sort(rising).tolist() + np.sort(falling).tolist()
    np.testing.assert_array_equal(members[begin:end], others)
    np.testing.assert_array_equal(np.delete(members, np.r_[begin:end]), kept)
    assert begin == 0 if last else end == len(members)
    expected = [np.arange(150) / 8, low, high, beta, f]
    np.testing.assert_array_equal(values[:5], [own[members] for own in expected])


def test_rows_that_are_the_longest_unused_give_way():
    """That rows are where they are said to be is in test_smo.py: memory changes no bit."""
    rng, slot_of, used = np.random.default_rng(0), np.full(30, -1), np.full(12, -1)
    own = _working_set_kernels.Slots(
        np.arange(12), np.full(12, -1), used, slot_of, np.array([0, 12, 12])
    )
    for clock in range(1, 60):
        members, last = rng.permutation(30)[: rng.integers(1, 13)], used.copy()
        absent = slot_of[members] < 0
        _working_set_kernels.place(members, np.arange(30), own)
        assert (used[slot_of[members]] == clock).all()
        filled, left = slot_of[members[absent]], np.flatnonzero(used < clock)
        assert not len(left) or not len(filled) or last[filled].max() <= last[left].min()


@pytest.mark.parametrize("n_rows, n_parts", [(2, 1), (80, 3), (1000, 16)])
def test_f_is_cut_for_as_many_threads_as_the_change_is_work_for(monkeypatch, n_rows, n_parts):
    parts, K, f = [], np.random.default_rng(0).normal(size=(n_rows, 20_000)), np.zeros(20_000)

    def cut(task, n, rows):
        for start in range(0, n, rows):
            parts.append(slice(start, min(start + rows, n)))
            task(parts[-1])

    monkeypatch.setattr(kernel_matrix, "parallel_rows", cut)
    monkeypatch.setattr(kernel_matrix, "planned_threads", lambda: 16)
    change = np.linspace(-1, 1, n_rows)
    kernel_matrix.subtract_rows(K, np.arange(n_rows), change, f)
    assert len(parts) == n_parts
    np.testing.assert_allclose(f, -change @ K, rtol=0, atol=1e-9)
