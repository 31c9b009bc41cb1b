"""Around the steps of SVC's solver: who is chosen, where rows are kept, what they change."""

import numpy as np
import pytest

from gpurbf.backends.loops_smo import mirror_rows, subtract_rows
from gpurbf.kernels import sets


@pytest.mark.parametrize("decimals", [0, 8])
@pytest.mark.parametrize("n", [1, 7, 40, 200])
def test_the_worst_are_chosen_and_of_equals_the_first(n, decimals):
    rng = np.random.default_rng(n)
    f = np.round(rng.normal(size=150), decimals) + 0.0
    up, down = f.copy(), f.copy()
    up[rng.random(150) < 0.3], down[rng.random(150) < 0.3] = -np.inf, np.inf
    kept = rng.permutation(150)[:20]
    found = sets.worst(up, down, kept, n)
    up[kept], down[kept] = -np.inf, np.inf
    rising = [k for k in np.argsort(-up, kind="stable")[:n] if up[k] > -np.inf]
    down[rising] = np.inf
    falling = [k for k in np.argsort(down, kind="stable")[:n] if down[k] < np.inf]
    np.testing.assert_array_equal(found, np.sort(rising).tolist() + np.sort(falling).tolist())


def test_rows_are_where_they_are_said_to_be_and_the_longest_unused_give_way():
    rng = np.random.default_rng(0)
    slot_of, owner, used = np.full(30, -1), np.full(12, -1), np.full(12, -1)
    vacant = len(owner)
    for clock in range(1, 60):
        members = rng.permutation(30)[: rng.integers(1, 13)]
        absent, before, last = slot_of[members] < 0, owner.copy(), used.copy()
        assert sets.count_absent(members, slot_of) == absent.sum()
        slots, missing, where = sets.place(members, slot_of, owner, used, len(owner), clock, vacant)
        vacant = max(0, vacant - len(missing))
        np.testing.assert_array_equal(missing, members[absent])
        np.testing.assert_array_equal(slots[absent], where)
        np.testing.assert_array_equal(owner[slots], members)
        np.testing.assert_array_equal(slot_of[members], slots)
        assert (np.diff(where) > 0).all() and len(set(slots)) == len(members)
        there = np.flatnonzero(owner >= 0)
        np.testing.assert_array_equal(slot_of[owner[there]], there)
        assert (slot_of >= 0).sum() == len(there) == len(owner) - vacant
        left = np.setdiff1d(np.arange(len(owner)), slots)
        assert not len(left) or not len(where) or last[where].max() <= last[left].min()
        np.testing.assert_array_equal(owner[left], before[left])


def test_those_that_change_are_put_back_with_their_changes():
    beta, members = np.arange(6.0), np.array([4, 1, 3])
    changed, change = sets.put_back(members, np.array([4.5, 1.0, 0.0]), beta)
    np.testing.assert_array_equal(changed, [4, 3])
    np.testing.assert_array_equal(change, [0.5, -3.0])
    np.testing.assert_array_equal(beta, [0, 1, 2, 0, 4.5, 5])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_are_subtracted_in_float64(dtype):
    rng = np.random.default_rng(0)
    K = rng.normal(size=(50, 5000)).astype(dtype)
    slots, f = rng.permutation(50)[:41], rng.normal(size=4000)
    change = rng.normal(size=41)
    expected = f - change @ K[slots, 700:4700].astype(float)
    subtract_rows(K, slots, change, f, 700)
    assert f == pytest.approx(expected, abs=1e-11)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    "n, begin, end", [(64, 0, 32), (64, 32, 64), (50, 7, 30), (33, 0, 33), (5, 4, 5)]
)
def test_rows_of_a_block_are_mirrored(n, begin, end, dtype):
    K = np.random.default_rng(0).random((n, n)).astype(dtype)
    K += K.T
    found = K.copy()
    found[:begin, begin:end] = found[end:, begin:end] = np.nan
    mirror_rows(found, slice(begin, end))
    np.testing.assert_array_equal(found, K)
