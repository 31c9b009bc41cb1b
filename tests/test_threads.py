"""Threads: every item once, errors and interrupts arrive, nested callers share the cores."""

import os
import threading

import numba
import pytest
import threadpoolctl

from gpurbf.backends import threads


def test_every_item_is_done_once():
    for n_items in (0, 1, 2, 100):
        done = []
        threads.parallel_for(done.append, n_items)
        assert sorted(done) == list(range(n_items))


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_an_error_stops_the_handing_out_and_is_raised(error):
    done = []

    def task(i):
        if i == 3:
            raise error("stop")
        done.append(i)

    with pytest.raises(error, match="stop"):
        threads.parallel_for(task, 10_000)
    assert len(done) < 10_000
    threads.parallel_for(done.append, 1)


def test_limits_are_obeyed():
    with threadpoolctl.threadpool_limits(1):
        assert threads.thread_limit() == 1
    with threads.limited(1):
        assert threads.thread_limit() == 1
        names = set()
        threads.parallel_for(lambda i: names.add(threading.get_ident()), 50)
        assert names == {threading.get_ident()}
    names = set()
    threads.parallel_for(lambda i: names.add(threading.get_ident()), 50, most=1)
    assert names == {threading.get_ident()}
    assert threads.thread_limit() <= numba.config.NUMBA_NUM_THREADS


def test_nested_callers_get_no_threads_that_are_taken(monkeypatch):
    monkeypatch.setattr(threads, "thread_limit", lambda: 2)
    counts = []
    both = threading.Barrier(2)

    def outer(i):
        both.wait()  # two callers are at work: nothing is left for helpers
        names = set()
        threads.parallel_for(lambda j: names.add(threading.get_ident()), 20)
        counts.append(len(names))
        both.wait()

    threads.parallel_for(outer, 2)
    assert counts == [1, 1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_threads_of_its_own():
    threads.parallel_for(lambda i: None, 8)
    child = os.fork()
    if child == 0:
        done = []
        threads.parallel_for(done.append, 8)
        os._exit(0 if len(done) == 8 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
