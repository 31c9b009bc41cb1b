"""All class pairs of a problem: which runs when, on which threads; stop and progress."""

from __future__ import annotations

import functools
import math
import sys
import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from gpurbf.runtime.errors import OutOfRange
from gpurbf.runtime.threads import parallel_for, planned_threads, thread_limit
from gpurbf.svm import binary
from gpurbf.svm.binary import BinarySolver, Solution, begin_on_matrix, rounding_is_small
from gpurbf.svm.cuda_pairs import solve_side_by_side
from gpurbf.svm.kernel_matrix import MAX_FLOAT32_VALUE, MAX_MATRIX, KernelRows
from gpurbf.svm.pair_kernel import EvaluatedPair, MatrixPair
from gpurbf.svm.row_cache import Budget, CachedPair, Rounds, RowCache, keeping_pays

# Samples of the small pairs that begin in one call.
_SAMPLES_PER_TASK = 1024
# The pairs of fewer samples in all end before another thread could help.
_MIN_THREADED = 400
# Up to this many samples of the largest pair, tiles evaluate values that no pair asks for in less
# time than each pair takes to evaluate its own.
_MAX_SMALL_PAIR = 640
# The part of a working set's rows that is expected in memory: 0.5 if memory holds the rows of 1.5
# sets, and 0.35 more if it holds a third of all rows, about the number of support vectors.
_FOUND_OF_LAST_SET, _SETS_TO_FIND = 0.5, 1.5
_FOUND_OF_ALL, _SUPPORT_PART = 0.35, 1 / 3
# In most fits a pair that keeps its rows finds at least this part of those that it asks for.
_FOUND_AT_LEAST = 0.4
# With so many times more threads than pairs that have no class in common, the longest pairs begin
# first; with fewer, rows that are found in memory are worth more. Samples, of all classes together,
# that tell which classes are near each other.
_CROWDED, _COMPARED = 1.5, 256
# Threads that have `cache_size` together; more threads train more pairs, and have more.
_THREADS_PER_CACHE = 4


# A ready matrix; of its samples its own diagonal, as rounded as its other values, and C (2, N).
Part = tuple[np.ndarray, np.ndarray]


def _bins(sizes: list[int], most: int) -> list[range]:
    """Divide these sizes, in order, into bins; a bin of several has at most ``most`` in all."""
    starts, n = [0], 0
    for i, size in enumerate(sizes):
        if n and n + size > most:
            starts.append(i)
            n = 0
        n += size
    return [range(*ends) for ends in pairwise([*starts, len(sizes)])]


def _groups(
    kernel: KernelRows, own: np.ndarray, sizes: np.ndarray, cache_bytes: float
) -> list[range] | None:
    """Groups of classes if memory is to hold the matrix of any two groups; else None.

    All are one group if all of K is given or is to be made. Otherwise pairs are small. ``own`` are
    the sizes of the classes, ``sizes`` those of all classes of the whole problem.
    """
    one = [range(len(own))]
    if kernel.matrix is not None:
        return one
    n_samples, largest = int(sizes.sum()), sum(sorted(sizes.tolist())[-2:])
    # Up to this many samples a pair is its own working set, if its matrix is there. With a linear
    # kernel, only working sets need values.
    small = MAX_MATRIX if kernel.linear else binary.MAX_SINGLE_SET
    most = math.isqrt(int(cache_bytes / kernel.dtype.itemsize))
    if n_samples <= most and (n_samples <= MAX_MATRIX or largest <= small):
        return one
    small = small if kernel.among is None else _MAX_SMALL_PAIR
    return None if largest > min(small, most // 2) else _bins(own.tolist(), most // 2)


def _at_once(
    kernel: KernelRows, own: np.ndarray, pairs: list[tuple[int, int]], n_bytes: float
) -> int:
    """Number of pairs that are solved at the same time, each on its own thread.

    There are at least as many as can have no class in common. More pairs do not share rows of
    their common classes, so they run only while each of them has, of ``n_bytes`` for all, enough
    memory to keep its rows. Threads beyond this number help inside the pairs.
    """
    number = max(1, int(np.count_nonzero(own)) // 2)
    largest = max((int(own[a] + own[b]) for a, b in pairs), default=0)
    while number < min(len(pairs), planned_threads()) and keeps_rows(
        kernel, largest, n_bytes / (number + 1)
    ):
        number += 1
    return number


def keeps_rows(kernel: KernelRows, n: int, cache_bytes: float) -> bool:
    """Whether keeping rows of a pair of n samples takes less time than evaluating each again."""
    if kernel.linear or kernel.largest > MAX_FLOAT32_VALUE:
        return False
    rows = cache_bytes / (4 * n)
    found = _FOUND_OF_LAST_SET * min(1.0, rows / (_SETS_TO_FIND * binary.working_set_size(n)))
    found += _FOUND_OF_ALL * min(1.0, rows / (_SUPPORT_PART * n))
    return keeping_pays(kernel, found)


def rows_in_doubt(kernel: KernelRows, sizes: np.ndarray, cache_bytes: float) -> int | None:
    """How many rows memory holds, if a pair is to decide during the fit whether to keep them.

    Else None: only the pair of two classes decides, whose rows no other pair asks for.
    """
    n = int(sizes.sum())
    rows = int(cache_bytes // (4 * n))
    doubt = len(sizes) == 2 and rows < _SUPPORT_PART * n
    return rows if doubt and not keeping_pays(kernel, _FOUND_AT_LEAST) else None


@dataclass
class PairsSolver:
    """Solves one binary problem for each pair of classes; its threads share what is here.

    Parameters
    ----------
    kernel : KernelRows
    starts : ndarray of shape (n_classes + 1,)
        Class c is the samples from starts[c] to starts[c + 1].
    C : ndarray of shape (N,)
        Upper bound of each dual variable.
    pairs : list of (int, int)
        Classes a < b; the first is +1.
    tol
        See :class:`BinarySolver`.
    max_iter : int
        Maximum number of steps of a pair; -1 for no limit.
    cache_bytes : float
        Memory for kernel rows of up to four threads; more have more, in proportion.
    stepped : callable or None
        Called with pair number, steps and violation before each working set and within large ones;
        True ends the pair.
    solved : callable
        Called with pair number and solution; True ends all pairs that have not begun.
    sizes : ndarray, optional
        Sizes of all classes of the whole problem, if the kernel has only a part of them, which is
        to be solved in the same way.
    """

    kernel: KernelRows
    starts: np.ndarray
    C: np.ndarray
    pairs: list[tuple[int, int]]
    _: KW_ONLY
    tol: float
    max_iter: int
    cache_bytes: float
    stepped: Callable[[int, int, float], bool] | None
    solved: Callable[[int, Solution], bool]
    sizes: np.ndarray | None = None

    def __post_init__(self) -> None:
        self.own, self.stopped = self.starts[1:] - self.starts[:-1], False
        self.max_iter = min(int(self.max_iter), sys.maxsize) if self.max_iter >= 0 else sys.maxsize
        self.classes = [slice(int(a), int(b)) for a, b in pairwise(self.starts)]
        self.solutions: list[Solution] = [None] * len(self.pairs)  # type: ignore[list-item]

    def solve(self) -> list[Solution]:
        """The solutions, in the order of the pairs."""
        kernel, pairs, own = self.kernel, self.pairs, self.own
        if not np.isfinite(kernel.diagonal).all():  # an infinite curvature would end the steps
            raise OutOfRange("kernel values")
        if kernel.on_device and solve_side_by_side(self):
            return self.solutions
        sizes = own if self.sizes is None else self.sizes
        if (groups := _groups(kernel, own, sizes, self.cache_bytes)) is not None:
            of, together = [g for g, group in enumerate(groups) for _ in group], defaultdict(list)
            for p, (a, b) in enumerate(pairs):
                together[of[a], of[b]].append(p)
            for (g, h), numbers in together.items():
                self._solve_on_matrix(sorted({*groups[g], *groups[h]}), numbers)
            return self.solutions
        most = kernel.free_bytes() / 4
        least = min(self.cache_bytes, most)
        # Pairs that keep rows, whatever the threads.
        self.keeping = {
            p for p, (a, b) in enumerate(pairs) if keeps_rows(kernel, own[a] + own[b], least)
        }
        self.capacity = rows_in_doubt(kernel, sizes, least)  # see `CachedPair`
        # A profile hands out pairs for more threads than there are, which need no memory.
        total, planned = (
            min(self.cache_bytes * max(1, threads / _THREADS_PER_CACHE), most)
            for threads in (thread_limit(), planned_threads())
        )
        workers = _at_once(kernel, own, pairs, planned)
        kept = {c: part for p in self.keeping for c, part in zip(pairs[p], self._cache_columns(p))}
        in_use = len(self._cache_columns(0)) * min(workers, thread_limit()) if kept else 0
        self.budget = Budget([part.stop - part.start for part in kept.values()], total, in_use)
        crowded = workers > _CROWDED * (np.count_nonzero(own) // 2)
        lengths = self._lengths() if crowded else None
        self.schedule = Schedule(pairs, len(own), self.budget.parked, lengths)
        self.memory = kernel.xp.empty(self.budget.size, np.float32)
        compiled = kernel.among is not None and kernel.dtype == np.float32 and self.stepped is None
        self._idle_rounds = [
            Rounds(kernel.among, self.schedule.needs_no_help) if compiled else None
            for _ in range(workers)
        ]
        parallel_for(self.solve_next_in_blocks, len(pairs), workers, self.stop)
        return self.solutions

    def _solve_on_matrix(self, classes: list[int], numbers: list[int]) -> None:
        """Solve the pairs of these numbers on the kernel matrix of all samples of these classes."""
        kernel, own, every = self.kernel, self.own, np.arange(len(self.C))
        samples = np.concatenate([every[self.classes[c]] for c in classes])
        K = kernel.matrix
        if K is None:
            K = np.empty((len(samples), len(samples)), kernel.dtype)
            if self.max_iter:  # else no step asks for a value
                columns = slice(0, len(every)) if len(samples) == len(every) else None
                kernel.values(samples, columns or kernel.over(samples), K)
        starts = np.zeros_like(own)  # of classes in K
        starts[classes] = own[classes].cumsum() - own[classes]
        a, b = np.array([self.pairs[p] for p in numbers]).T
        spans = np.array([starts[a], own[a], starts[b], own[a] + own[b]]).T.copy()
        part = K, np.stack([K.diagonal(), self.C[samples]])
        tasks = _bins(spans[:, 3].tolist(), min(_SAMPLES_PER_TASK, binary.MAX_SINGLE_SET))

        def task(i: int) -> None:
            self._begin(part, [numbers[j] for j in tasks[i]], spans[tasks[i]])

        if len(K) < _MIN_THREADED:
            for i in range(len(tasks)):
                task(i)
        else:
            parallel_for(task, len(tasks), stop=self.stop)

    def _begin(self, part: Part, numbers: list[int], spans: np.ndarray) -> None:
        """Solve pairs in a ready matrix, small ones or one; their spans see `begin_on_matrix`."""
        most, rounding = self.max_iter, self.kernel.rounding
        with suppress(Stopped):
            if spans[0, 3] > binary.MAX_SINGLE_SET:
                self._solve(numbers[0], self._within(part[0], numbers[0], spans[0]), most)
                return
            begun = begin_on_matrix(*part, spans, self.tol, most)
            for i, (p, (solution, own, ended)) in enumerate(zip(numbers, begun)):
                if self.max_iter < most:  # all has been ended: these have not begun
                    self._begin(part, numbers[i:], spans[i:])
                    return
                beta, steps = solution.beta, solution.steps
                ended = ended or self._check(p, steps, solution.violation)
                if solution.converged:
                    ended = rounding_is_small(rounding, float(beta @ beta), self.tol)
                if ended:
                    self._end(p, solution)
                else:
                    self._solve(p, self._within(part[0], p, spans[i]), most, (own, steps))

    def _within(self, K: np.ndarray, p: int, span: np.ndarray) -> MatrixPair:
        first, _, second, _ = span.tolist()
        return MatrixPair(K, first, second, self.kernel, *(self.classes[c] for c in self.pairs[p]))

    def solve_next_in_blocks(self, _: int) -> None:
        """Solve the pair that is next, whatever the number, its kernel evaluated in blocks."""
        with suppress(Stopped):
            p = self.schedule.take()
            if p in self.keeping:
                self._solve_with_rows(p)
            else:
                self.solve_evaluated(p)
            self.schedule.release(p)

    def solve_evaluated(self, p: int) -> None:
        """Solve a pair whose kernel is evaluated whenever it is asked for."""
        a, b = (self.classes[c] for c in self.pairs[p])
        self._solve(p, EvaluatedPair(self.kernel, a, b), self.max_iter)

    def _lengths(self) -> np.ndarray:
        """How long each pair is expected to take, up to a factor.

        Pairs of near classes have many support vectors, and take long. Their distance is that of
        the means of some samples in the kernel's feature space, squared.
        """
        most = max(1, _COMPARED // len(self.classes))
        some = [
            np.arange(c.start, c.stop, -(-(c.stop - c.start) // most) or 1) for c in self.classes
        ]
        samples, ends = np.concatenate(some), np.cumsum([0, *map(len, some)])
        K = np.empty((len(samples), len(samples)), self.kernel.dtype)
        with self.kernel.allocator():
            self.kernel.values(samples, self.kernel.over(samples), K)
        parts, counts = [slice(*own) for own in pairwise(ends)], np.maximum(1, np.diff(ends))
        sums = np.stack([K[part].sum(axis=0, dtype=np.float64) for part in parts])
        means = np.stack([sums[:, part].sum(axis=1) for part in parts]) / np.outer(counts, counts)
        (a, b), itself = np.transpose(self.pairs), means.diagonal()
        distances = itself[a] + itself[b] - 2 * means[a, b]
        return (self.own[a] + self.own[b]) / np.maximum(distances, np.finfo(np.float64).eps)

    def _solve_with_rows(self, p: int) -> None:
        """Solve a pair with rows that are kept for its classes' other pairs."""
        classes, rounds = self.pairs[p], self._idle_rounds.pop()
        caches = [
            self.budget.fetch(c) or RowCache(self.kernel, columns, self.budget, self.memory)
            for c, columns in zip(classes, self._cache_columns(p))
        ]
        a, b = (self.classes[c] for c in classes)
        self._solve(p, CachedPair(caches, a, b, rounds, self.capacity), self.max_iter)
        self._idle_rounds.append(rounds)
        for c, cache in zip(classes, caches):
            self.budget.park(c, cache)

    def _cache_columns(self, p: int) -> list[slice]:
        """The columns of each cache of a pair's rows: a class, which it shares with other pairs.

        Of a single pair, one cache is over both: threads then wait for each other half as often.
        """
        a, b = (self.classes[c] for c in self.pairs[p])
        return [slice(a.start, b.stop)] if len(self.pairs) == 1 and a.stop == b.start else [a, b]

    def _solve(self, p: int, kernel: EvaluatedPair, max_iter: int, begun: Any = None) -> None:
        check = functools.partial(self._check, p)
        with self.kernel.allocator():
            solution = BinarySolver(kernel, self.C, self.tol, max_iter, check, begun).solve()
        self._end(p, solution)

    def _end(self, p: int, solution: Solution) -> None:
        self.solutions[p] = solution
        if self.solved(p, solution):
            self.max_iter = 0  # of pairs that have not begun

    def _check(self, p: int, steps: int, violation: float) -> bool:
        if self.stopped:
            raise Stopped
        return self.stepped is not None and self.stepped(p, steps, violation)

    def stop(self) -> None:
        """End all pairs at their next look."""
        self.stopped = True


class Stopped(Exception):
    """Raised in a pair when another one failed or was interrupted, which reports the error."""


class Schedule:
    """Hands out pairs whose classes are not in use, first those of classes with most pairs left.

    Pairs of one class find each other's kernel rows if they run one after the other. Among equals,
    those with the most rows in memory come first. If a class of every remaining pair is in use, a
    pair of the classes with most pairs left is handed out all the same.

    With ``lengths``, far more threads take pairs than can have no class in common. Then a class
    that has been in use counts as in use, and the longest pair comes next: threads without a pair
    wait for the last ones, which should be short.

    Parameters
    ----------
    pairs : list of (int, int)
    n_classes : int
    in_memory : callable
        Returns how much is kept for a class that is not in use.
    lengths : ndarray of shape (len(pairs),), optional
        How long each pair is expected to take, up to a factor.
    """

    def __init__(
        self,
        pairs: list[tuple[int, int]],
        n_classes: int,
        in_memory: Callable[[int], int],
        lengths: np.ndarray | None = None,
    ) -> None:
        self.pairs = pairs
        order = None if lengths is None else np.argsort(-lengths, kind="stable").tolist()
        self._longest_first = order and map(pairs.__getitem__, order)
        self._in_memory = in_memory
        # For each class: the classes that it is still to be paired with, and the numbers of these
        # pairs.
        self._pending: list[dict[int, int]] = [{} for _ in range(n_classes)]
        for p, (a, b) in enumerate(pairs):
            self._pending[a][b] = self._pending[b][a] = p
        self._lock = threading.Lock()
        # For each class the number of its running pairs; the ranks of classes that have none
        # running, and some left.
        self._in_use = [0] * n_classes
        self._free = {c: self._rank(c) for c in range(n_classes) if self._pending[c]}

    def _rank(self, c: int) -> tuple[int, int]:
        return len(self._pending[c]), self._in_memory(c)

    def take(self) -> int:
        """The next pair; there must be one left."""
        with self._lock:
            a, b = self._next()
            for c in (a, b):
                self._free.pop(c, None)
                self._in_use[c] += 1
            del self._pending[b][a]
            return self._pending[a].pop(b)

    def _next(self) -> tuple[int, int]:
        for a in sorted(self._free, key=self._free.__getitem__, reverse=True):
            if partners := self._free.keys() & self._pending[a].keys():
                return a, max(sorted(partners), key=self._free.__getitem__)
        if self._longest_first:
            return next((a, b) for a, b in self._longest_first if b in self._pending[a])
        a = max(range(len(self._pending)), key=lambda c: len(self._pending[c]))
        return a, max(sorted(self._pending[a]), key=lambda c: len(self._pending[c]))

    def release(self, p: int) -> None:
        """Count a pair that is done; its classes may be free now."""
        with self._lock:
            for c in self.pairs[p]:
                self._in_use[c] -= 1
                if self._pending[c] and not self._in_use[c] and not self._longest_first:
                    self._free[c] = self._rank(c)

    def needs_no_help(self) -> bool:
        """Whether other pairs run at the same time, if there are threads for them.

        By the model of docs/benchmarks/scaling.md, compiled rounds of two pairs take less time than
        rounds in Python with the help of all threads.
        """
        return sum(self._in_use) // 2 >= min(thread_limit(), 2)
