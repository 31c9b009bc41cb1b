"""One binary SVC: a working set of the worst violators, solved inside, then everyone's gradient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpurbf._stages import count, stage
from gpurbf.backends.loops_smo import (
    all_rows,
    gained,
    gather,
    open_ends,
    put_back,
    solve_block,
    summary,
    worst,
)
from gpurbf.network.solvers.smo.conjugate import Plane
from gpurbf.network.solvers.smo.kernel import PairKernel

__all__ = ["Solution", "solve_binary", "working_set_size"]

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


def solve_binary(
    kernel: PairKernel,
    y: np.ndarray,
    C: np.ndarray,
    tol: float,
    max_iter: int,
    check: Callable[[int, float], bool],
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

    Raises
    ------
    FloatingPointError
        If the kernel or the coefficients are not finite.
    """
    ends = C * y
    low, high = np.minimum(ends, 0.0), np.maximum(ends, 0.0)
    beta, f = np.zeros(len(y)), y.copy()
    problem = _Problem(kernel, low, high, beta, f, tol, max_iter, check)
    steps, violation = problem.whole() if len(y) <= WHOLE else problem.by_working_sets()
    intercept, objective, gap = summary(beta, f, y, C)
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
    plane: Plane = field(init=False)

    def whole(self) -> tuple[int, float]:
        """All samples are the working set; between looks at all of them, those that may move."""
        kernel, n = self.kernel.whole(), len(self.f)
        rows = kernel.rows()
        arrays = self.kernel.diagonal, self.low, self.high, self.beta, self.f
        steps, pause = 0, max(_PAUSE, n)
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
        up, down = np.empty_like(f), np.empty_like(f)
        self.plane = Plane(len(f))
        steps, sets, creeping = 0, 0, False
        while True:
            violation = open_ends(beta, low, high, f, up, down)
            if np.isnan(violation):
                raise FloatingPointError("not finite")
            if not self._trusted(max(violation, self.tol)):
                self._evaluate()
                continue
            if violation < self.tol or steps == self.max_iter or self.check(steps, violation):
                return steps, violation
            members, fresh = _working_set(up, down, members, fresh, size)
            parts = gather(members, self.kernel.diagonal, low, high, beta, f)
            K = self.kernel.block(members, fresh)
            goal = max(self.tol, (LOOSE if creeping else INNER) * violation)
            done = self._inner(all_rows(K), *parts, goal=goal, steps=steps)[0]
            if done == steps:
                return steps, violation
            sets += 1
            creeping = sets >= MANY or done - steps >= _LONG * size
            steps = done
            changed, change = put_back(members, parts[3], beta)
            self._subtract(changed, change, f)
            self.plane.add(beta, f)
            if creeping:
                self._go_ahead(len(changed) // _FEW)

    def _subtract(self, members: np.ndarray, change: np.ndarray, f: np.ndarray) -> None:
        """``f -= change @ K[members]``; changes are counted where they may be wrong."""
        self.kernel.subtract(members, change, f, wide=self.evaluated >= _AGAIN)
        self.squares += float(change @ change)

    def _go_ahead(self, most: int) -> None:
        """Go on where the last two changes lead, if it is better there and takes few rows."""
        plane = self.plane
        ahead = plane.ahead(self.low, self.high, most)
        if ahead is None:
            return
        self._subtract(ahead.members, ahead.change, ahead.point[1])
        # The difference of two objectives would be lost in rounding.
        gain, square = gained(plane.newest, ahead.point)
        if gain > 0:
            self.beta[:], self.f[:] = ahead.point
            self.squares += square
            plane.add(self.beta, self.f)

    def _trusted(self, violation: float) -> bool:
        """Whether rounding of kernel values has moved f by little beside the violation."""
        if self.evaluated >= _AGAIN:
            return True
        error = DEVIATIONS * self.kernel.rounding * self.squares**0.5
        return error <= TRUSTED * violation

    def _evaluate(self) -> None:
        """f = y - K beta in float64."""
        self.f[:] = np.where(self.high > 0, 1.0, -1.0)
        support = np.flatnonzero(self.beta)
        self.kernel.subtract(support, self.beta[support], self.f, wide=True)
        self.squares = 0.0
        self.evaluated += 1
        self.plane.forget()

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
        call, last = max(100, _CALL // len(f)), steps + most
        if self.max_iter >= 0:
            last = min(last, self.max_iter)
        while True:
            left = int(min(call, last - steps))
            with stage("output training", "inner steps"):
                done, violation, stuck = solve_block(rows, diagonal, low, high, beta, f, goal, left)
                # For each sample, one to find the receiver, seven the giver, four to update f.
                count(operations=12 * done * len(f), kind="float64", nbytes=rows.K.nbytes)
            steps += done
            if not np.isfinite(f).all():
                raise FloatingPointError("not finite")
            if stuck or done < left or steps == self.max_iter or self.check(steps, violation):
                return steps, violation, True
            if steps == last:
                return steps, violation, False


def working_set_size(n: int) -> int:
    """Samples of a working set where there are n, a multiple of 128."""
    least, most = WORKING_SET
    return min(most, max(least, n // _PART // 128 * 128))


def _working_set(
    up: np.ndarray, down: np.ndarray, previous: np.ndarray, newest: slice, size: int
) -> tuple[np.ndarray, slice]:
    """The newer half of the previous set, and the worst of those that may rise and may fall.

    Keeping half stops the sets from alternating: what one solves the next would undo. It stays
    where it is, and the others take the place of the older half: they are the slice that comes
    with the members.
    """
    half = len(previous) // 2
    last = newest.stop == len(previous)
    kept = previous[half:] if last else previous[:half]
    others = worst(up, down, kept, (size - len(kept)) // 2)
    if last:
        return np.concatenate([others, kept]), slice(0, len(others))
    return np.concatenate([kept, others]), slice(len(kept), len(kept) + len(others))
