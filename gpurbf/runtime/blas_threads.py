"""The number of threads of BLAS libraries: set in one place, and restored afterwards.

Most libraries have one number of threads per process. It is set to the least of all limits in
force. When the last limit ends, in whatever order they end, the number from before the first is
restored. MKL, and what uses OpenMP, has a number for each thread; it is set in every thread that a
limit applies to, and no other thread sees it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import filterfalse
from typing import Any
from weakref import WeakSet

from threadpoolctl import ThreadpoolController

from gpurbf.runtime.lazy import Lock

_lock = Lock()
# Objects with a number of threads, `blas`. Weak: if an interrupt prevents the removal of a limit,
# it still vanishes with its block.
_in_force: WeakSet[Any] = WeakSet()
# By a library's path: its number of threads before any limit, and the number that we have set.
_told: dict[str, tuple[int, int]] = {}
# Paths of libraries whose threads were lost in a fork.
_alone: set[str] = set()


@functools.cache
def blas_libraries() -> Any:
    # Looking for libraries takes milliseconds: it is done once, and again after `look_again`.
    return ThreadpoolController().select(user_api="blas")


def found() -> list[int]:
    """The numbers of threads that others have set for this thread, without our own limits."""
    numbers = []
    with _lock.held:
        for library in blas_libraries().lib_controllers:
            if library.filepath not in _alone:
                before, ours = _told.get(library.filepath, (0, 0))
                numbers.append(before if (now := library.num_threads or 1) == ours else now)
    return numbers


@contextmanager
def in_force(limit: Any) -> Iterator[None]:
    """``limit.blas`` threads at most in the block: for this thread, and for the whole process."""
    try:
        with _lock.held:
            _in_force.add(limit)
            _apply()
        with thread_limit_here(limit.blas):
            yield
    finally:
        try:
            _end(limit)
        except BaseException:  # the limit must end even if an interrupt comes now
            _end(limit)
            raise


def _end(limit: Any) -> None:
    """End the limit, if it was in force at all."""
    with _lock.held:
        _in_force.discard(limit)
        _apply()


def look_again() -> None:
    """Apply the limits in force to a library that was just loaded."""
    with _lock.held:
        blas_libraries.cache_clear()
        _apply()


@contextmanager
def thread_limit_here(most: int) -> Iterator[None]:
    """Limit this thread's own number of threads, in libraries that have one for each thread."""
    undo: list[tuple[Any, int]] = []
    try:
        # Others need not be asked: each question costs a thread the GIL, and many begin at once.
        for library in filter(_is_per_thread, blas_libraries().lib_controllers):
            if (now := library.num_threads or 1) > most:
                undo.append((library, now))  # in case an interrupt comes before the next line ends
                undo[-1] = library, _tell_thread(library, most)
        yield
    finally:
        try:
            _undo(undo)
        except BaseException:  # the limit must end even if an interrupt comes now
            _undo(undo)
            raise


def _undo(told: list[tuple[Any, int]]) -> None:
    for library, before in told:
        if library.filepath not in _alone:
            _tell_thread(library, before)


def after_fork(limits: Iterable[Any]) -> None:
    """Keep only these limits in a forked child: those of the thread that forked.

    MKL would wait for threads that the child does not have, so it uses one thread from now on.
    """
    global _in_force
    _in_force = WeakSet(limits)
    if blas_libraries.cache_info().currsize:
        for library in filter(_is_mkl, blas_libraries().lib_controllers):
            library.dynlib.MKL_Set_Num_Threads_Local(0)  # drop this thread's own number
            library.dynlib.MKL_Set_Num_Threads(1)
            _alone.add(library.filepath)
        _apply()


def _apply() -> None:
    least = min((limit.blas for limit in _in_force), default=None)
    for library in filterfalse(_is_per_thread, blas_libraries().lib_controllers):
        path = library.filepath
        # Looked up again after the library was asked: a signal handler may have told it meanwhile.
        before, ours = _told.get(path) or _told.get(path, (library.num_threads or 1,) * 2)
        wanted = before if least is None else min(before, least)
        if wanted != ours:
            _told[path] = before, 0  # 0: unknown, in case an interrupt comes now
            _tell(library, wanted)
            _told[path] = before, wanted
        if wanted == before:
            _told.pop(path, None)


def _is_per_thread(library: Any) -> bool:
    """Whether the library has a number for each thread."""
    return _is_mkl(library) or getattr(library, "threading_layer", "") == "openmp"


def _is_mkl(library: Any) -> bool:
    return library.internal_api == "mkl"


def _tell(library: Any, number: int) -> None:
    """Set the process's number of threads."""
    # From version 3.8 on, threadpoolctl obeys only one thread, until that thread releases it.
    done = getattr(library, "clear_controlling_thread", lambda force: None)
    done(force=True)
    library.set_num_threads(number)
    done(force=True)


def _tell_thread(library: Any, number: int) -> int:
    """Set this thread's number; return the value that restores the previous one."""
    if _is_mkl(library):
        return library.dynlib.MKL_Set_Num_Threads_Local(number)
    before = library.num_threads
    library.set_num_threads(number)
    return before
