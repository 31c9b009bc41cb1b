"""One binary SVC: a working set of the worst violators, steps inside it, the gradient of all."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpurbf.runtime.errors import OutOfRange
from gpurbf.runtime.lazy import lazy_module
from gpurbf.runtime.stages import count, stage
from gpurbf.svm.pair_kernel import OPERATIONS_PER_VALUE, EvaluatedPair, MatrixPair, rows_of

free_cg_kernels = lazy_module("gpurbf.svm._free_cg_kernels")
round_kernels = lazy_module("gpurbf.svm._round_kernels")
smo_kernels = lazy_module("gpurbf.svm._smo_kernels")
working_set_kernels = lazy_module("gpurbf.svm._working_set_kernels")

# A pair up to this size is its own working set on a ready matrix: LIBSVM's algorithm. After the
# steps of a call, samples that may still move go on alone if they are at most this part of all.
MAX_SINGLE_SET, _MAX_UNSETTLED_PART = 2048, 0.6
# Samples of a working set: a twelfth of all, within these limits. Smaller sets need more rounds,
# and blocks of larger sets cost more than the rows that they save (docs/notes/svc.md).
WORKING_SET_LIMITS = 512, 2048
_SAMPLES_PER_MEMBER = 12
# f is evaluated again, in float64, if four standard deviations of its rounding error are more than
# this part of the violation. After MAX_EVALUATIONS times, everything that follows is float64.
MAX_ROUNDING_PART, ROUNDING_DEVIATIONS, MAX_EVALUATIONS = 0.25, 4, 4
# A step ahead may need at most this part of the rows of the set before it.
_MAX_ROWS_AHEAD = 1 / 4
# The ridge of the 2 × 2 system for the best point of a plane, for changes that are nearly parallel.
# Maximum number of samples that share the correction that makes the sum of beta 0 again.
_AHEAD_RIDGE, _AHEAD_SHARERS = 1e-6, 16
# After steps, free samples are solved for together if that costs no more. Kernel values that this
# reads in the time in which a step reads one; maximum number of directions; tolerance as a part of
# the goal.
_FREE_VALUES_PER_STEP_VALUE, _MAX_FREE_DIRECTIONS, _FREE_TOLERANCE = 50, 1000, 0.5


@dataclass
class Solution:
    """The state of a binary problem when its solver stops.

    ``beta`` are the dual coefficients y_i alpha_i. ``objective`` is the dual's in LIBSVM's sign (it
    is minimised), ``gap`` primal minus dual, both from the gradient that the steps updated.
    """

    beta: np.ndarray
    steps: int
    violation: float
    converged: bool
    intercept: float
    objective: float
    gap: float


def solution_of(numbers: np.ndarray, steps: int, violation: float, tol: float) -> Solution:
    """The solution where a solver stops, from the problem's numbers."""
    summary = smo_kernels.kkt_summary(numbers)
    return Solution(numbers[3].copy(), steps, violation, violation < tol, *summary)


def begin_on_matrix(
    K: np.ndarray, bounds: np.ndarray, spans: np.ndarray, tol: float, max_iter: int
) -> Iterator[tuple[Solution, np.ndarray, bool]]:
    """The first steps of pairs of classes in a ready matrix, in one call; most need no more.

    Parameters
    ----------
    K : ndarray of shape (N, N)
    bounds : ndarray of shape (2, N)
        Diagonal of K as it is rounded, and upper bounds of alpha.
    spans : ndarray of shape (pairs, 4)
        Where both classes are: see `_smo_kernels.begin_pairs`.
    tol, max_iter
        See :class:`BinarySolver`.

    Yields
    ------
    solution : Solution
        Where these steps end.
    numbers : ndarray of shape (7, n)
        The pair's numbers there, see `_smo_kernels.solve_block`.
    ended : bool
        Whether no step can follow.
    """
    sizes, least = spans[:, 3].tolist(), smo_kernels.MIN_STEPS_PER_CALL
    n, total, width = max(sizes), 7 * sum(sizes), smo_kernels.PAIR_WORDS
    part = K if n == len(K) else np.empty((n, n), K.dtype)
    # One block of memory: asking NumPy for an address takes as long as a hundred steps.
    every = np.empty(total + width * len(sizes) + n // 8 + 1)
    address, diagonal = every.ctypes.data, bounds.ctypes.data
    pairs = every[total : total + width * len(sizes)].reshape(-1, width)
    about, to = pairs[:, smo_kernels.RESULTS_AT :], address + 8 * total
    rows = pairs.view(np.intp)[:, : smo_kernels.RESULTS_AT]
    rows[:, :3] = to + pairs.nbytes, K.ctypes.data, 0 if part is K else len(K)
    rows[:, 3:] = spans
    with stage("output training", "inner steps"):
        given = to, part.ctypes.data, diagonal, diagonal + bounds.strides[0], address
        step = smo_kernels.steps_of(K.dtype).address
        smo_kernels.begin_pairs(len(sizes), *given, step, tol, (least, max_iter))
        steps, violations = about[:, 0], about[:, 1]
        count(operations=OPERATIONS_PER_VALUE * int(steps @ spans[:, 3]), kind="float64")
    if np.isnan(violations).any():
        raise OutOfRange("kernel values")
    at = 0
    for n, (made, violation, stuck, *summary) in zip(sizes, about.tolist()):
        numbers, at = every[at : at + 7 * n].reshape(7, n), at + 7 * n
        solution = Solution(numbers[3].copy(), int(made), violation, violation < tol, *summary)
        yield solution, numbers, bool(stuck) or made < max(least, n) or made == max_iter


def rounding_is_small(rounding: float, squares: float, violation: float) -> bool:
    """Whether the effect of rounded kernel values on f is small compared with the violation.

    ``squares`` is the sum of squares of all changes of beta.
    """
    # As in compiled rounds: for some numbers ``** 0.5`` has another last digit than the root.
    return ROUNDING_DEVIATIONS * rounding * math.sqrt(squares) <= MAX_ROUNDING_PART * violation


@dataclass
class BinarySolver:
    """Minimises ``beta·K beta / 2 - y·beta`` with ``0 <= y beta <= C`` and ``sum(beta) = 0``.

    Parameters
    ----------
    kernel : EvaluatedPair
        It has the samples; those of its first class have y = +1, the others -1.
    bounds : ndarray of shape (N,)
        Upper bounds of all samples, positive; infinity is allowed.
    tol : float
        Stop when no pair of samples violates the optimality conditions by this much.
    max_iter : int
        Maximum number of steps.
    check : callable
        Called between inner loops with the steps done and the violation; True ends the problem
        where it is.
    begun : (numbers, steps), optional
        The state after the first steps of a pair of up to `MAX_SINGLE_SET` samples; its numbers
        change in place.
    """

    kernel: EvaluatedPair
    bounds: np.ndarray
    tol: float
    max_iter: int
    check: Callable[[int, float], bool]
    begun: tuple[np.ndarray, int] | None

    def __post_init__(self) -> None:
        # Sum of squares of all changes of beta since f was last evaluated; number of evaluations.
        self.steps, self.squares, self.evaluated = 0, 0.0, 0
        if self.begun is None:
            pair = self.kernel
            self.numbers = working_set_kernels.beginning(
                pair.samples, pair.n_a, pair.kernel.diagonal, self.bounds
            )
        else:
            self.numbers, self.steps = self.begun
            # Of few numbers: more than 10,000 would wake a BLAS's threads, which then spin.
            self.squares = float(self.numbers[3] @ self.numbers[3])
        self.low, self.high, self.beta, self.f = self.numbers[1:5]

    def solve(self) -> Solution:
        """The solution.

        Raises
        ------
        FloatingPointError
            If the kernel or the coefficients are not finite.
        """
        # Pairs that have begun are their own working set, on a ready matrix.
        violation = self.by_working_sets() if self.begun is None else self.whole()
        if violation >= self.tol and not self._trusted(violation):
            self._evaluate()  # rounding may have moved f
            violation = float(smo_kernels.kkt_violation(self.numbers))
        return solution_of(self.numbers, self.steps, violation, self.tol)

    def whole(self) -> float:
        """Step with all samples as the working set, until rounding of K does not matter either.

        Returns the violation, as `by_working_sets` does.
        """
        kernel: Any = self.kernel
        while True:
            before = self.beta.copy() if self.kernel.rounding else self.beta
            violation = self._on_matrix(kernel)
            change = self.beta - before
            self.squares += float(change @ change)
            if violation >= self.tol or self._trusted(self.tol):
                return violation
            self._evaluate()
            if not self.kernel.rounding:
                n = len(self.f)
                K = self.kernel.block(np.arange(n), slice(0, n))
                self.numbers[0] = K.diagonal()
                kernel = MatrixPair(K, 0, n, self.kernel.kernel, slice(0, n), slice(n, n))

    def _on_matrix(self, kernel: MatrixPair) -> float:
        """Between checks of all samples, the samples that may still move go on alone."""
        n = len(self.f)
        pause = max(smo_kernels.MIN_STEPS_PER_CALL, n)
        while True:
            violation, ended = self._inner(kernel.rows, self.numbers, self.tol, pause)
            if ended:
                return violation
            members = self._unsettled()
            if len(members) > _MAX_UNSETTLED_PART * n:
                pause *= 2
                continue
            part = self.numbers.take(members, axis=1)
            block, beta = kernel.block(members, slice(0, len(members))), part[3]
            self._inner(rows_of(block, block), part, self.tol)
            change = beta - self.beta[members]
            self.beta[members], changed = beta, np.flatnonzero(change)
            kernel.subtract(members[changed], change[changed], self.f)

    def _unsettled(self) -> np.ndarray:
        """All samples except those at a bound that no step could leave now: LIBSVM's shrinking."""
        f, rises, falls = self.f, self.beta < self.high, self.beta > self.low
        largest, smallest = f[rises].max(), f[falls].min()
        return np.flatnonzero(rises & (f >= smallest) | falls & (f <= largest) | rises & falls)

    def by_working_sets(self) -> float:
        """Solve working sets until no pair of samples violates by tol, or no step is possible."""
        self.rounds, self.plane = self.kernel.rounds, TwoStep(self.numbers)
        self.size = working_set_size(len(self.f))
        # The members of the last set, whether its newer half is at the end, and how many of them
        # have their kernel in the block of compiled rounds.
        self.last: tuple[np.ndarray, bool, int] = np.empty(0, np.intp), True, 0
        # The number of sets so far; of steps inside the last one, if Python made these (compiled
        # rounds make fewer than members); and of members that it changed.
        self.sets = self.inside = self.changed = 0
        self.creeping = False
        while True:
            compiled = self.kernel.keeping and self.rounds and self.rounds.needs_no_help()
            violation = self._compiled_rounds() if compiled else self._round()
            if violation is not None:
                return violation
            creeps = self.inside >= smo_kernels.CREEPING_STEPS_PER_MEMBER * self.size
            self.creeping = creeps or self.sets >= smo_kernels.CREEPING_SETS
            if self.creeping:
                self.rounds = None  # no more compiled rounds
                self._go_ahead(int(_MAX_ROWS_AHEAD * self.changed))

    def _compiled_rounds(self) -> float | None:
        """Rounds in one compiled call on this thread.

        Returns the violation if it is small enough, or if no step is possible in the set that the
        call has begun; else None.
        """
        rounding = ROUNDING_DEVIATIONS * self.kernel.rounding / MAX_ROUNDING_PART
        limits = self.tol, rounding, self.size, self.max_iter
        state = self.steps, self.sets, self.squares, *self.last
        outcome, (violation, inside, values), state = self.rounds.run(
            self.kernel, self.numbers, limits, state
        )
        self.steps, self.sets, self.squares, *last, changed, _, _ = state
        # Before steps ahead, which end compiled rounds, each set adds a point.
        self.last, self.plane.added = tuple(last), self.sets
        if outcome == round_kernels.STEP:
            return self._step(self.rounds.block(len(values[0])), violation, values, inside)
        self.changed = len(changed)
        self.check(self.steps, np.inf)  # single sets are not reported, but all pairs may be stopped
        if outcome == round_kernels.LOOK:
            if violation < self.tol and self._trusted(self.tol):
                return violation
            self.rounds = None
        return None

    def _round(self) -> float | None:
        """A round for any backend, on all free threads; the violation if it was the last one."""
        members, last, ready = self.last
        violation, members, begin, end, values = working_set_kernels.next_set(
            self.numbers, members, last, self.size, self.tol
        )
        if violation != violation:
            raise OutOfRange("kernel values")
        if not self._trusted(max(violation, self.tol)):
            self._evaluate()
            self.plane.forget()
            return None
        steps = self.steps
        if violation < self.tol or steps == self.max_iter or self.check(steps, violation):
            return violation
        self.last = members, end == len(members), 0
        K = self.kernel.block(members, slice(0, len(members)) if ready else slice(begin, end))
        return self._step(K, violation, values, 0)

    def _step(self, K: Any, violation: float, values: Any, begun: int) -> float | None:
        """Step inside the last set, after ``begun`` steps; the violation if no step is possible."""
        before, members = self.steps - begun, self.last[0]
        values[0] = K.diagonal()  # curvatures must be of numbers that were rounded alike
        usual, creeping = smo_kernels.INNER_TOLERANCE, smo_kernels.CREEPING_TOLERANCE
        goal = max(self.tol, (creeping if self.creeping else usual) * violation)
        self._inner(rows_of(K, K), values, goal, since=begun)
        if self.steps == before:
            return violation
        changed, change, squares = working_set_kernels.scatter(members, values[3], self.beta)
        self.kernel.subtract(changed, change, self.f)
        self.squares += squares
        self.plane.add(self.beta, self.f)
        self.sets += 1
        self.inside, self.changed = self.steps - before, len(changed)
        return None

    def _go_ahead(self, most: int) -> None:
        """Go on where the last two changes lead, if that point is better and takes few rows."""
        ahead = self.plane.ahead(self.low, self.high, most)
        if ahead is None:
            return
        point, members, change = ahead
        self.kernel.subtract(members, change, point[1])
        self.squares += float(change @ change)
        # The difference of two objectives would be lost in rounding.
        gain, square = smo_kernels.objective_gain(self.plane.point(0), point)
        if gain > 0:
            self.beta[:], self.f[:] = point
            self.squares += square
            self.plane.add(self.beta, self.f)

    def _trusted(self, violation: float) -> bool:
        """Whether rounding of kernel values has moved f by little compared with the violation."""
        rounding = self.kernel.rounding
        return not rounding or rounding_is_small(rounding, self.squares, violation)

    def _evaluate(self) -> None:
        """f = y - K beta in float64; after the last time all values are float64."""
        self.f[:] = np.where(self.high > 0, 1.0, -1.0)
        support = np.flatnonzero(self.beta)
        self.kernel.wide.subtract(support, self.beta[support], self.f)
        self.squares = 0.0
        self.evaluated += 1
        if self.evaluated == MAX_EVALUATIONS:
            self.kernel = self.kernel.wide

    def _inner(
        self, rows: Any, numbers: np.ndarray, goal: float, most: float = np.inf, since: int = 0
    ) -> tuple[float, bool]:
        """Inner steps in calls short enough to be interrupted between them.

        Parameters
        ----------
        rows : tuple
            The kernel between the samples of the set, see `rows_of`.
        numbers : ndarray of shape (7 or more, n)
            Theirs, see `_smo_kernels.solve_block`.
        goal : float
            The violation at which steps end.
        most : float
            Maximum number of steps.
        since : int
            Steps that were made with these numbers already.

        Returns
        -------
        violation : float
        ended : bool
            Whether no step can follow; False if ``most`` steps were made.
        """
        n, (K, words, _) = numbers.shape[1], rows
        most_values = smo_kernels.MAX_VALUES_PER_CALL
        call = min(max(smo_kernels.MIN_STEPS_PER_CALL, n), most_values // n)
        last = min(self.steps + most, self.max_iter)
        while True:
            if since:
                with stage("output training", "free samples"):
                    most = int(min(_MAX_FREE_DIRECTIONS, last - self.steps))
                    values = min(_FREE_VALUES_PER_STEP_VALUE * n * since, 20 * most_values)
                    given = K, words.ctypes.data, smo_kernels.subtraction_of(K.dtype).address
                    found, read = free_cg_kernels.solve_free(
                        *given, numbers, _FREE_TOLERANCE * goal, most, values
                    )
                    count(operations=2 * read, kind="float64", nbytes=K.itemsize * read)
                self.steps += found
                since = 0 if found else since
            left = int(min(call, last - self.steps))
            with stage("output training", "inner steps"):
                done, violation, stuck = smo_kernels.solve_block(rows, numbers, goal, left)
                count(operations=OPERATIONS_PER_VALUE * done * n, kind="float64", nbytes=K.nbytes)
            self.steps, since = self.steps + done, since + done
            if violation != violation:
                raise OutOfRange("kernel values")
            ended = stuck or done < left or self.steps == self.max_iter
            if ended or self.check(self.steps, violation):
                return violation, True
            if self.steps == last:
                return violation, False


class TwoStep:
    """The plane through the last three points: the last changes of f tell f on all of it.

    If C is large, a working set undoes a part of what the sets before it did, and the sets creep
    along a valley. As with conjugate gradients, the best point of the plane that the last two
    changes span is far ahead (inside SMO: Torres-Barrán, Alaíz, Dorronsoro, "Faster SVM training
    via conjugate SMO", 2021); samples that are beyond their bounds there are put back.
    """

    def __init__(self, numbers: np.ndarray) -> None:
        # Beta and f of the last three points; the newest is the one before `added`, modulo 3.
        self.points = numbers[7:].reshape(3, 2, -1)
        self.added = self._first = 0

    def forget(self) -> None:
        """Forget the changes that were remembered."""
        self._first = self.added

    def point(self, age: int) -> np.ndarray:
        """A point, the newest of age 0."""
        return self.points[(self.added - 1 - age) % 3]

    def add(self, beta: np.ndarray, f: np.ndarray) -> None:
        """Remember the next point; copies are made, over the oldest."""
        self.added += 1
        working_set_kernels.remember(self.point(0), beta, f)

    def ahead(
        self, low: np.ndarray, high: np.ndarray, most: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """The best point within the bounds, if there is one that takes at most ``most`` rows.

        Returns
        -------
        point : ndarray of shape (2, n)
            Beta and f, but f does not include the effect of the members' changes.
        members, change : ndarray
            Samples that were put back, and the changes of their beta.
        """
        if self.added - self._first < 3:
            return None
        newest, old, oldest = map(self.point, range(3))
        point, back = np.empty_like(newest), np.empty_like(low)
        n_back, left = working_set_kernels.look_ahead(
            newest, old, oldest, low, high, _AHEAD_RIDGE, point, back
        )
        if not 0 <= n_back <= most:
            return None
        if left:
            beta = point[0]
            sharers = np.flatnonzero(newest[0] != old[0])
            room = np.abs((low if left > 0 else high) - beta)[sharers].clip(max=abs(left))
            chosen = np.argsort(-room, kind="stable")[:_AHEAD_SHARERS]
            sharers, room = sharers[chosen], room[chosen]
            if not room.sum() > abs(left):
                return None
            share = -left * room / room.sum()
            beta[sharers] += share
            back[sharers] += share
        members = np.flatnonzero(back)
        return point, members, back[members]


def working_set_size(n: int) -> int:
    """Size of a working set for n samples, a multiple of 128."""
    least, most = WORKING_SET_LIMITS
    return min(most, max(least, n // _SAMPLES_PER_MEMBER // 128 * 128))
