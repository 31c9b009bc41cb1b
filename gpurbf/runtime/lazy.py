"""Modules imported at their first use, and objects made once in a process."""

from __future__ import annotations

import functools
import gc
import importlib
import os
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Generic, TypeVar
from weakref import WeakSet

from gpurbf.runtime.stages import is_recorded, time_unlocked

Value = TypeVar("Value")
# Some interpreters begin with a few hundred objects frozen. More are somebody's, and stay so.
_FEW = 2000


@contextmanager
def without_collecting() -> Iterator[None]:
    """No garbage is looked for inside, in the whole process; reference counts work as ever.

    Numba makes some hundred thousand objects that stay when it is imported, and more when it
    compiles. Looking in between for garbage among them and all those of scikit-learn takes as long
    as making them: half of the time to a first fit, and a sixth of a compilation. To look soon
    after is no better: then all of them are new and looked at twice.
    """
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            if gc.get_freeze_count() < _FEW:
                # All that is there is old from now on, without being looked at.
                gc.freeze()
                gc.unfreeze()
            gc.enable()


class lazy_module:
    """The module ``name``, imported at its first use: to import Numba takes a third of a second."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._module: ModuleType | None = None

    def __getattr__(self, attribute: str) -> Any:
        if self._module is None:
            self._module = importlib.import_module(self._name)
        found = getattr(self._module, attribute)
        if is_recorded() and hasattr(found, "py_func") and not hasattr(found, "__getitem__"):
            # A kernel (not of CUDA) runs without Python's lock: a profile tells the two apart.
            return time_unlocked(found)
        return found


_locks: WeakSet[Lock] = WeakSet()


class Lock:
    """A lock, ``held`` in a ``with``, that a forked child finds free: who had it is not there.

    An ``__enter__`` of this class would be a function, whose last step an interrupt could meet.
    """

    def __init__(self) -> None:
        self.renew()
        _locks.add(self)

    def renew(self) -> None:
        """Forget who holds it."""
        self.held = threading.RLock()


def _after_fork() -> None:
    for lock in _locks:
        lock.renew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


class once(Generic[Value]):
    """A function that is called once for each of its arguments; what it gave is found unlocked."""

    def __init__(self, function: Callable[..., Value]) -> None:
        functools.update_wrapper(self, function)
        self._function, self._lock = function, Lock()
        self._made: dict[Hashable, Value] = {}

    def __call__(self, *arguments: Any) -> Value:
        """The value, made if it is not there."""
        if arguments not in self._made:
            with self._lock.held:
                if arguments not in self._made:
                    self._made[arguments] = self._function(*arguments)
        return self._made[arguments]

    def cache_clear(self) -> None:
        """Forget all values."""
        self._made.clear()
