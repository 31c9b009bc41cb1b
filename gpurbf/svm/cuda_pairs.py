"""All class pairs at once on a device: rounds of working sets, read by the host now and then."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from gpurbf.runtime.arrays import to_host
from gpurbf.runtime.errors import OutOfRange
from gpurbf.runtime.lazy import lazy_module
from gpurbf.runtime.stages import stage
from gpurbf.svm import binary
from gpurbf.svm.binary import Solution, solution_of, working_set_size
from gpurbf.svm.kernel_matrix import KernelRows

cuda_api = lazy_module("gpurbf.runtime.jit.cuda_api")
cuda_smo_kernels = lazy_module("gpurbf.svm._cuda_smo_kernels")
smo_kernels = lazy_module("gpurbf.svm._smo_kernels")

# Rounds between two looks of the host, maximum number of steps of a pair between them, minimum
# number of steps of a launch. A step takes an estimated 1.5 to 2 µs, not measured on a GPU: looks
# are at most 0.2 s apart.
_ROUNDS_PER_LOOK, _STEPS_PER_LOOK, _MIN_STEPS_PER_LAUNCH = 4, 100_000, 500
# Threads of a block that steps or selects, and of one that gathers or updates; maximum number of
# the latter blocks per pair.
_STEP_THREADS, _UPDATE_THREADS, _MAX_BLOCKS_PER_PAIR = 512, 256, 64
# Parts of the free memory for kernel values and for blocks between members; the rest is for
# evaluating values.
_MATRIX_PART, _BLOCKS_PART = 0.5, 0.25


class Problems(NamedTuple):
    """Binary problems end to end, problem p at starts[p] to starts[p + 1].

    ``samples`` of the kernel, ``bounds`` y C of their beta (y is +1 or -1), and ``sizes`` of
    working sets; a problem that is no larger is its own set.
    """

    starts: np.ndarray
    samples: np.ndarray
    bounds: np.ndarray
    sizes: np.ndarray


def problems_of(
    starts: np.ndarray, C: np.ndarray, pairs: list[tuple[int, int]], set_size: int | None = None
) -> Problems:
    """The pairs' binary problems end to end; ``set_size`` if that of working sets is stated."""
    classes = [np.arange(a, b) for a, b in pairwise(starts)]
    samples = np.concatenate([classes[c] for pair in pairs for c in pair])
    bounds = np.concatenate([end for a, b in pairs for end in (C[classes[a]], -C[classes[b]])])
    lengths = [len(classes[a]) + len(classes[b]) for a, b in pairs]
    own_set = binary.MAX_SINGLE_SET
    sizes = [set_size or (n if n <= own_set else working_set_size(n)) for n in lengths]
    return Problems(np.cumsum([0, *lengths]), samples, bounds, np.array(sizes))


def pairs_that_fit(N: int, itemsize: int, problems: Problems, room: float) -> int:
    """Maximum number of problems at work at a time besides all of K (N, N).

    Raises a MemoryError if ``room``, the bytes besides those of samples, is too little.
    """
    size, n_problems = int(problems.sizes.max()), len(problems.sizes)
    left = room - 40 * len(problems.samples) - 4 * size * n_problems - 16 * N
    width = int(_BLOCKS_PART * left // (size * (itemsize * size + 16)))
    if width < 1 or itemsize * N * N > _MATRIX_PART * left:
        raise MemoryError("kernel values")
    return min(n_problems, width)


def solve_side_by_side(solver: Any, set_size: int | None = None) -> bool:
    """Find the solutions of a `pairs.PairsSolver`; False if the device's memory is too small.

    All pairs have begun before any is done, so ``solver.solved`` cannot leave out any.
    """
    kernel, tol, stepped = solver.kernel, solver.tol, solver.stepped or (lambda *_: False)
    problems = problems_of(solver.starts, solver.C, solver.pairs, set_size)
    with kernel.allocator():
        N, room = len(kernel.diagonal), kernel.free_bytes() - kernel.packed_bytes
        try:
            width = pairs_that_fit(N, kernel.dtype.itemsize, problems, room)
            n_waves = -(-len(problems.sizes) // width)
            rules = cuda_smo_kernels.Rules(
                tol,
                solver.max_iter,
                max(_MIN_STEPS_PER_LAUNCH, _STEPS_PER_LOOK // (_ROUNDS_PER_LOOK * n_waves)),
                binary.ROUNDING_DEVIATIONS * kernel.rounding / binary.MAX_ROUNDING_PART,
            )
            rounds = Rounds(kernel, problems, width, rules)
            kernel.values(np.arange(N), slice(0, N), rounds.K)
        except MemoryError:  # another program may have taken what was free
            kernel.description += (
                "; steps on the CPU: the GPU's memory budget does not hold all kernel values"
            )
            return False
        kernel.description += "; steps on the GPU, all pairs of classes side by side"
        solutions, active = solver.solutions, np.arange(len(problems.sizes))
        corrections = np.zeros(len(active), int)
        while len(active):
            parts = (active[i : i + width] for i in range(0, len(active), width))
            waves = [kernel.xp.asarray(some.astype(np.int32)) for some in parts]
            with stage("output training", "inner steps"):
                for _ in range(_ROUNDS_PER_LOOK):
                    for wave in waves:
                        rounds.step(wave)
                state, steps, violation = rounds.progress()
            if (state == cuda_smo_kernels.NOT_FINITE).any():
                raise OutOfRange("kernel values")
            doubted = active[state[active] == cuda_smo_kernels.DOUBTED]
            corrections[doubted] += 1
            for p in doubted.tolist():
                if corrections[p] <= binary.MAX_EVALUATIONS:
                    rounds.correct(p)
                else:  # only the CPU's steps go over to float64
                    solver.solve_evaluated(p)
            active = active[corrections[active] <= binary.MAX_EVALUATIONS]
            going = state[active] != cuda_smo_kernels.ENDED
            for i, p in enumerate(active.tolist()):
                if going[i] and stepped(p, int(steps[p]), float(violation[p])):
                    going[i] = False
            ended = active[~going].tolist()
            for p, point in zip(ended, rounds.points(ended)):
                solutions[p] = _solution(problems, p, point, int(steps[p]), tol)
                solver.solved(p, solutions[p])
            active = active[going]
        if again := np.count_nonzero(corrections > binary.MAX_EVALUATIONS):
            kernel.description += f", {again} again on the CPU, in float64"
        return True


def _solution(problems: Problems, p: int, point: np.ndarray, steps: int, tol: float) -> Solution:
    """The solution of a problem that has ended, judged on the host."""
    bounds = problems.bounds[problems.starts[p] : problems.starts[p + 1]]
    numbers = np.zeros((7, len(bounds)))
    numbers[1:5] = np.minimum(bounds, 0.0), np.maximum(bounds, 0.0), *point
    violation = smo_kernels.kkt_violation(numbers)
    if np.isnan(violation):
        raise OutOfRange("kernel values")
    return solution_of(numbers, steps, violation, tol)


class Rounds:
    """The state of all problems on the device, and the rounds that change it.

    Parameters
    ----------
    kernel : KernelRows
        The kernel; its arrays are on the device.
    problems : Problems
    width : int
        Number of problems at work at a time.
    rules : Rules
        See :class:`gpurbf.svm._cuda_smo_kernels.Rules`.
    """

    def __init__(self, kernel: KernelRows, problems: Problems, width: int, rules: Any) -> None:
        xp, N, dtype = kernel.xp, len(kernel.diagonal), kernel.dtype
        self.kernel, self.problems, self._rules = kernel, problems, rules
        n_problems, size = len(problems.sizes), int(problems.sizes.max())
        self._longest = int(np.diff(problems.starts).max())
        self._points = xp.zeros((2, len(problems.bounds)))  # beta and f
        self._points[1] = xp.asarray(np.sign(problems.bounds))
        self.K = xp.empty((N, N), dtype)
        self._progress = xp.zeros((n_problems, 6))
        pairs = cuda_smo_kernels.Pairs(
            starts=xp.asarray(problems.starts),
            samples=xp.asarray(problems.samples),
            bounds=xp.asarray(problems.bounds),
            beta=self._points[0],
            f=self._points[1],
            keys=xp.empty(len(problems.bounds), np.int64),
            sizes=xp.asarray(problems.sizes),
            members=xp.zeros((n_problems, size), np.int32),
            counts=xp.zeros(n_problems, np.int32),
            K=self.K,
            blocks=xp.empty((width, size, size), dtype),
            diagonals=xp.empty((width, size)),
            changes=xp.empty((width, size)),
        )
        # The arguments keep their arrays alive.
        self._pairs = cuda_smo_kernels.Pairs(*map(cuda_api.argument, pairs))
        self._table = cuda_api.argument(self._progress)

    def step(self, wave: Any) -> None:
        """Judge each problem, choose working sets, step inside these, update f of all samples.

        ``wave`` are the numbers (int32) of problems that are at work together, on the device.
        """
        kernels, stream = cuda_smo_kernels, cuda_api.current_stream()
        state = cuda_api.argument(wave), self._pairs, self._table
        kernels.select[len(wave), _STEP_THREADS, stream](*state, self._rules)
        grid = len(wave), min(_MAX_BLOCKS_PER_PAIR, self._longest)
        kernels.gather[grid, _UPDATE_THREADS, stream](*state)
        kernels.inner[len(wave), _STEP_THREADS, stream](*state, self._rules)
        grid = len(wave), min(_MAX_BLOCKS_PER_PAIR, -(-self._longest // _UPDATE_THREADS))
        kernels.update[grid, _UPDATE_THREADS, stream](*state)

    def progress(self) -> np.ndarray:
        """State, steps and violation (3, n_problems) of the rounds so far; waits for them."""
        columns = cuda_smo_kernels.STATE, cuda_smo_kernels.STEPS, cuda_smo_kernels.VIOLATION
        return to_host(self._progress).T[list(columns)]

    def points(self, problems: list[int]) -> list[np.ndarray]:
        """Beta and f (2, n) of each of these problems."""
        if not problems:
            return []
        starts = self.problems.starts
        numbers = [np.arange(starts[p], starts[p + 1]) for p in problems]
        there = self.kernel.xp.asarray(np.concatenate(numbers))
        ends = np.cumsum([len(some) for some in numbers])[:-1]
        return np.split(to_host(self._points[:, there]), ends, axis=1)

    def correct(self, p: int) -> None:
        """Evaluate f = y - K beta in float64, as rounding of K may have moved it, and go on."""
        kernel, problems = self.kernel, self.problems
        part = slice(problems.starts[p], problems.starts[p + 1])
        samples, f = problems.samples[part], np.sign(problems.bounds[part])
        beta = to_host(self._points[0, part])
        support = np.flatnonzero(beta)
        f -= kernel.weighted(kernel.gathered(samples), samples[support], beta[support], True)
        self._points[1, part] = kernel.xp.asarray(f)
        self._progress[p : p + 1, cuda_smo_kernels.STATE] = cuda_smo_kernels.RUNNING
        self._progress[p : p + 1, cuda_smo_kernels.SQUARES] = 0.0
