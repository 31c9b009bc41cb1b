"""All class pairs at once on a device: rounds of working sets, read by the host now and then."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from gpurbf.runtime.lazy import lazy_module
from gpurbf.runtime.stages import stage
from gpurbf.svm import binary
from gpurbf.svm.binary import Solution, working_set_size
from gpurbf.svm.cuda_rounds import Plan, Problems, Report, Rounds, plan
from gpurbf.svm.pair_kernel import KernelMatrix

cuda_smo_kernels = lazy_module("gpurbf.svm._cuda_smo_kernels")
smo_kernels = lazy_module("gpurbf.svm._smo_kernels")

# Rounds between two looks of the host, steps of a pair between them, and of a launch at least. A
# step takes 1.5 to 2 µs by estimate, not measured on a GPU: looks are 0.2 s apart at most.
_ROUNDS_PER_LOOK, _STEPS_PER_LOOK, _MIN_STEPS_PER_LAUNCH = 4, 100_000, 500
# On a device a step takes up to three times as long as on a CPU by that estimate; up to so many
# samples a CPU has all of the kernel in a moment.
_SLOWDOWN, _MAX_HOST_SAMPLES = 3, 4096


def keep_on_host(n_samples: int, n_classes: int, n_pairs: int) -> str:
    """Why "auto" shall not take a GPU for SVC; empty where one should win.

    All pairs step side by side there, each up to three times slower. So there are to be three times
    as many as a CPU has at work at a time: one a core, and no two of the same class. An estimate,
    not measured on a GPU.
    """
    at_work = max(1, min(os.cpu_count() or 1, n_classes // 2))
    if n_samples > _MAX_HOST_SAMPLES and n_pairs > _SLOWDOWN * at_work:
        return ""
    n, p = _MAX_HOST_SAMPLES + 1, _SLOWDOWN * at_work + 1
    return f"SVC takes a GPU from {n:,} samples and {p} pairs of classes on"


def problems_of(starts: np.ndarray, C: np.ndarray, pairs: list[tuple[int, int]]) -> Problems:
    """The pairs' binary problems end to end."""
    classes = [np.arange(a, b) for a, b in pairwise(starts)]
    samples = [np.concatenate([classes[a], classes[b]]) for a, b in pairs]
    signs = [np.repeat([1.0, -1.0], [len(classes[a]), len(classes[b])]) for a, b in pairs]
    lengths = [len(some) for some in samples]
    sizes = [n if n <= binary.MAX_SINGLE_SET else working_set_size(n) for n in lengths]
    numbers = np.concatenate(samples)
    return Problems(
        np.cumsum([0, *lengths]), numbers, np.concatenate(signs), C[numbers], np.array(sizes)
    )


def solve_side_by_side(
    kernel: KernelMatrix,
    problems: Problems,
    *,
    tol: float,
    max_iter: int,
    stepped: Callable[[int, int, float], bool],
    solved: Callable[[int, Solution], bool],
) -> list[Solution] | None:
    """The pairs' solutions, None where the device's memory is too small; see :func:`solve_pairs`.

    All pairs have begun before any is done, so there are none that ``solved`` could leave out.
    """
    with kernel.allocator():
        N = len(kernel.diagonal)
        planned = plan(N, kernel.dtype.itemsize, problems, kernel.free_bytes())
        if planned is None:
            kernel.description += (
                "; steps on the CPU: the GPU's memory budget is too small for them"
            )
            return None
        kernel.description += "; steps on the GPU, all pairs of classes side by side"
        waves = -(-len(problems.sizes) // planned.width)
        rules = cuda_smo_kernels.Rules(
            tol,
            max_iter,
            max(_MIN_STEPS_PER_LAUNCH, _STEPS_PER_LOOK // (_ROUNDS_PER_LOOK * waves)),
            binary.INNER_TOLERANCE,
            binary.CREEPING_TOLERANCE,
            binary.CREEPING_SETS,
            binary.ROUNDING_DEVIATIONS * kernel.rounding / binary.MAX_ROUNDING_PART,
        )
        rounds = Rounds(kernel.xp, problems, kernel.diagonal, kernel.dtype, planned, rules)
        return _Pairs(kernel, problems, rounds, planned, tol, stepped, solved).solve()


@dataclass
class _Pairs:
    """The host's side of the rounds."""

    kernel: KernelMatrix
    problems: Problems
    rounds: Rounds
    planned: Plan
    tol: float
    stepped: Callable[[int, int, float], bool]
    solved: Callable[[int, Solution], bool]

    def __post_init__(self) -> None:
        self._solutions: list[Solution] = [None] * len(self.problems.sizes)  # type: ignore[list-item]
        self._all = slice(0, len(self.kernel.diagonal))
        self._slab = self.planned.rows < len(self.kernel.diagonal)

    def solve(self) -> list[Solution]:
        """Make rounds until no pair goes on."""
        if not self._slab:
            self._evaluate(np.arange(self._all.stop))
        active, width = np.arange(len(self._solutions)), self.planned.width
        waves: list[Any] = []
        while len(active):
            numbers = [active[i : i + width] for i in range(0, len(active), width)]
            if not waves or len(numbers) < len(waves):
                waves = [self.rounds.wave(some) for some in numbers]
                round_ = self._round(numbers, waves)
            with stage("output training", "inner steps"):
                for _ in range(_ROUNDS_PER_LOOK):
                    round_()
                report = self.rounds.report()
            if not report.finite.all():
                raise FloatingPointError("not finite")
            going = np.array([self._goes_on(p, report) for p in active.tolist()])
            self._finish(active[~going].tolist(), report)
            active = active[going]
        return self._solutions

    def _round(self, numbers: list[np.ndarray], waves: list[Any]) -> Callable[[], None]:
        """A round of these pairs, of which some may have ended."""
        if not self._slab:
            return self.rounds.repeated(waves)

        def by_rows() -> None:
            for some, wave in zip(numbers, waves):
                self.rounds.select(wave)
                self._evaluate(self._union(some, wave))
                self.rounds.step(wave)

        return by_rows

    def _goes_on(self, p: int, report: Report) -> bool:
        """Whether a pair needs more rounds and is to have them."""
        if report.doubted[p]:
            self._correct(p)
        if not report.running[p]:
            return False
        ended = self.stepped(p, int(report.steps[p]), float(report.violation[p]))
        if ended:
            self.rounds.end(p)
        return not ended

    def _evaluate(self, samples: np.ndarray) -> None:
        """Evaluate the samples' rows of K in place of those in memory."""
        if len(samples):
            self.kernel.values(samples, self._all, self.rounds.place(samples))

    def _union(self, numbers: np.ndarray, wave: object) -> np.ndarray:
        """Samples that are in a working set of these pairs."""
        starts, samples = self.problems.starts, self.problems.samples
        members = self.rounds.members(wave)
        return np.unique(np.concatenate([samples[starts[p] + m] for p, m in zip(numbers, members)]))

    def _correct(self, p: int) -> None:
        """f = y - K beta in float64, where rounding of kernel values may have moved it."""
        part = slice(self.problems.starts[p], self.problems.starts[p + 1])
        samples, f = self.problems.samples[part], self.problems.y[part].copy()
        ((beta, _),) = self.rounds.states([p])
        support = np.flatnonzero(beta)
        rows = self.kernel.gathered(samples)
        f -= self.kernel.weighted(rows, samples[support], beta[support], True)
        self.rounds.correct(p, f)

    def _finish(self, ended: list[int], report: Report) -> None:
        """Make the solutions of pairs that have ended."""
        for p, (beta, f) in zip(ended, self.rounds.states(ended) if ended else []):
            part = slice(self.problems.starts[p], self.problems.starts[p + 1])
            y, C = self.problems.y[part], self.problems.C[part]
            low, high = np.minimum(C * y, 0.0), np.maximum(C * y, 0.0)
            violation = smo_kernels.kkt_violation(
                beta, low, high, f, np.empty_like(f), np.empty_like(f)
            )
            if np.isnan(violation):
                raise FloatingPointError("not finite")
            intercept, objective, gap = smo_kernels.kkt_summary(beta, f, y, C)
            steps, converged = int(report.steps[p]), violation < self.tol
            self._solutions[p] = Solution(
                beta, intercept, steps, violation, objective, gap, converged
            )
            self.solved(p, self._solutions[p])
