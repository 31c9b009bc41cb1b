"""Modules imported at their first use, and objects made once in a process."""

from __future__ import annotations

import functools
import gc
import importlib
import logging  # noqa: F401  (see `_before_fork`)
import os
import sys
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from gpurbf.runtime.stages import is_recorded, time_unlocked

Value = TypeVar("Value")
# Some interpreters start with a few hundred objects that `gc.freeze` has set apart. If there are
# more, the user has set objects apart, and `gc.unfreeze` must not bring them back.
_FEW = 2000
_paused = False  # whether a block has turned garbage collection off


@contextmanager
def without_collecting() -> Iterator[None]:
    """Turn garbage collection off in the block, for the whole process; reference counting goes on.

    Importing Numba makes some hundred thousand objects that stay, and compiling makes more.
    Searching them and all objects of scikit-learn for garbage meanwhile takes as long as making
    them: half of the time to a first fit, and a sixth of a compilation. A search soon afterwards is
    no better: all objects are then young, and are examined twice.
    """
    global _paused
    collecting = gc.isenabled()
    try:  # first: an interrupt may come after any call
        _paused |= collecting
        gc.disable()
        yield
    finally:
        if collecting:
            try:
                if gc.get_freeze_count() < _FEW:
                    # Move all objects to the oldest generation without examining them.
                    gc.freeze()
                    gc.unfreeze()
            finally:
                _paused = False
                gc.enable()


class lazy_module:
    """The module ``name``, imported at its first use: importing Numba takes a third of a second."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._module: ModuleType | None = None

    def __getattr__(self, attribute: str) -> Any:
        if self._module is None:
            with _importing.held:
                self._module = importlib.import_module(self._name)
        found = getattr(self._module, attribute)
        if is_recorded() and getattr(found, "targetoptions", {}).get("nogil"):
            # The kernel runs without Python's lock; profiles count that time apart.
            return time_unlocked(found)
        return found


_locks: WeakSet[Lock] = WeakSet()


class Lock:
    """A lock for ``with lock.held``; it is free in a forked child, which does not have its holder.

    The class has no ``__enter__`` of its own, because an interrupt could come at the last step of
    that Python function, when the lock is already taken.
    """

    def __init__(self) -> None:
        self.held = threading.RLock()
        _locks.add(self)


_importing = Lock()
_forking = ExitStack()  # what a thread that forks holds meanwhile


def _before_fork() -> None:
    """Wait until no other thread imports or compiles: its locks would stay taken in the child.

    Imports take Numba's lock, so that is the second here. Both take logging's, which waits for a
    fork too; of functions called before a fork the last registered is the first, so logging must
    have been imported.
    """
    _forking.enter_context(_importing.held)
    numba_lock = sys.modules.get("numba.core.compiler_lock")
    if compiling := getattr(numba_lock, "global_compiler_lock", None):
        _forking.enter_context(compiling)


def _end_fork() -> None:
    _forking.pop_all().close()  # another thread may begin a fork at the last step


def _after_fork() -> None:
    global _paused
    _end_fork()
    if _paused:  # maybe by a thread that the child does not have
        _paused = False
        gc.enable()
    for lock in _locks:
        lock.held = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_end_fork, after_in_child=_after_fork)


class once(Generic[Value]):
    """A function that is called once per tuple of arguments; results are found without a lock."""

    def __init__(self, function: Callable[..., Value]) -> None:
        functools.update_wrapper(self, function)
        self._function, self._lock = function, Lock()
        self._made: dict[Hashable, Value] = {}

    def __call__(self, *arguments: Any) -> Value:
        """The value for these arguments, made if it does not exist yet."""
        if arguments not in self._made:
            with self._lock.held:
                if arguments not in self._made:
                    self._made[arguments] = self._function(*arguments)
        return self._made[arguments]

    def cache_clear(self) -> None:
        """Forget all values."""
        self._made.clear()
