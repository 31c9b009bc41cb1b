"""All class pairs: which runs when, so that classes' rows are shared and never written by two."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import combinations, pairwise
from typing import Any

import numpy as np

from gpurbf.backends.threads import parallel_for
from gpurbf.network.solvers.smo.binary import Solution, solve_binary
from gpurbf.network.solvers.smo.rows import Budget, CachedPair, MatrixPair, RowCache

__all__ = ["solve_pairs"]

# Up to so many samples the whole kernel matrix is evaluated at once, if the budget holds it.
_MATRIX = 4096
# Below so many samples a second thread costs more than it brings.
_ALONE = 400


class _Stopped(Exception):
    """Raised in a pair when another one failed or was interrupted."""


def solve_pairs(
    kernel: Any,
    starts: np.ndarray,
    C: np.ndarray,
    *,
    tol: float,
    max_iter: int,
    cache_bytes: float,
    stepped: Callable[[int, int, float], bool],
    solved: Callable[[int, Solution], bool],
) -> list[Solution]:
    """One binary problem for each pair of classes, in the order (0, 1), (0, 2), …, (1, 2), ….

    Parameters
    ----------
    kernel : object
        ``values(samples, columns, out)`` writes K[samples, columns] into ``out``; ``columns`` is a
        class (slice) or an array of samples. ``diagonal`` (N,), ``dtype``; ``matrix``, if it is not
        None, is all of K; else ``xp``, ``working`` and ``room`` are those of the
        :class:`~gpurbf.backends.Backend` that evaluates it.
    starts : ndarray of shape (n_classes + 1,)
        Class c is the samples from starts[c] to starts[c + 1].
    C : ndarray of shape (N,)
        Upper bound of each dual variable.
    tol, max_iter
        See :func:`solve_binary`.
    cache_bytes : float
        Memory for kernel rows.
    stepped : callable
        Called with pair number, steps and violation now and then; True ends the pair.
    solved : callable
        Called with pair number and solution; True ends all pairs that have not begun.

    Returns
    -------
    solutions : list of Solution
    """
    classes = [slice(int(a), int(b)) for a, b in pairwise(starts)]
    pairs = list(combinations(range(len(classes)), 2))
    solutions: list[Any] = [None] * len(pairs)
    schedule = _Schedule(pairs, len(classes))
    quit_early = threading.Event()

    def solve(p: int, pair_kernel: Any) -> None:
        a, b = (classes[c] for c in pairs[p])
        y = np.repeat([1.0, -1.0], [a.stop - a.start, b.stop - b.start])

        def check(steps: int, violation: float) -> bool:
            if schedule.stopped:
                raise _Stopped
            return stepped(p, steps, violation)

        limit = 0 if quit_early.is_set() else max_iter
        solutions[p] = solve_binary(pair_kernel, y, np.r_[C[a], C[b]], tol, limit, check)
        if solved(p, solutions[p]):
            quit_early.set()

    K = _matrix(kernel, cache_bytes)
    if K is not None:

        def task(p: int) -> None:
            with schedule.failing():
                a, b = (classes[c] for c in pairs[p])
                solve(p, MatrixPair(K, kernel.diagonal, a, b))

        if len(K) < _ALONE:
            for p in range(len(pairs)):
                task(p)
        else:
            parallel_for(task, len(pairs))
        return solutions

    budget = Budget(min(cache_bytes, kernel.room() / 4))

    def worker(_: int) -> None:
        while (p := schedule.take(budget)) is not None:
            with schedule.failing(), kernel.working():
                _with_rows(kernel, classes, pairs[p], budget, lambda pair: solve(p, pair))
            schedule.release(p)

    # Two pairs at once need four classes; with fewer, a pair's kernel values use the threads.
    try:
        parallel_for(worker, max(1, len(classes) // 2))
    finally:
        # Caches know their budget and it knows them: else they would wait for the collector.
        budget.clear()
    return solutions


def _matrix(kernel: Any, cache_bytes: float) -> np.ndarray | None:
    """All of K if it is there or small enough to be made."""
    if kernel.matrix is not None:
        return kernel.matrix
    N = len(kernel.diagonal)
    if N > _MATRIX or N * N * kernel.dtype.itemsize > cache_bytes:
        return None
    K = np.empty((N, N), kernel.dtype)
    kernel.values(np.arange(N), slice(0, N), K)
    return K


def _with_rows(
    kernel: Any,
    classes: list[slice],
    pair: tuple[int, int],
    budget: Budget,
    solve: Callable[[CachedPair], None],
) -> None:
    """Call ``solve`` with the pair's kernel, made of its classes' caches."""
    caches = [budget.fetch(c) or RowCache(kernel, classes[c], budget) for c in pair]
    a, b = (classes[c] for c in pair)
    solve(CachedPair(kernel, a, b, *caches))
    for c, cache in zip(pair, caches):
        budget.park(c, cache)


class _Schedule:
    """Hands out pairs whose classes nobody works on, those with the most rows in memory first."""

    def __init__(self, pairs: list[tuple[int, int]], n_classes: int) -> None:
        self.pairs = pairs
        self.stopped = False
        self._pending = dict.fromkeys(range(len(pairs)))
        self._busy = [False] * n_classes
        self._change = threading.Condition()

    def take(self, budget: Budget) -> int | None:
        """The next pair, or None when there is none left; waits while all are blocked."""
        with self._change:
            while self._pending and not self.stopped:
                free = [p for p in self._pending if not any(self._busy[c] for c in self.pairs[p])]
                if free:
                    p = max(free, key=lambda p: sum(budget.parked(c) for c in self.pairs[p]))
                    del self._pending[p]
                    for c in self.pairs[p]:
                        self._busy[c] = True
                    return p
                self._change.wait()
            return None

    def release(self, p: int) -> None:
        """The pair is done: its classes are free."""
        with self._change:
            for c in self.pairs[p]:
                self._busy[c] = False
            self._change.notify_all()

    @contextmanager
    def failing(self) -> Iterator[None]:
        """A context that stops everyone when what is inside it raises."""
        try:
            yield
        except _Stopped:
            # The one who raised first has the error to report.
            pass
        except BaseException:
            with self._change:
                self.stopped = True
                self._change.notify_all()
            raise
