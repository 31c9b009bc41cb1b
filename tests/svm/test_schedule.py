"""Which pair of classes comes next, and that no thread waits for a class."""

from itertools import combinations

import numpy as np
import pytest

from gpurbf.svm.pairs import Schedule


@pytest.mark.parametrize(("n_classes", "n_workers"), [(5, 2), (7, 3), (10, 2), (10, 4), (20, 8)])
def test_pairs_of_one_class_are_not_left_for_one_thread(n_classes, n_workers):
    names = list(combinations(range(n_classes), 2))
    done, left = [0] * n_classes, set(names)
    schedule, rounds = Schedule(names, n_classes, done.__getitem__), 0
    while left:  # all take a pair, if there is one, then all are done
        running, busy = [], set()
        while len(running) < n_workers and any(busy.isdisjoint(pair) for pair in left):
            running.append(schedule.take())
            left.remove(names[running[-1]])
            busy.update(names[running[-1]])
        for p in running:
            for c in names[p]:
                done[c] += 1
            schedule.release(p)
        rounds += 1
    assert rounds <= 1 + -(-len(names) // n_workers)


def test_a_pair_is_found_by_looking_at_classes_not_at_pairs():
    """There are 4,950 pairs of 100 classes: looking at all for each took seven times the rest."""
    looks = []
    schedule = Schedule(list(combinations(range(100), 2)), 100, lambda c: looks.append(c) or 0)
    for _ in range(4950):
        schedule.release(schedule.take())
    assert len(looks) < 3 * 4950


def test_nobody_waits_and_pairs_whose_classes_nobody_works_on_come_first():
    names, rng, running = list(combinations(range(7), 2)), np.random.default_rng(0), []
    schedule, left = Schedule(names, 7, lambda c: 0), set(names)
    while left:
        for _ in range(min(len(running), rng.integers(0, 4))):
            schedule.release(running.pop(rng.integers(len(running))))
        in_use = {c for p in running for c in names[p]}
        running.append(schedule.take())
        alone = [pair for pair in left if in_use.isdisjoint(pair)]
        assert names[running[-1]] in (alone or left)
        left.remove(names[running[-1]])
    assert len(running) == sum(schedule._in_use) / 2


def test_many_threads_begin_with_pairs_without_a_common_class_and_end_with_the_shortest():
    names = list(combinations(range(7), 2))
    lengths = np.random.default_rng(0).random(len(names))
    schedule, order = Schedule(names, 7, lambda c: 0, lengths), []
    for _ in names:
        order.append(schedule.take())
        schedule.release(order[-1])
    assert sorted(order) == list(range(len(names)))
    assert len({c for p in order[:3] for c in names[p]}) == 6
    assert (np.diff(lengths[order[3:]]) <= 0).all()
