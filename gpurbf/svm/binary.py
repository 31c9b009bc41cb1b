"""One binary SVC: a working set of the worst violators, solved inside, then everyone's gradient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpurbf.runtime.stages import count, stage
from gpurbf.svm.pair_kernel import MatrixPair, PairKernel
from gpurbf.svm.smo import (
    all_rows,
    begin_pair,
    kkt_summary,
    next_set,
    objective_gain,
    scatter,
    solve_block,
    solve_free,
)
from gpurbf.svm.two_step import TwoStep

# A pair up to this size is its own working set: LIBSVM's algorithm on a ready matrix. After so many
# steps, or one a sample, those go on alone that may still move, if they are this part of all.
WHOLE = 2048
_PAUSE, _FEWER = 500, 0.6
# Samples of a working set: a twelfth of all, within these limits. Smaller ones take more sets, and
# larger ones' blocks cost more than the rows that they save (docs/svc.md).
WORKING_SET = 512, 2048
_PART = 12
# f is evaluated again, in float64, where four standard deviations of what rounding may have done to
# it are more than this part of the violation; after so many times all that follows is float64.
TRUSTED, DEVIATIONS, _AGAIN = 0.25, 4, 4
# The inner loop ends when the violation is this part of what it was over all samples. A problem
# that is not solved by so many sets creeps along a valley: steps ahead do more for it than these.
INNER, LOOSE, MANY = 0.05, 0.2, 32
# As does one whose last set took so many steps for each of its members.
_LONG = 3
# A step ahead may need rows, by this part of those of the set before it.
_FEW = 4
# Kernel values that an uninterrupted call may read; some 20 ms.
_CALL = 50_000_000
# After so many steps free samples are solved for together if that costs no more: what it reads
# for one value read by a step in the same time, directions at the most, and how much closer than to
# the goal it is to come.
_WORTH, _DIRECTIONS, _CLOSER = 50, 1000, 0.5


@dataclass
class Solution:
    """What is known of a binary problem when its solver stops.

    ``beta`` are the dual coefficients y_i alpha_i. ``objective`` is the dual's in LIBSVM's sign (it
    is minimised), ``gap`` primal minus dual, both from the gradient that was stepped on.
    """

    beta: np.ndarray
    intercept: float
    steps: int
    violation: float
    objective: float
    gap: float
    converged: bool


def begin_on_matrix(
    K: np.ndarray,
    a: slice,
    b: slice,
    diagonal: np.ndarray,
    C: np.ndarray,
    tol: float,
    max_iter: int,
) -> tuple[Solution, np.ndarray, bool]:
    """The first steps of a pair of classes in a ready matrix, in one call: most need no more.

    Parameters
    ----------
    K : ndarray of shape (N, N)
    a, b : slice
        The classes' samples.
    diagonal, C : ndarray of shape (N,)
    tol, max_iter
        See :func:`solve_binary`.

    Returns
    -------
    solution : Solution
        Where these steps end.
    f : ndarray of shape (n,)
        What is left of y there.
    ended : bool
        Whether no step can follow.
    """
    most = max(_PAUSE, a.stop - a.start + b.stop - b.start)
    most = most if max_iter < 0 else min(most, max_iter)
    steps, violation, stuck, points, about = begin_pair(K, a, b, diagonal, C, tol, most)
    if violation != violation:
        raise FloatingPointError("not finite")
    intercept, objective, gap = about
    done = violation < tol
    solution = Solution(points[0], intercept, steps, violation, objective, gap, done)
    return solution, points[1], stuck or steps < most or steps == max_iter


def of_no_concern(rounding: float, squares: float, violation: float) -> bool:
    """Whether what rounding of values does to f, given changes of beta, is small beside it."""
    return DEVIATIONS * rounding * squares**0.5 <= TRUSTED * violation


def solve_binary(
    kernel: PairKernel,
    y: np.ndarray,
    C: np.ndarray,
    tol: float,
    max_iter: int,
    check: Callable[[int, float], bool],
    begun: tuple[np.ndarray, np.ndarray, int] | None = None,
) -> Solution:
    """Minimise ``beta·K beta / 2 - y·beta`` with ``0 <= y beta <= C`` and ``sum(beta) = 0``.

    Parameters
    ----------
    kernel : PairKernel
    y : ndarray of shape (n,)
        +1 or -1.
    C : ndarray of shape (n,)
        Upper bounds, positive; infinity is allowed.
    tol : float
        Stop when no pair of samples violates the optimality conditions by so much.
    max_iter : int
        Steps at most, -1 for no limit.
    check : callable
        Called between inner loops with the steps done and the violation; True ends the problem
        where it is.
    begun : (beta, f, steps), optional
        Where the first steps of a pair of up to `WHOLE` samples have led.

    Raises
    ------
    FloatingPointError
        If the kernel or the coefficients are not finite.
    """
    ends = C * y
    low, high = np.minimum(ends, 0.0), np.maximum(ends, 0.0)
    beta, f, steps = (np.zeros(len(y)), y.copy(), 0) if begun is None else begun
    # A product of more than 10,000 numbers would wake a BLAS's threads, which then spin.
    squares = 0.0 if begun is None else float(beta @ beta)
    problem = _Problem(kernel, low, high, beta, f, tol, max_iter, check, squares)
    steps, violation = problem.whole(steps) if len(y) <= WHOLE else problem.by_working_sets()
    intercept, objective, gap = kkt_summary(beta, f, y, C)
    return Solution(beta, intercept, steps, violation, objective, gap, violation < tol)


@dataclass
class _Problem:
    """The state of one binary problem; beta and f change in place."""

    kernel: PairKernel
    low: np.ndarray
    high: np.ndarray
    beta: np.ndarray
    f: np.ndarray
    tol: float
    max_iter: int
    check: Callable[[int, float], bool]
    # Of all changes of beta since f was last evaluated; and how often it was.
    squares: float = 0.0
    evaluated: int = 0
    plane: TwoStep = field(init=False)

    def whole(self, steps: int) -> tuple[int, float]:
        """All samples are the working set, until rounding of K is of no concern either."""
        kernel, n = self.kernel.whole(), len(self.f)
        rows = kernel.rows()
        while True:
            before = self.beta.copy() if self.kernel.rounding else self.beta
            steps, violation = self._on_matrix(kernel, rows, steps)
            change = self.beta - before
            self.squares += float(change @ change)
            if violation >= self.tol or self._trusted(self.tol):
                return steps, violation
            self._evaluate()
            if self.evaluated == _AGAIN:
                K = self.kernel.block(np.arange(n), slice(0, n), wide=True)
                kernel = MatrixPair(K, self.kernel.diagonal, slice(0, n), slice(n, n))
                rows = kernel.rows()

    def _on_matrix(self, kernel: Any, rows: Any, steps: int) -> tuple[int, float]:
        """Between looks at all samples, those that may move go on alone."""
        n = len(self.f)
        arrays = self.kernel.diagonal, self.low, self.high, self.beta, self.f
        pause = max(_PAUSE, n)
        while True:
            steps, violation, ended = self._inner(
                rows, *arrays, goal=self.tol, steps=steps, most=pause
            )
            if ended:
                return steps, violation
            members = self._unsettled()
            if len(members) > _FEWER * n:
                pause *= 2
                continue
            part = [values[members] for values in arrays]
            block, beta = kernel.block(members, slice(0, len(members))), part[3]
            steps = self._inner(all_rows(block), *part, goal=self.tol, steps=steps)[0]
            change = beta - self.beta[members]
            self.beta[members], changed = beta, np.flatnonzero(change)
            kernel.subtract(members[changed], change[changed], self.f)

    def _unsettled(self) -> np.ndarray:
        """All but those at a bound that no pair could leave by a step now: LIBSVM's shrinking."""
        f, rises, falls = self.f, self.beta < self.high, self.beta > self.low
        largest, smallest = f[rises].max(), f[falls].min()
        return np.flatnonzero(rises & (f >= smallest) | falls & (f <= largest) | rises & falls)

    def by_working_sets(self) -> tuple[int, float]:
        """Working sets until no pair of all samples violates by tol, or no step is left."""
        f, beta, low, high = self.f, self.beta, self.low, self.high
        members, fresh, size = np.zeros(0, np.intp), slice(0, 0), working_set_size(len(f))
        scratch, diagonal = np.empty((2, len(f))), self.kernel.diagonal
        self.plane = TwoStep(len(f))
        steps, sets, creeping = 0, 0, False
        while True:
            violation, chosen = next_set(
                beta, f, low, high, diagonal, scratch, members, fresh, size, self.tol
            )
            if violation != violation:
                raise FloatingPointError("not finite")
            if not self._trusted(max(violation, self.tol)):
                self._evaluate()
                self.plane.forget()
                continue
            if violation < self.tol or steps == self.max_iter or self.check(steps, violation):
                return steps, violation
            members, fresh, parts = chosen
            K = self.kernel.block(members, fresh, self.evaluated >= _AGAIN)
            goal = max(self.tol, (LOOSE if creeping else INNER) * violation)
            done = self._inner(all_rows(K), *parts, goal=goal, steps=steps)[0]
            if done == steps:
                return steps, violation
            sets += 1
            creeping = sets >= MANY or done - steps >= _LONG * size
            steps = done
            changed, change, squares = scatter(members, parts[3], beta)
            self._subtract(changed, change, squares, f)
            self.plane.add(beta, f)
            if creeping:
                self._go_ahead(len(changed) // _FEW)

    def _subtract(
        self, members: np.ndarray, change: np.ndarray, squares: float, f: np.ndarray
    ) -> None:
        """``f -= change @ K[members]``; squares of changes are summed: each may be wrong."""
        self.kernel.subtract(members, change, f, wide=self.evaluated >= _AGAIN)
        self.squares += squares

    def _go_ahead(self, most: int) -> None:
        """Go on where the last two changes lead, if it is better there and takes few rows."""
        plane = self.plane
        ahead = plane.ahead(self.low, self.high, most)
        if ahead is None:
            return
        change = ahead.change
        self._subtract(ahead.members, change, float(change @ change), ahead.point[1])
        # The difference of two objectives would be lost in rounding.
        gain, square = objective_gain(plane.newest, ahead.point)
        if gain > 0:
            self.beta[:], self.f[:] = ahead.point
            self.squares += square
            plane.add(self.beta, self.f)

    def _trusted(self, violation: float) -> bool:
        """Whether rounding of kernel values has moved f by little beside the violation."""
        if self.evaluated >= _AGAIN:
            return True
        return of_no_concern(self.kernel.rounding, self.squares, violation)

    def _evaluate(self) -> None:
        """f = y - K beta in float64."""
        self.f[:] = np.where(self.high > 0, 1.0, -1.0)
        support = np.flatnonzero(self.beta)
        self.kernel.subtract(support, self.beta[support], self.f, wide=True)
        self.squares = 0.0
        self.evaluated += 1

    def _inner(
        self,
        rows: Any,
        diagonal: np.ndarray,
        low: np.ndarray,
        high: np.ndarray,
        beta: np.ndarray,
        f: np.ndarray,
        *,
        goal: float,
        steps: int,
        most: float = np.inf,
    ) -> tuple[int, float, bool]:
        """Inner steps in calls short enough to be interrupted between them.

        The steps in all, the violation, and whether that is the end: not if it is for having done
        as many as these may be.
        """
        call, last, since = min(max(_PAUSE, len(f)), _CALL // len(f)), steps + most, 0
        if self.max_iter >= 0:
            last = min(last, self.max_iter)
        while True:
            left = int(min(call, last - steps))
            with stage("output training", "inner steps"):
                done, violation, stuck = solve_block(rows, diagonal, low, high, beta, f, goal, left)
                # For each sample, one to find the receiver, seven the giver, four to update f.
                count(operations=12 * done * len(f), kind="float64", nbytes=rows.K.nbytes)
            steps, since = steps + done, since + done
            if violation != violation:
                raise FloatingPointError("not finite")
            if stuck or done < left or steps == self.max_iter or self.check(steps, violation):
                return steps, violation, True
            if steps == last:
                return steps, violation, False
            with stage("output training", "free samples"):
                most = int(min(_DIRECTIONS, last - steps))
                values = min(_WORTH * len(f) * since, 20 * _CALL)
                found = solve_free(rows, low, high, beta, f, _CLOSER * goal, most, values)
            steps += found
            since = 0 if found else since


def working_set_size(n: int) -> int:
    """Samples of a working set where there are n, a multiple of 128."""
    least, most = WORKING_SET
    return min(most, max(least, n // _PART // 128 * 128))
