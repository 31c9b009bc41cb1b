"""Around the steps of SVC's solver: who is chosen, where rows are kept, what they change."""

import numpy as np
import pytest

from gpurbf.svm import _working_set_kernels


def _set(f, beta, low, high, previous, last, size, goal=-np.inf):
    diagonal, scratch = np.arange(len(f)) / 8, np.empty((2, len(f)))
    return _working_set_kernels.next_set(
        beta, f, low, high, diagonal, scratch, previous, last, size, goal
    )


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
    np.testing.assert_array_equal(values, [own[members] for own in expected])


def test_rows_are_where_they_are_said_to_be_and_the_longest_unused_give_way():
    rng = np.random.default_rng(0)
    slot_of, owner, used = np.full(30, -1), np.full(12, -1), np.full(12, -1)
    row, samples = np.cumsum(rng.integers(1, 4, 12)), rng.permutation(30) + 100
    counts = np.array([0, len(owner), len(owner)])
    own = _working_set_kernels.Slots(row, owner, used, slot_of, counts)
    for clock in range(1, 60):
        members = rng.permutation(30)[: rng.integers(1, 13)]
        absent, before, last = slot_of[members] < 0, owner.copy(), used.copy()
        wanted = _working_set_kernels.slots_wanted(members, own)
        assert wanted == max(0, absent.sum() - counts[1])
        places, missing, where = _working_set_kernels.place(members, samples, own)
        assert (used[np.searchsorted(row, places)] == clock).all()
        np.testing.assert_array_equal(missing, samples[members[absent]])
        np.testing.assert_array_equal(places[absent], where)
        slots, filled = np.searchsorted(row, places), np.searchsorted(row, where)
        np.testing.assert_array_equal(row[slots], places)
        np.testing.assert_array_equal(owner[slots], members)
        np.testing.assert_array_equal(slot_of[members], slots)
        assert (np.diff(where) > 0).all() and len(set(slots)) == len(members)
        there = np.flatnonzero(owner >= 0)
        np.testing.assert_array_equal(slot_of[owner[there]], there)
        assert (slot_of >= 0).sum() == len(there) == len(owner) - counts[1]
        left = np.setdiff1d(np.arange(len(owner)), slots)
        assert not len(left) or not len(where) or last[filled].max() <= last[left].min()
        np.testing.assert_array_equal(owner[left], before[left])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "n, begin, end", [(64, 0, 32), (64, 32, 64), (50, 7, 30), (33, 0, 33), (5, 4, 5)]
)
def test_rows_of_a_block_are_mirrored(n, begin, end, dtype):
    K = np.random.default_rng(0).random((n, n)).astype(dtype)
    K += K.T
    found = K.copy()
    found[:begin, begin:end] = found[end:, begin:end] = np.nan
    for first, last in ((0, begin), (end, n)):
        _working_set_kernels.mirror_rows(found, begin, end, first, last)
    np.testing.assert_array_equal(found, K)
