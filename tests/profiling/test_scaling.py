"""The model of more threads: items handed out as parallel_for does, Python's lock had by one."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

import gpurbf
from gpurbf.profiling.scaling import simulate
from gpurbf.runtime.stages import Recorder, Segment
from gpurbf.runtime.threads import limited, parallel_for

A, B = ("prepare", "a"), ("hidden layer", "b")


def span(seconds, key=B, unlocked=None):
    return Segment(key, seconds, seconds if unlocked is None else unlocked)


def items(*seconds):
    return [[span(each)] for each in seconds]


@pytest.mark.parametrize(
    ("trace", "threads", "seconds"),
    [
        ([span(1.0), items(*[1.0] * 8), span(2.0)], 1, 11),
        ([span(1.0), items(*[1.0] * 8), span(2.0)], 4, 5),
        ([items(3.0, 1.0, 1.0, 1.0)], 2, 3),  # handed out one by one
        ([items(1.0, 1.0, 3.0)], 2, 4),
        ([items(1.0, 1.0)], 64, 1),  # no more threads than items
        ([[]], 4, 0),
        # A nested section gets the threads that have nothing left to do when it begins.
        ([[[span(1.0)], [span(2.0), items(1.0, 1.0)]]], 2, 3),
        # All hold the lock half of the time: no more than two of them at work.
        ([[[span(2.0, B, 1.0)] for _ in range(8)]], 8, 9),
        ([[[span(1.0, B, 0.0)] for _ in range(8)]], 8, 8),
    ],
)
def test_items_are_handed_out_to_the_threads_that_are_free(trace, threads, seconds):
    assert simulate(trace, threads)[0] == pytest.approx(seconds)


def test_the_stage_that_threads_wait_for_is_named():
    seconds, lost = simulate([span(3.0, A), items(1.0, 1.0, 1.0, 1.0)], 4)
    assert seconds == 4 and lost == {A: 9, B: 0}


def test_a_recorder_notes_items_and_what_they_nest():
    def task(i):
        parallel_for(lambda j: None, 3)

    with limited(1), Recorder() as recorder:
        parallel_for(task, 2)
    (section,) = [each for each in recorder.trace if isinstance(each, list)]
    assert len(section) == 2
    assert all(sum(isinstance(each, list) and len(each) == 3 for each in i) == 1 for i in section)


@pytest.mark.parametrize("threads", [1, None])
def test_the_model_of_the_recorded_threads_is_the_recorded_time(threads):
    X, y = load_digits(return_X_y=True)
    model = gpurbf.RBFClassifier(100, n_jobs=threads, random_state=0)
    found = gpurbf.profile(model, X.astype(np.uint8), y)
    one, two, many = found.scaling((1, 2, 1000))
    if threads == 1:
        assert one.seconds == pytest.approx(found.seconds["training"], rel=1e-6)
    # Not many <= two: items handed out in another order may meet at Python's lock.
    assert max(two.seconds, many.seconds) <= one.seconds
    assert two.speed_up == pytest.approx(one.seconds / two.seconds) and two.limit
