"""Who works on which pair when: no class is in two pairs at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from gpurbf.backends.threads import AGAIN

__all__ = ["Schedule", "Stopped"]


class Stopped(Exception):
    """Raised in a pair when another one failed or was interrupted."""


class Schedule:
    """Hands out pairs whose classes nobody works on, those whose classes have the most left first.

    The pairs of one class run one after the other: were they left to the end, one thread would work
    on them alone. Among equals, those with the most rows in memory come first.

    Parameters
    ----------
    pairs : list of (int, int)
    n_classes : int
    in_memory : callable
        Bytes that are kept for a class that nobody works on.
    """

    def __init__(
        self, pairs: list[tuple[int, int]], n_classes: int, in_memory: Callable[[int], int]
    ) -> None:
        self.pairs = pairs
        self.stopped = False
        self._in_memory = in_memory
        self._pending = dict.fromkeys(range(len(pairs)))
        self._busy = [False] * n_classes
        # Pairs of each class that nobody has taken.
        self._left = np.bincount(np.ravel(pairs), minlength=n_classes).tolist()
        self._lock, self._change = threading.Lock(), _held()

    def take(self) -> int | None:
        """The next pair, or None when there is none left; waits while all are blocked."""
        while True:
            with self._lock:
                if not self._pending or self.stopped:
                    return None
                free = [p for p in self._pending if not any(self._busy[c] for c in self.pairs[p])]
                if free:
                    p = max(free, key=self._urgency)
                    del self._pending[p]
                    for c in self.pairs[p]:
                        self._busy[c] = True
                        self._left[c] -= 1
                    return p
                change = self._change
            # Not a condition, which an interrupt may leave locked.
            if change.acquire(timeout=AGAIN):
                change.release()  # for the next who waits

    def _urgency(self, p: int) -> tuple[int, int]:
        classes = self.pairs[p]
        return sum(self._left[c] for c in classes), sum(map(self._in_memory, classes))

    def release(self, p: int) -> None:
        """The pair is done: its classes are free."""
        with self._lock:
            for c in self.pairs[p]:
                self._busy[c] = False
            self._tell()

    @contextmanager
    def failing(self) -> Iterator[None]:
        """A context that stops everyone when what is inside it raises."""
        try:
            yield
        except Stopped:
            # The one who raised first has the error to report.
            pass
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """No more pairs, and those in hand end at their next look."""
        with self._lock:
            self.stopped = True
            self._tell()

    def _tell(self) -> None:
        """Those who wait look again."""
        change, self._change = self._change, _held()
        change.release()


def _held() -> threading.Lock:
    lock = threading.Lock()
    lock.acquire()
    return lock
