"""Threads: every item once, errors arrive, limits travel with the work, callers share the cores."""

import _thread
import functools
import queue
import random
import sys
import threading
import time
from collections import Counter
from unittest.mock import Mock

import joblib
import numba
import numpy as np
import pytest
import threadpoolctl
from callers import (
    everything,
    exit_code_of_a_child,
    forks,
    interrupts,
    run_python,
    run_threads,
    shared_numbers,
)
from sklearn.base import clone
from sklearn.datasets import load_digits

from gpurbf import SVC, RBFClassifier, config_context, get_config
from gpurbf.runtime import threads


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
    names = set()
    threads.parallel_for(lambda i: names.add(threading.get_ident()), 50, most=1)
    assert names == {threading.get_ident()}
    assert threads.thread_limit() <= numba.config.NUMBA_NUM_THREADS


def test_a_helper_that_begins_when_the_section_is_over_frees_nobody(cores):
    with threads.limited(cores), threads._claimed(3) as claim:
        pass
    claim.free()
    assert claim.held == 0 and all(limit.helpers == 0 for limit in claim.limits)


def test_where_no_thread_can_be_started_the_caller_does_everything(cores, monkeypatch):
    done, here = [], threading.get_ident()
    monkeypatch.setattr(threads, "_idle", [])
    no_thread = Mock(side_effect=RuntimeError("no more"))
    monkeypatch.setattr(threads, "_thread", Mock(start_new_thread=no_thread))
    threads.parallel_for(lambda i: done.append((i, threading.get_ident())), 20)
    assert done == [(i, here) for i in range(20)]
    assert not threads._callers and not threads._limits.get()


def test_nobody_is_woken_for_a_section_that_is_over(cores, monkeypatch):
    woken = []
    with monkeypatch.context() as patch:
        patch.setattr(threads, "start", lambda call: woken.append(call) or call)  # they sleep on
        threads.parallel_for(lambda i: None, 100)
    assert len(woken) == 2
    with threads._claimed(99) as claim:  # those that were not needed are free again
        assert claim.held == cores - 1


@pytest.mark.parametrize("last", [0, 1])
def test_a_thread_without_items_left_helps_in_the_last_one(monkeypatch, last):
    # Item `last` goes on until a nested section has two threads at the same time. Whether the
    # caller does this item or its helper, the other one has nothing left to do.
    monkeypatch.setattr(threads, "_cores", lambda: 2)
    met, both = threading.Event(), threading.Barrier(2)

    def meet(i):
        try:
            both.wait(timeout=0.05)
        except threading.BrokenBarrierError:
            both.reset()
        else:
            met.set()

    def task(i):
        for _ in range(200 if i == last else 0):
            if not met.is_set():
                threads.parallel_for(meet, 2)

    threads.parallel_for(task, 2)
    assert met.is_set()


def test_helpers_inherit_the_limit_and_the_settings(cores):
    seen, both = [], threading.Barrier(2, timeout=60)

    def task(i):
        both.wait()  # the caller and its helper
        seen.append((threads.thread_limit(), get_config()["memory"]))
        with threads.limited(5):
            seen.append((threads.thread_limit(), get_config()["memory"]))
        both.wait()

    with threads.limited(2), config_context(memory=7):
        threads.parallel_for(task, 2)
    assert seen == 4 * [(2, 7)]


@pytest.mark.parametrize(
    "outer, inner, n_threads, left, most",
    [(5, None, 3, 2, 2), (None, 2, 2, 2, 1), (3, None, 3, 0, 0), (None, None, 8, 0, 0)],
)
def test_inner_calls_share_an_outer_limit_and_an_inner_one_is_its_part_s_alone(
    cores, outer, inner, n_threads, left, most
):
    """Three threads for an outer call leave two of five to the calls inside it, and none of three.

    Nor is anything left where as many threads are at work as there are cores. All are woken: they
    meet.
    """
    together, found = threading.Barrier(n_threads, timeout=60), []

    def task(i):
        together.wait()
        with threads.limited(inner), threads._claimed(7) as claim:
            found.append(claim.held)
            together.wait()

    with threads.limited(outer):
        threads.parallel_for(task, n_threads)
    assert sum(found) == left and max(found) <= most


@pytest.mark.parametrize("limits", [(3, 5), (5, 3), (1, 7), (2, 4), (1, 1)])
def test_callers_whose_limits_fit_the_machine_get_them(cores, callers, limits):
    for caller, limit in zip(callers, limits):
        caller.enter(threads.limited, limit)
    helpers = [caller.enter(threads._claimed, 100).held for caller, _ in zip(callers, limits)]
    assert helpers == [limit - 1 for limit in limits]


@pytest.mark.parametrize("others, own", [([None], 4), ([1], 7), ([2], 6), ([1, 1], 6), ([1, 6], 4)])
def test_a_caller_gets_what_the_others_by_their_limits_cannot_use(cores, callers, others, own):
    first, *rest = callers
    for caller, limit in zip(rest, others):
        caller.enter(threads.limited, limit)
        caller.enter(threads._claimed, 0)  # at work alone, with a right to its share
    assert first.enter(threads._claimed, 100).held == own - 1
    for caller in rest:
        caller.leave()
    first.leave()
    assert first.enter(threads._claimed, 100).held == cores - 1


def test_who_came_late_gets_its_share_when_the_first_calls_again(cores, callers):
    first, late, *_ = callers
    for caller, helpers in [(first, 7), (late, 0), (first, 3), (late, 3)]:
        caller.leave()
        assert caller.enter(threads._claimed, 100).held == helpers


def test_no_helper_is_taken_where_cores_and_limits_are_used_up(cores, callers):
    """Callers come and go at random, with limits and calls inside calls."""
    rng, limits, held = random.Random(0), {}, {}
    for _ in range(500):
        caller = rng.choice(callers)
        if held.get(caller) and rng.random() < 0.5:
            caller.leave()
            del held[caller], limits[caller]
            continue
        if caller not in limits:
            limits[caller] = rng.choice([1, 2, 3, 5, 8])
            caller.enter(threads.limited, limits[caller])
        helpers = caller.enter(threads._claimed, rng.choice([0, 1, 3, 100])).held
        held.setdefault(caller, []).append(helpers)
        assert sum(held[caller]) <= limits[caller] - 1
        assert not helpers or len(held) + sum(map(sum, held.values())) <= cores
        assert helpers >= 0


def test_threads_at_work_for_a_caller_are_never_more_than_its_limit(cores):
    limits = 1, 2, 3, 8
    lock, at_work, most = threading.Lock(), Counter(), Counter()
    together = threading.Barrier(len(limits), timeout=60)

    def item(limit, inside):
        here = limit, threading.get_ident()
        with lock:
            at_work[here] += 1
            most[limit] = max(most[limit], sum(who == limit for who, _ in +at_work))
        inside()
        with lock:
            at_work[here] -= 1

    def caller(limit):
        def nested():
            threads.parallel_for(lambda i: item(limit, lambda: time.sleep(1e-4)), 4)

        with threads.limited(limit):
            together.wait()
            for _ in range(20):
                threads.parallel_for(lambda i: item(limit, nested), 6)

    run_threads(*(functools.partial(caller, limit) for limit in limits))
    assert all(most[limit] <= limit for limit in limits) and max(most.values()) > 1
    assert not threads._callers


def test_two_threads_that_fit_leave_blas_numba_and_joblib_as_they_were():
    X, y = load_digits(return_X_y=True)
    models = [RBFClassifier(50, random_state=0), SVC(cache_size=1)]
    expected = [model.fit(X[:500], y[:500]).predict(X) for model in models]
    before = everything(), numba.get_num_threads(), joblib.effective_n_jobs(-1)

    def fit(n_jobs):
        for _ in range(20):
            for model, answers in zip(models, expected):
                own = clone(model).set_params(n_jobs=n_jobs).fit(X[:500], y[:500])
                np.testing.assert_array_equal(own.predict(X), answers)

    run_threads(functools.partial(fit, 1), functools.partial(fit, 2))
    assert (everything(), numba.get_num_threads(), joblib.effective_n_jobs(-1)) == before


@forks
def test_a_forked_child_has_its_own_threads_and_the_limits_of_its_own_thread_only(callers, cores):
    before, done = shared_numbers(), []
    threads.parallel_for(done.append, 8)  # the parent has idle threads
    callers[0].enter(threads.limited, 1)

    def keeps_three():
        good = threads.thread_limit() == 3
        good &= shared_numbers() == {path: min(3, number) for path, number in before.items()}
        threads.parallel_for(done.append, 8)
        with threads._claimed(100) as claim:
            return good and claim.held == 2 and len(done) == 16

    with threads.limited(3), threads._claimed(1) as claim:  # whose helper is not the child's
        callers[1].enter(threads._claimed, 100)
        assert claim.held == 1 and exit_code_of_a_child(keeps_three) == 0


def test_settings_and_limits_are_a_thread_s_own():
    with config_context(memory=7), threads.limited(1):
        ((settings, limit),) = run_threads(lambda: (get_config(), threads.thread_limit()))
        # Python without its global lock hands the context on to threads that are started in it.
        inherits = bool(getattr(sys.flags, "thread_inherit_context", False))
        assert (settings["memory"] == 7) == inherits
        expected = threads.thread_limit()
    assert limit == (expected if inherits else threads.thread_limit())


def test_short_calls_start_no_more_threads_than_they_may_use():
    """Who has nothing left to do before a helper has begun takes the call back."""
    idle = len(threads._idle)
    for _ in range(3000):
        threads.parallel_for(lambda i: None, 2)
    assert len(threads._idle) <= idle + 2


def test_a_call_that_is_taken_back_too_late_leaves_that_of_others():
    """A read of the next rows, taken from its thread by another caller, would be waited for."""
    mine, another = threads.Call(int), threads.Call(int)
    mine.queue = another.queue = queue.SimpleQueue()
    another.queue.put(another)  # the thread has made my call, and gone idle
    idle = list(threads._idle)
    threads._take_back(mine)
    assert threads._idle == idle and another.queue.get_nowait() is another


@pytest.mark.skipif(threads.thread_limit() < 2, reason="one thread")
@pytest.mark.parametrize("ends", [KeyError, KeyboardInterrupt])
def test_an_error_in_another_thread_ends_what_the_caller_does_and_an_interrupt_the_reverse(ends):
    working, stopped, ended = threading.Event(), threading.Event(), []

    def task(i):
        here = threading.current_thread() is threading.main_thread()
        if here == (ends is KeyError):  # the one that is to be ended
            working.set()
            if not here:
                time.sleep(0.1)  # the caller has nothing left to do, and waits
                _thread.interrupt_main()
            ended.append(stopped.wait(60))
            return
        assert working.wait(60)  # each has an item
        if not here:
            raise KeyError("there")

    with interrupts(), pytest.raises(ends):
        threads.parallel_for(task, 2, stop=stopped.set)
    assert ended == [True]


INTERRUPTED = """
import dis
import gc
import itertools
import sys
from gpurbf import config_context, get_config
from gpurbf.runtime.errors import _quiet, quiet
from gpurbf.runtime.lazy import without_collecting
from gpurbf.runtime.threads import parallel_for
from gpurbf.svm.pairs import Schedule

def numbers():
    found = []
    parallel_for(found.append, 4)
    assert sorted(found) == [0, 1, 2, 3]

def pairs():
    all_pairs = list(itertools.combinations(range(4), 2))
    schedule, found = Schedule(all_pairs, 4, lambda c: 0), []
    def work(_):
        found.append(p := schedule.take())
        schedule.release(p)
    parallel_for(work, 6)
    assert sorted(found) == list(range(6))

def settings():
    assert get_config() == before and not _quiet.get() and gc.isenabled()
    with config_context(memory=7), quiet(), without_collecting():
        pass

before = get_config()
LOOKS = "CALL", "JUMP_BACKWARD", "RESUME"  # where the interpreter looks for signals, at the end

def interrupted(call, k):
    # Whether it was, where this thread looks for the k-th time.
    times, last = 0, {}
    def step(frame, event, argument):
        nonlocal times
        frame.f_trace_opcodes = True
        if event == "opcode":
            looked = last.get(frame, "").startswith(LOOKS)
            times += looked
            last[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            if times == k and looked:
                raise KeyboardInterrupt
        return step
    sys.settrace(step)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
        last.clear()  # frames, and with them what was left in them
    return times >= k

for call in (numbers, pairs, settings):
    for k in itertools.count(1):
        more = interrupted(call, k)
        call()
        if not more:
            break
    assert k > 50, k
"""


@pytest.mark.skipif(sys.version_info[:2] == (3, 12), reason="Python 3.12 traces no opcodes")
def test_an_interrupt_at_any_moment_lets_the_next_call_work():
    """And the process end: threads that wait for ever would hold it."""
    run_python(INTERRUPTED)


def test_a_quota_that_joblib_knows_limits_threads_unless_numba_is_given_a_number(monkeypatch):
    monkeypatch.setattr(joblib, "cpu_count", lambda: 2)
    monkeypatch.setattr(threads, "_quota", threads._quota.__wrapped__)
    monkeypatch.setattr(threads.blas_threads, "found", lambda: [9])
    monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", 8)
    monkeypatch.delenv("NUMBA_NUM_THREADS", raising=False)
    assert threads._cores() == 2
    monkeypatch.setenv("NUMBA_NUM_THREADS", "8")
    assert threads._cores() == 8
