"""Who works on which pair when: no class is in two pairs at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

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
        How much is kept for a class that nobody works on.
    """

    def __init__(
        self, pairs: list[tuple[int, int]], n_classes: int, in_memory: Callable[[int], int]
    ) -> None:
        self.pairs = pairs
        self.stopped = False
        self._in_memory = in_memory
        # Of each class with whom it is to be paired yet, and the numbers of these pairs.
        self._pending: list[dict[int, int]] = [{} for _ in range(n_classes)]
        for p, (a, b) in enumerate(pairs):
            self._pending[a][b] = self._pending[b][a] = p
        # Classes nobody works on that have pairs left, and what they are chosen by.
        self._free: dict[int, tuple[int, int]] = {}
        self._left, self._lock, self._change = len(pairs), threading.Lock(), _held()
        self._set_free(range(n_classes))

    def take(self) -> int | None:
        """The next pair, or None when there is none left; waits while all are blocked."""
        while True:
            with self._lock:
                if not self._left or self.stopped:
                    return None
                for a in sorted(self._free, key=self._free.__getitem__, reverse=True):
                    partners = self._free.keys() & self._pending[a].keys()
                    if partners:
                        b = max(sorted(partners), key=self._free.__getitem__)
                        del self._free[a], self._free[b], self._pending[b][a]
                        self._left -= 1
                        return self._pending[a].pop(b)
                change = self._change
            # Not a condition, which an interrupt may leave locked.
            if change.acquire(timeout=AGAIN):
                change.release()  # for the next who waits

    def release(self, p: int) -> None:
        """The pair is done: its classes are free."""
        with self._lock:
            self._set_free(self.pairs[p])
            self._tell()

    def _set_free(self, classes: Iterable[int]) -> None:
        for c in classes:
            if self._pending[c]:
                self._free[c] = len(self._pending[c]), self._in_memory(c)

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
