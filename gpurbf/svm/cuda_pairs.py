"""All class pairs at once on a device: rounds of working sets, read by the host now and then."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from gpurbf.runtime.stages import stage
from gpurbf.svm import binary
from gpurbf.svm.binary import Solution, working_set_size
from gpurbf.svm.cuda_rounds import Plan, Problems, Report, Rounds, Stop, plan
from gpurbf.svm.pair_kernel import KernelMatrix
from gpurbf.svm.smo import kkt_summary, kkt_violation

# Rounds between two looks of the host, steps of a pair between them, and of a launch at least. A
# step takes 1.5 to 2 µs by estimate, not measured on a GPU: looks are 0.2 s apart at most.
_ROUNDS, _STEPS, _LEAST = 4, 100_000, 500
# On a device a step takes up to three times as long as on a CPU by that estimate; up to so many
# samples a CPU has all of the kernel in a moment.
_SLOWER, _SMALL = 3, 4096


def keep_on_host(n_samples: int, n_classes: int, n_pairs: int) -> str:
    """Why "auto" shall not take a GPU for SVC; empty where one should win.

    All pairs step side by side there, each up to three times slower. So there are to be three times
    as many as a CPU has at work at a time: one a core, and no two of the same class. An estimate,
    not measured on a GPU.
    """
    at_work = max(1, min(os.cpu_count() or 1, n_classes // 2))
    if n_samples > _SMALL and n_pairs > _SLOWER * at_work:
        return ""
    n, p = _SMALL + 1, _SLOWER * at_work + 1
    return f"SVC takes a GPU from {n:,} samples and {p} pairs of classes on"


def problems_of(starts: np.ndarray, C: np.ndarray, pairs: list[tuple[int, int]]) -> Problems:
    """The pairs' binary problems end to end."""
    classes = [np.arange(a, b) for a, b in pairwise(starts)]
    samples = [np.concatenate([classes[a], classes[b]]) for a, b in pairs]
    signs = [np.repeat([1.0, -1.0], [len(classes[a]), len(classes[b])]) for a, b in pairs]
    lengths = [len(some) for some in samples]
    sizes = [n if n <= binary.WHOLE else working_set_size(n) for n in lengths]
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
        if planned is None or kernel.rounds is None:
            kernel.description += (
                "; steps on the CPU: the GPU's memory budget is too small for them"
            )
            return None
        kernel.description += "; steps on the GPU, all pairs of classes side by side"
        waves = -(-len(problems.sizes) // planned.width)
        doubt = binary.DEVIATIONS * kernel.rounding / binary.TRUSTED
        rounds = kernel.rounds(
            kernel.xp,
            problems,
            kernel.diagonal,
            kernel.dtype,
            stop=Stop(tol, max_iter, binary.INNER, binary.LOOSE, binary.MANY, doubt),
            planned=planned,
            steps=max(_LEAST, _STEPS // (_ROUNDS * waves)),
        )
        return _Pairs(kernel, problems, rounds, planned, tol, stepped, solved).solve()


class _Pairs:
    """The host's side of the rounds."""

    def __init__(
        self,
        kernel: KernelMatrix,
        problems: Problems,
        rounds: Rounds,
        planned: Plan,
        tol: float,
        stepped: Callable[[int, int, float], bool],
        solved: Callable[[int, Solution], bool],
    ) -> None:
        self.tol = tol
        self.kernel, self.problems, self.rounds, self.planned = kernel, problems, rounds, planned
        self._stepped, self._solved = stepped, solved
        self._solutions: list[Solution] = [None] * len(problems.sizes)  # type: ignore[list-item]
        self._all = slice(0, len(kernel.diagonal))
        self._slab = planned.rows < len(kernel.diagonal)

    def solve(self) -> list[Solution]:
        """Rounds until no pair goes on."""
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
                for _ in range(_ROUNDS):
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
        ended = self._stepped(p, int(report.steps[p]), float(report.violation[p]))
        if ended:
            self.rounds.end(p)
        return not ended

    def _evaluate(self, samples: np.ndarray) -> None:
        """Their rows of K are the ones in memory."""
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
        """Their solutions."""
        for p, (beta, f) in zip(ended, self.rounds.states(ended) if ended else []):
            part = slice(self.problems.starts[p], self.problems.starts[p + 1])
            y, C = self.problems.y[part], self.problems.C[part]
            low, high = np.minimum(C * y, 0.0), np.maximum(C * y, 0.0)
            violation = kkt_violation(beta, low, high, f, np.empty_like(f), np.empty_like(f))
            if np.isnan(violation):
                raise FloatingPointError("not finite")
            intercept, objective, gap = kkt_summary(beta, f, y, C)
            self._solutions[p] = Solution(
                beta,
                intercept,
                int(report.steps[p]),
                violation,
                objective,
                gap,
                violation < self.tol,
            )
            self._solved(p, self._solutions[p])
