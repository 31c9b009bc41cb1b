"""All class pairs of a problem: which runs when, on which threads; stop and progress."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import combinations, pairwise
from typing import Any

import numpy as np

from gpurbf.backends.reused import borrowed
from gpurbf.backends.threads import parallel_for, thread_limit
from gpurbf.backends.turns import taking_turns
from gpurbf.network.solvers.smo import binary
from gpurbf.network.solvers.smo.binary import (
    Solution,
    begin_on_matrix,
    of_no_concern,
    solve_binary,
)
from gpurbf.network.solvers.smo.fused import FusedPair, recompute
from gpurbf.network.solvers.smo.kernel import Kernel, PairKernel
from gpurbf.network.solvers.smo.matrix import MatrixPair
from gpurbf.network.solvers.smo.rows import CachedPair, RowCache
from gpurbf.network.solvers.smo.schedule import Schedule, Stopped
from gpurbf.network.solvers.smo.side_by_side import problems_of, solve_side_by_side
from gpurbf.network.solvers.smo.slots import Budget

__all__ = ["MATRIX", "solve_pairs"]

# Up to so many samples the whole kernel matrix is evaluated at once, if the budget holds it; and
# beyond where every pair of classes wants all of its own.
MATRIX = 1024
# Below so many samples a second thread costs more than it brings.
_ALONE = 400


def solve_pairs(
    kernel: Kernel,
    starts: np.ndarray,
    C: np.ndarray,
    *,
    tol: float,
    max_iter: int,
    cache_bytes: float,
    stepped: Callable[[int, int, float], bool],
    solved: Callable[[int, Solution], bool],
    sizes: np.ndarray | None = None,
    pairs: Sequence[tuple[int, int]] | None = None,
) -> list[Solution]:
    """One binary problem for each pair of classes, in the order (0, 1), (0, 2), …, (1, 2), ….

    Parameters
    ----------
    kernel : Kernel
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
    sizes : ndarray, optional
        Of all classes of the whole problem, where the kernel's are a part that is to be solved as
        in it.
    pairs : sequence of (int, int), optional
        Those to solve, if not all, and in which order.

    Returns
    -------
    solutions : list of Solution
    """
    pairs = list(combinations(range(len(starts) - 1), 2)) if pairs is None else list(pairs)
    if kernel.rounds is not None:
        end_to_end = problems_of(starts, C, pairs)
        there = solve_side_by_side(
            kernel, end_to_end, tol=tol, max_iter=max_iter, stepped=stepped, solved=solved
        )
        if there is not None:
            return there
    own = np.diff(starts)
    K = _matrix(kernel, cache_bytes, own if sizes is None else sizes)
    total, keeping = 0.0, set()  # classes whose rows are kept for some pair
    if K is None:
        total = min(cache_bytes, kernel.room() / 4)
        for a, b in pairs:
            if _keeps_rows(kernel, int(own[a] + own[b]), total):
                keeping |= {a, b}
    # Two pairs at once need four classes; with fewer, a pair's kernel values use the threads.
    workers = max(1, len(own) // 2)
    in_use = 2 * min(workers, thread_limit()) if keeping else 0
    budget = Budget([int(own[c]) for c in keeping], total, in_use)
    problems = _Problems(pairs, starts, C, budget, tol, max_iter, stepped, solved)
    if K is not None:
        made = kernel if kernel.matrix is None else None
        task = functools.partial(problems.solve_on_matrix, K, kernel.diagonal, made)
        if len(K) < _ALONE:
            for p in range(len(problems.pairs)):
                task(p)
        else:
            parallel_for(task, len(problems.pairs), stop=problems.stop)
        return problems.solutions
    lent: Any = (
        borrowed(budget.size)
        if kernel.xp is np
        else nullcontext(kernel.xp.empty(budget.size, np.float32))
    )
    with lent as memory:
        try:
            parallel_for(
                lambda _: problems.solve_in_blocks(kernel, memory), workers, stop=problems.stop
            )
        finally:
            # Caches know their budget and it knows them: else they would wait for the collector.
            budget.clear()
    return problems.solutions


def _matrix(kernel: Kernel, cache_bytes: float, sizes: np.ndarray) -> np.ndarray | None:
    """All of K if it is there or, for classes of such sizes, to be made."""
    if kernel.matrix is not None:
        return kernel.matrix
    n_samples, largest = int(sizes.sum()), int(np.sort(sizes)[-2:].sum())
    wanted = n_samples <= MATRIX or largest <= binary.WHOLE
    if not wanted or n_samples**2 * kernel.dtype.itemsize > cache_bytes:
        return None
    N = len(kernel.diagonal)
    K = np.empty((N, N), kernel.dtype)
    kernel.values(np.arange(N), slice(0, N), K)
    return K


def _keeps_rows(kernel: Kernel, n: int, total: float) -> bool:
    """Whether rows of a pair of n samples are kept; else its values are evaluated in sums."""
    fused = kernel.linear and n > binary.WHOLE
    return not fused and not recompute(kernel.cost, n, total)


class _Problems:
    """The pairs' problems and what the threads that solve them share."""

    def __init__(
        self,
        pairs: list[tuple[int, int]],
        starts: np.ndarray,
        C: np.ndarray,
        budget: Budget,
        tol: float,
        max_iter: int,
        stepped: Callable[[int, int, float], bool],
        solved: Callable[[int, Solution], bool],
    ) -> None:
        self.classes = [slice(int(a), int(b)) for a, b in pairwise(starts)]
        self.pairs = pairs
        self.C, self.tol, self.max_iter = C, tol, max_iter
        self.budget = budget
        self.solutions: list[Solution] = [None] * len(self.pairs)  # type: ignore[list-item]
        self._stepped, self._solved = stepped, solved
        self._schedule = Schedule(self.pairs, len(self.classes), budget.parked)
        self._quit_early = False
        self.stop = self._schedule.stop

    def solve_on_matrix(
        self, K: np.ndarray, diagonal: np.ndarray, made: Kernel | None, p: int
    ) -> None:
        """Solve a pair whose kernel is a part of a ready matrix, which was made of a kernel."""
        a, b = self._classes_of(p)
        n = a.stop - a.start + b.stop - b.start
        with self._schedule.failing():
            if n > binary.WHOLE:
                self._solve(p, MatrixPair(K, diagonal, a, b, made))
                return
            limit = 0 if self._quit_early else self.max_iter
            solution, f, ended = begin_on_matrix(K, a, b, diagonal, self.C, self.tol, limit)
            beta, rounding = solution.beta, 0.0 if made is None else made.rounding
            ended = ended or self._check(p, solution.steps, solution.violation)
            if solution.converged:
                ended = of_no_concern(rounding, float(beta @ beta), self.tol)
            if ended:
                self._end(p, solution)
            else:
                begun = beta, f, solution.steps
                self._solve(p, MatrixPair(K, diagonal, a, b, made), begun)

    def solve_in_blocks(self, kernel: Kernel, memory: Any) -> None:
        """Solve pairs until none is left, their kernel evaluated block by block."""
        # All of it: who waits for classes that this thread has taken is told if it breaks off.
        with self._schedule.failing():
            while (p := self._schedule.take()) is not None:
                with kernel.working(), taking_turns(kernel.compiled):
                    a, b = self._classes_of(p)
                    n = a.stop - a.start + b.stop - b.start
                    if _keeps_rows(kernel, n, self.budget.total):
                        self._solve_with_rows(p, kernel, memory)
                    else:
                        self._solve(p, FusedPair(kernel, a, b))
                self._schedule.release(p)

    def _solve_with_rows(self, p: int, kernel: Kernel, memory: Any) -> None:
        """Solve a pair with rows that are kept for its classes' other pairs."""
        caches = [
            self.budget.fetch(c) or RowCache(kernel, self.classes[c], self.budget, memory)
            for c in self.pairs[p]
        ]
        self._solve(p, CachedPair(kernel, *caches))
        for c, cache in zip(self.pairs[p], caches):
            self.budget.park(c, cache)

    def _classes_of(self, p: int) -> tuple[slice, slice]:
        a, b = self.pairs[p]
        return self.classes[a], self.classes[b]

    def _solve(self, p: int, kernel: PairKernel, begun: Any = None) -> None:
        a, b = self._classes_of(p)
        C = np.concatenate([self.C[a], self.C[b]])
        y = np.ones(len(C))
        y[a.stop - a.start :] = -1.0
        limit = 0 if self._quit_early else self.max_iter
        check = functools.partial(self._check, p)
        self._end(p, solve_binary(kernel, y, C, self.tol, limit, check, begun))

    def _end(self, p: int, solution: Solution) -> None:
        self.solutions[p] = solution
        if self._solved(p, solution):
            self._quit_early = True

    def _check(self, p: int, steps: int, violation: float) -> bool:
        if self._schedule.stopped:
            raise Stopped
        return self._stepped(p, steps, violation)
