"""What is made once in a process, whoever asks at the same time and whatever forks meanwhile."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar
from weakref import WeakSet

__all__ = ["Lock", "once"]

Value = TypeVar("Value")

_locks: WeakSet[Lock] = WeakSet()


class Lock:
    """A lock that a forked child finds free: who held it is not there to let go of it."""

    def __init__(self) -> None:
        self.renew()
        _locks.add(self)

    def renew(self) -> None:
        """Forget who holds it."""
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *error: object) -> None:
        self._lock.release()


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
            with self._lock:
                if arguments not in self._made:
                    self._made[arguments] = self._function(*arguments)
        return self._made[arguments]

    def cache_clear(self) -> None:
        """Forget all values."""
        self._made.clear()
