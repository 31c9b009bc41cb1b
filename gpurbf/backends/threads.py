"""Threads for the nogil kernels: one account a process, so that nested callers share the cores."""

from __future__ import annotations

import functools
import itertools
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import joblib
from threadpoolctl import ThreadpoolController

from gpurbf._stages import side_by_side

_lock = threading.Lock()
_busy = 0
_pool: ThreadPoolExecutor | None = None
_local = threading.local()


def _after_fork() -> None:
    """A forked child has none of its parent's threads: it starts its own account and pool."""
    global _lock, _busy, _pool
    _lock, _busy, _pool = threading.Lock(), 0, None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@functools.cache
def blas_libraries() -> Any:
    # Looking for libraries takes milliseconds: once, and again after one was loaded (mkl.py).
    return ThreadpoolController().select(user_api="blas")


def thread_limit() -> int:
    """How many threads a caller may use: the least of what NumPy's BLAS, Numba and ``limited`` say.

    joblib's workers set the first two through their environment (one thread each under loky), and
    ``threadpoolctl.threadpool_limits`` sets the first.
    """
    import numba

    limits = [numba.config.NUMBA_NUM_THREADS]
    limits += [library.num_threads for library in blas_libraries().lib_controllers]
    if asked := getattr(_local, "limit", None):
        limits.append(asked)
    # numba.get_num_threads() would start Numba's own threads: ask only where they run already.
    parallel = sys.modules.get("numba.np.ufunc.parallel")
    if getattr(parallel, "_is_initialized", False):
        limits.append(numba.get_num_threads())
    return max(1, min(limit for limit in limits if limit))


@contextmanager
def limited(n_jobs: int | None) -> Iterator[None]:
    """Use at most ``n_jobs`` threads inside the block (None: no limit of its own, -1: all)."""
    if n_jobs is None:
        yield
        return
    before = getattr(_local, "limit", None)
    _local.limit = joblib.effective_n_jobs(n_jobs)
    try:
        with blas_libraries().limit(limits=_local.limit):
            yield
    finally:
        _local.limit = before


@contextmanager
def _claimed(wanted: int) -> Iterator[int]:
    """How many threads besides the caller's are free now; they count as taken in the block."""
    global _busy
    limit = thread_limit()
    with _lock:
        helpers = max(0, min(wanted, limit - 1 - _busy))
        _busy += 1 + helpers
    try:
        yield helpers
    finally:
        with _lock:
            _busy -= 1 + helpers


def _executor() -> ThreadPoolExecutor:
    global _pool
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="gpurbf")
        return _pool


def parallel_for(task: Callable[[int], Any], n_items: int, most: int | None = None) -> None:
    """Call ``task(i)`` for every ``i < n_items``, on the caller's thread and on free ones.

    ``most`` threads at most, the caller's among them.

    Items are handed out one by one, so uneven ones balance. The first exception, an interrupt
    included, stops the handing out and is raised once the items in hand are done.
    """
    items = itertools.count()
    stop = threading.Event()

    def work() -> None:
        try:
            while not stop.is_set() and (i := next(items)) < n_items:
                task(i)
        except BaseException:
            stop.set()
            raise

    if n_items <= 0:
        return
    with _claimed(min(n_items, most or n_items) - 1) as helpers, side_by_side(helpers) as section:
        futures = [_executor().submit(section.run, work) for _ in range(helpers)]
        try:
            section.run(work)
        finally:
            errors = [future.exception() for future in futures]
    for error in errors:
        if error is not None:
            raise error
