"""One binary SVC: a working set of the worst violators, solved inside, then everyone's gradient."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gpurbf._stages import count, stage
from gpurbf.backends.loops_smo import solve_block
from gpurbf.network.solvers.smo.kernel import PairKernel

__all__ = ["Solution", "solve_binary"]

# A pair up to this size is its own working set: LIBSVM's algorithm on a ready matrix.
WHOLE = 2048
# Smaller sets need many more outer steps, larger ones cost more than they save (docs/svc.md).
WORKING_SET = 1024
# The inner loop ends when the violation is this part of what it was over all samples.
INNER = 0.05
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
    low, high = np.where(y > 0, 0.0, -C), np.where(y > 0, C, 0.0)
    beta, f = np.zeros(len(y)), y.astype(np.float64)
    problem = _Problem(kernel, low, high, beta, f, tol, max_iter, check)
    steps, violation = problem.whole() if len(y) <= WHOLE else problem.by_working_sets()
    return _solution(beta, f, y, C, low, high, steps, violation, tol)


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

    def whole(self) -> tuple[int, float]:
        """All samples are the working set."""
        K = self.kernel.whole()
        arrays = self.kernel.diagonal, self.low, self.high, self.beta, self.f
        return self._inner(K, *arrays, self.tol, 0)

    def by_working_sets(self) -> tuple[int, float]:
        """Working sets until no pair of all samples violates by tol, or no step is left."""
        f, beta, low, high = self.f, self.beta, self.low, self.high
        members = np.zeros(0, np.intp)
        steps = 0
        while True:
            up = np.where(beta < high, f, -np.inf)
            down = np.where(beta > low, f, np.inf)
            violation = float(up.max() - down.min())
            if violation < self.tol or steps == self.max_iter or self.check(steps, violation):
                return steps, violation
            members = _working_set(up, down, members)
            before = beta[members]
            inside, f_inside = before.copy(), f[members]
            parts = self.kernel.diagonal[members], low[members], high[members]
            K = self.kernel.block(members)
            goal = max(self.tol, INNER * violation)
            done = self._inner(K, *parts, inside, f_inside, goal, steps)[0]
            if done == steps:
                return steps, violation
            steps = done
            changed = np.flatnonzero(inside != before)
            beta[members] = inside
            self.kernel.subtract(members[changed], (inside - before)[changed], f)

    def _inner(
        self,
        K: np.ndarray,
        diagonal: np.ndarray,
        low: np.ndarray,
        high: np.ndarray,
        beta: np.ndarray,
        f: np.ndarray,
        goal: float,
        steps: int,
    ) -> tuple[int, float]:
        """Inner steps in calls short enough to be interrupted between them."""
        call = max(100, _CALL // len(f))
        while True:
            left = call if self.max_iter < 0 else min(call, self.max_iter - steps)
            with stage("output training", "inner steps"):
                done, violation, stuck = solve_block(K, diagonal, low, high, beta, f, goal, left)
                # For each sample, one to find the receiver, seven the giver, four to update f.
                count(operations=12 * done * len(f), kind="float64", nbytes=K.nbytes)
            steps += done
            if not np.isfinite(f).all():
                raise FloatingPointError("not finite")
            if stuck or done < left or steps == self.max_iter or self.check(steps, violation):
                return steps, violation


def _working_set(up: np.ndarray, down: np.ndarray, previous: np.ndarray) -> np.ndarray:
    """The newer half of the previous set, then the worst of those that may rise and may fall.

    Keeping half stops the sets from alternating: what one solves the next would undo.
    """
    kept = previous[len(previous) // 2 :]
    up, down = up.copy(), down.copy()
    up[kept], down[kept] = -np.inf, np.inf
    half = (WORKING_SET - len(kept)) // 2
    rising = np.argpartition(up, len(up) - half)[len(up) - half :]
    rising = rising[up[rising] > -np.inf]
    down[rising] = np.inf
    falling = np.argpartition(down, half)[:half]
    falling = falling[down[falling] < np.inf]
    return np.concatenate([kept, rising, falling])


def _solution(
    beta: np.ndarray,
    f: np.ndarray,
    y: np.ndarray,
    C: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    steps: int,
    violation: float,
    tol: float,
) -> Solution:
    """Intercept as in LIBSVM: the mean over free samples, else the middle of what is allowed."""
    free = (beta > low) & (beta < high)
    if free.any():
        intercept = float(f[free].mean())
    else:
        intercept = float(f[beta < high].max() + f[beta > low].min()) / 2
    objective = -float(beta @ (y + f)) / 2
    # The output without the intercept is y - f, so the hinge loss is max(0, y (f - intercept)).
    hinge = np.maximum(0.0, y * (f - intercept))
    loss = float(C[hinge > 0] @ hinge[hinge > 0])
    gap = float(beta @ (y - f)) / 2 + loss + objective
    converged = violation < tol
    return Solution(beta, intercept, steps, violation, objective, gap, converged)
