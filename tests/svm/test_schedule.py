"""Which pair of classes comes next, and that no thread waits for a class at the end."""

import threading
from itertools import combinations

import pytest

from gpurbf.svm.pairs import Schedule


@pytest.mark.parametrize(("n_classes", "n_workers"), [(5, 2), (7, 3), (10, 2), (10, 4), (20, 8)])
def test_pairs_of_one_class_are_not_left_for_one_thread(n_classes, n_workers):
    names = list(combinations(range(n_classes), 2))
    done, left = [0] * n_classes, set(names)
    schedule, rounds = Schedule(names, n_classes, done.__getitem__), 0
    while left:  # all take a pair, if there is one, then all are done
        running = []
        while len(running) < n_workers and any(
            all(set(pair).isdisjoint(other) for other in running) for pair in left
        ):
            running.append(names[schedule.take()])
            left.remove(running[-1])
        for pair in running:
            for c in pair:
                done[c] += 1
            schedule.release(names.index(pair))
        rounds += 1
    assert rounds <= 1 + -(-len(names) // n_workers)


def test_a_pair_is_found_by_looking_at_classes_not_at_pairs():
    """There are 4,950 pairs of 100 classes: looking at all for each took seven times the rest."""
    looks = []
    schedule = Schedule(list(combinations(range(100), 2)), 100, lambda c: looks.append(c) or 0)
    while (p := schedule.take()) is not None:
        schedule.release(p)
    assert len(looks) < 3 * 4950


def test_no_class_is_in_two_running_pairs():
    names = list(combinations(range(7), 2))
    schedule = Schedule(names, 7, lambda c: 0)
    running, alone, lock = [], [], threading.Lock()

    def work():
        while (p := schedule.take()) is not None:
            with lock:
                running.append(p)
                classes = [c for q in running for c in names[q]]
                alone.append(len(classes) == len(set(classes)))
            with lock:
                running.remove(p)
            schedule.release(p)

    threads = [threading.Thread(target=work) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(alone) == len(names) and all(alone)
