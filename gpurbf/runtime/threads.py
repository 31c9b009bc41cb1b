"""Threads for the nogil kernels: only this module decides how many threads each caller may use.

A *caller* is a thread inside an outermost ``parallel_for``. Threads that do some of its items are
its *helpers*, and so are those of calls nested in them. The rules:

* A limit belongs to work, not to the process. ``limited(n)`` holds for its thread and for the
  helpers of that thread, as settings (``config_context``) do; a nested limit can only be lower.
* A caller always has its own thread. It gets helpers while fewer threads are at work than the
  process may use, up to an equal share of that number. If limits keep other callers from using
  their shares, it may use these threads too.
* BLAS libraries use the least of the limits in force (blas_threads.py).

Nothing else is set: neither Numba's nor joblib's threads, nor the environment.

An interrupt may come between any two steps of the thread that it is sent to. One of Python's
built-in locks, held only within a ``with``, is then released. Conditions, events and futures are
written in Python; an interrupt at certain steps leaves one of their locks held for ever. So none of
them is used here.
"""

from __future__ import annotations

import _thread
import functools
import itertools
import numbers
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar, copy_context
from queue import Empty, SimpleQueue
from typing import Any
from weakref import WeakSet

import joblib

from gpurbf.runtime import blas_threads
from gpurbf.runtime.lazy import Lock, lazy_module
from gpurbf.runtime.stages import is_recorded, parallel_section, time_unlocked

jit = lazy_module("gpurbf.runtime.jit")


# Seconds after which a waiting thread looks again, in case an interrupt has lost the signal.
AGAIN = 0.05
# Threads that work is cut for in a profile, which models as many and more.
_RECORDED_THREADS = 16


class _Limit:
    """How many threads may work on something, and how many helpers do so now.

    Attributes
    ----------
    most, blas : int
        Threads of ours, and those of BLAS.
    cores : int
        Threads that the process may use.
    helpers : int
        Threads at work under this limit but for the caller's.
    over : bool
        Whether its block has ended.
    """

    def __init__(self, most: int, blas: int, cores: int) -> None:
        self.most, self.blas, self.cores = most, blas, cores
        self.helpers, self.over = 0, False


# The limits of this thread, each around those before it. Helpers work in copies of their caller's
# context (contextvars): these limits and the settings.
_limits: ContextVar[tuple[_Limit, ...]] = ContextVar("gpurbf threads", default=())
_lock = Lock()
# The outermost limits of callers. What an interrupt leaves behind in a weak set vanishes by itself.
_callers: WeakSet[_Limit] = WeakSet()
# The queues at which idle threads wait, one each. A call never waits for a busy thread: if none is
# idle, a new thread is started.
_idle: list[SimpleQueue[Call]] = []


def _after_fork() -> None:
    """Reset all counts in a forked child, which has none of its parent's threads."""
    global _callers
    _callers = WeakSet()
    _idle.clear()
    for limit in _limits.get():
        limit.helpers = 0
    blas_threads.after_fork(_limits.get())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@functools.cache  # read once, as Numba reads its own
def _quota() -> int:
    """joblib's number of cores, which a container's quota limits; Numba's variable replaces it."""
    return sys.maxsize if "NUMBA_NUM_THREADS" in os.environ else joblib.cpu_count()


def _cores() -> int:
    """How many threads the process may use: the least of what Numba, NumPy's BLAS and joblib allow.

    joblib's workers set the first two through their environment (one thread each under loky), and
    ``threadpoolctl.threadpool_limits`` sets that of BLAS.
    """
    return max(1, min([jit.numba.config.NUMBA_NUM_THREADS, _quota(), *blas_threads.found()]))


def _current() -> tuple[_Limit, ...]:
    """This thread's limits; outside of all, a new one of what the settings of libraries allow.

    Within a limit, the settings that it began with are used: asking all libraries takes as long as
    a small block of a layer.
    """
    if limits := _limits.get():
        return limits
    most = cores = _cores()
    # numba.get_num_threads() would start Numba's own threads: ask only where they run already.
    if getattr(sys.modules.get("numba.np.ufunc.parallel"), "_is_initialized", False):
        most = min(cores, sys.modules["numba"].get_num_threads())
    return (_Limit(most, most, cores),)


def thread_limit() -> int:
    """How many threads this thread's work may use, if no other caller is at work."""
    return _current()[0].most


def planned_threads() -> int:
    """Number of threads to divide work for: the limit, and at least 16 while a profile records."""
    return max(_RECORDED_THREADS, thread_limit()) if is_recorded() else thread_limit()


def limited(n_jobs: int | None) -> AbstractContextManager[None]:
    """Use at most ``n_jobs`` threads inside the block (None: no limit of its own, -1: all)."""
    if n_jobs is None:
        return nullcontext()
    if isinstance(n_jobs, bool) or not isinstance(n_jobs, numbers.Integral) or n_jobs == 0:
        raise ValueError(
            "n_jobs must be None, a number of threads >= 1, or -1 for all of them, -2 for all but "
            f"one and so on; got {n_jobs!r}."
        )
    return _at_most(joblib.effective_n_jobs(int(n_jobs)))


@contextmanager
def single_threaded_blas() -> Iterator[None]:
    """Give BLAS one thread in the block; the number of our own threads does not change.

    BLAS threads synchronize after every product, and spin while they wait for the next, in OpenBLAS
    for some 25 ms. Nobody else has the core meanwhile, which costs seconds if others need it.
    """
    with _at_most(sys.maxsize, blas=1):
        yield


@contextmanager
def _at_most(most: int, blas: int = sys.maxsize) -> Iterator[None]:
    """Limit our threads in the block to `most`, and BLAS's to the lesser of this and `blas`.

    The cores are counted before BLAS is limited, because its number of threads limits them.
    """
    outer, now = _limits.get(), _current()[0]
    limit = _Limit(min(most, now.most), min(most, blas, now.blas), now.cores)
    try:
        _limits.set((limit, *outer))
        with blas_threads.in_force(limit):
            yield
    finally:
        # After an interrupt Python may end a block later than those around it: it changes nothing.
        # Python looks for interrupts after calls and jumps, so none comes before these two steps.
        limit.over = True
        _limits.set(_limits.get() if outer and outer[0].over else outer)


def _share(caller: _Limit, callers: list[_Limit], cores: int) -> int:
    """The threads of a caller, itself among them, where all callers share the cores fairly."""
    waiting = len(callers)
    for each in sorted(callers, key=lambda each: each.most):
        part = min(each.most, max(1, cores // waiting))
        if each is caller:
            break
        cores, waiting = cores - part, waiting - 1
    return part


class _Claim:
    """The helpers of a section. A thread without items left is free for others at once."""

    def __init__(self, limits: tuple[_Limit, ...]) -> None:
        self.limits, self.held, self.outermost = limits, 0, False

    def add(self, number: int) -> None:
        """Add to the number of helpers under all limits; the caller holds the lock."""
        self.held += number
        for each in self.limits:
            each.helpers += number

    def free(self) -> None:
        """Release a thread of this section, so that others can have it."""
        with _lock.held:
            if self.held:  # else the section was over before this thread began
                self.add(-1)


@contextmanager
def _claimed(wanted: int) -> Iterator[_Claim]:
    """Reserve the helpers that this thread may have now, for the block."""
    outer, limits = _limits.get(), _current()
    claim, caller, cores = _Claim(limits), limits[-1], limits[0].cores
    try:
        _limits.set(limits)
        with _lock.held:
            claim.outermost = caller not in _callers
            _callers.add(caller)
            if wanted:
                callers = list(_callers)
                room = [each.most - 1 - each.helpers for each in limits]
                room.append(_share(caller, callers, cores) - 1 - caller.helpers)
                room.append(cores - len(callers) - sum(each.helpers for each in callers))
                claim.add(max(0, min(wanted, *room)))
        yield claim
    finally:
        limits[0].over |= not outer  # as in `_at_most`
        _limits.set(_limits.get() if outer and outer[0].over else outer)
        with _lock.held:
            claim.add(-claim.held)
            if claim.outermost:
                _callers.discard(caller)


class Call:
    """A call of a function by another thread: whether it has begun and ended, and its error."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self.queue: SimpleQueue[Call] | None = None  # of the thread that it is given to
        self.begun = self.ended = False
        self.error: BaseException | None = None
        self._over = threading.Lock()
        self._over.acquire()

    def __call__(self) -> None:
        self.begun = True
        try:
            self._function()
        except BaseException as error:
            self.error = error
        self.ended = True
        self._over.release()

    def wait(self) -> None:
        """Wait until the call has ended."""
        while not self.ended:
            self._over.acquire(timeout=AGAIN)


def start(call: Call) -> Call | None:
    """Have another thread make the call, an idle one or a new one.

    Returns the call; None if there is no such thread, as the system starts no more.
    """
    try:
        queue = _idle.pop()
    except IndexError:
        queue = SimpleQueue()
        try:
            _thread.start_new_thread(_serve, (queue,))
        except RuntimeError:
            return None
    call.queue = queue
    queue.put(call)
    return call


def _take_back(call: Call) -> None:
    """Take back a call that its thread has not begun, and make the thread idle again."""
    if call.queue is not None:
        try:
            found = call.queue.get_nowait()
        except Empty:
            return
        if found is call:
            _idle.append(call.queue)
        else:  # its thread made the call after all, and has been given another one since
            call.queue.put(found)


def _serve(queue: SimpleQueue[Call]) -> None:
    while True:
        queue.get()()
        _idle.append(queue)


def parallel_for(
    task: Callable[[int], Any],
    n_items: int,
    most: int | None = None,
    stop: Callable[[], Any] = lambda: None,
) -> None:
    """Call ``task(i)`` for every ``i < n_items``, on the caller's thread and on free ones.

    At most ``most`` threads work, including the caller's; the caller's settings hold on all.

    Items are handed out one by one, so uneven ones balance. After the first exception (or an
    interrupt) no more are handed out, and it is raised once the items in hand are done. ``stop()``
    is called after an error or an interrupt, to end long items of other threads.
    """
    items = itertools.count()
    stopped, given = False, -1  # the item that was given to a thread last
    calls: list[Call] = []
    waiting = iter(calls)

    def work() -> None:
        nonlocal given
        while not stopped and (i := next(items)) < n_items:
            given = i
            task(i)

    def take_part() -> None:
        # Each thread that begins starts two more: all are at work soon, and none is started when no
        # items are left. `_end` waits for calls in the order in which they are started, so a call
        # that it is done with cannot be started later.
        nonlocal stopped
        try:
            for _ in range(2):
                left = given + 1 < n_items and not stopped
                if left and (call := next(waiting, None)) is not None and not start(call):
                    claim.free()
            if section is None:
                work()
            else:
                section.run(work)
            for _ in waiting:  # whom nobody needs any more
                claim.free()
        except BaseException:
            stopped = True
            stop()
            raise

    def help_out() -> None:
        try:
            with blas_threads.thread_limit_here(claim.limits[0].blas):
                take_part()
        finally:
            claim.free()

    with (
        _claimed(min(n_items, most or n_items) - 1) as claim,
        parallel_section(helpers := claim.held, most) as section,
    ):
        if section is not None:
            task = section.traced(task)
        try:
            calls += [Call(functools.partial(copy_context().run, help_out)) for _ in range(helpers)]
            take_part()
            if calls and claim.outermost:
                # While the outermost caller waits, its core is free for nested work, which ends
                # before it goes on. A nested caller that goes on could find its core taken.
                claim.free()
        finally:
            stopped = True  # it is already, unless an interrupt came between two items
            _end(calls, stop)
    for call in calls:
        if call.error is not None:
            raise call.error


def parallel_rows(task: Callable[[slice], Any], n: int, rows: int) -> None:
    """Call ``task(part)`` for parts of n rows, ``rows`` each, on this thread and free ones.

    A single part is done directly: it ends sooner than helpers could be found. Tasks are kernels
    and NumPy's work on many numbers: they count as work without Python's lock.
    """

    def part(i: int) -> None:
        time_unlocked(task)(slice(i * rows, min((i + 1) * rows, n)))

    if n <= rows:
        part(0)
    else:
        parallel_for(part, -(-n // rows))


def _end(calls: list[Call], stop: Callable[[], Any]) -> None:
    """Wait for all calls that have begun; an interrupt meanwhile is raised afterwards.

    A call that begins from now on finds nothing to do.
    """
    interrupt = None
    for call in calls:
        over = False
        while not over:
            try:
                if not call.begun:
                    _take_back(call)
                if call.begun:
                    call.wait()
                over = True
            except BaseException as error:
                interrupt = error
                stop()
    if interrupt is not None:
        raise interrupt


def map_single_threaded_blas(
    works: Sequence[Callable[[], Any]], most: int | None = None
) -> list[Any]:
    """Results of functions that call BLAS: on at most `most` threads, each with one of BLAS."""
    results: list[Any] = [None] * len(works)

    def task(i: int) -> None:
        results[i] = time_unlocked(works[i])()

    with single_threaded_blas():
        parallel_for(task, len(works), most)
    return results
