"""Objects made once in a process, also when threads ask at the same time or the process forks."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar
from weakref import WeakSet

Value = TypeVar("Value")

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
