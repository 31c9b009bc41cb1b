"""Fits on more threads: measured on one to all that there are, modelled beyond."""

from __future__ import annotations

import functools
import multiprocessing
import statistics
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone
from sklearn.datasets import make_classification
from sklearn.decomposition import PCA

from benchmarks.measure import in_turn, once
from benchmarks.report import Report
from benchmarks.svc import peers
from gpurbf import FSVC, SVC, RBFClassifier, RBFClassifierCV, profile
from gpurbf.cli import classify
from gpurbf.layer.backends import best_on_host
from gpurbf.profiling.scaling import table
from gpurbf.runtime.threads import thread_limit

TITLE = "More threads"

_MODELLED = (4, 16, 64)


class Problem(NamedTuple):
    """An estimator and its data."""

    estimator: Any
    X: np.ndarray
    y: np.ndarray


def problems(quick: bool, data_home: str | None) -> dict[str, Callable[[], Problem]]:
    """What is fitted, by name; the data are made when asked for."""
    images = classify.images(quick, data_home)
    scale = 20 if quick else 1

    def some(N: int) -> tuple[np.ndarray, np.ndarray]:
        return images.X_train[: N // scale], images.y_train[: N // scale]

    def floats() -> tuple[np.ndarray, np.ndarray]:
        X, y = some(20_000)
        return (X / np.float32(255)).astype(np.float32), y

    def reduced() -> tuple[np.ndarray, np.ndarray]:
        X, y = floats()
        return PCA(50 // (1 + quick), random_state=0).fit_transform(X), y

    def table(n: int, classes: int) -> tuple[np.ndarray, np.ndarray]:
        return make_classification(
            20_000 // scale, n, n_informative=n // 2, n_classes=classes, random_state=0
        )

    wide = SVC(C=10, gamma=0.02)
    centers = [m // scale for m in (1000, 4096, 8000)]
    options: dict[str, Any] = {"backend": best_on_host()[0].name, "random_state": 0}  # no GPU
    rbf = RBFClassifier(centers[0], **options)
    return {
        "SVC, MNIST 60,000 uint8": lambda: Problem(SVC(C=10), *some(60_000)),
        "SVC, 20,000 of it, scaled float32": lambda: Problem(wide, *floats()),
        "SVC, PCA(50) of these": lambda: Problem(wide, *reduced()),
        "SVC, 20,000 × 100, ten classes": lambda: Problem(SVC(), *table(100, 10)),
        "SVC, 20,000 × 100, two classes": lambda: Problem(SVC(), *table(100, 2)),
        "RBFClassifier(1000), 30,000 of MNIST": lambda: Problem(rbf, *some(30_000)),
        "RBFClassifier(1000), 20,000 × 20": lambda: Problem(rbf, *table(20, 2)),
        "RBFClassifier(4096), MNIST": lambda: Problem(
            RBFClassifier(centers[1], **options), *some(60_000)
        ),
        "RBFClassifierCV(1000), 20,000 of MNIST": lambda: Problem(
            RBFClassifierCV(centers[0], **options), *some(20_000)
        ),
        "cg, 8,000 centers, 20,000 of MNIST": lambda: Problem(
            RBFClassifier(centers[2], solver="cg", **options), *some(20_000)
        ),
        "FSVC, 20,000 of MNIST": lambda: Problem(FSVC(**options), *some(20_000)),
    }


def run(report: Report, quick: bool, data_home: str | None) -> None:
    """Measure one thread to all, as many fits beside each other, and model more threads."""
    here = thread_limit()
    counts = sorted({2**power for power in range(here.bit_length())} | {here})
    report.text(
        "## One thread to all that there are\n\nFits in turn, medians of seconds. *At once* is the "
        "time of as many independent one-thread fits in as many processes over that of one "
        "alone: what they lose to shared caches, memory and clock. *Serial* is the share of a "
        "one-thread fit that the other threads do not shorten, by Amdahl's law, after that is "
        "taken off. *Model* is the modelled time with all threads over the measured one."
    )
    measured, modelled = [], []
    with ProcessPoolExecutor(here, multiprocessing.get_context("spawn")) as pool:
        for name in problems(quick, data_home):
            row, rows = _measure(pool, name, counts, quick, data_home)
            measured.append(row)
            modelled += rows
    threads = [f"{number} thread{'s' * (number > 1)}" for number in counts]
    report.table(["fit", *threads, "speed-up", "at once", "serial %", "model"], measured)
    _peers(report, quick, data_home, here)
    report.text(
        "## Modelled\n\nThe items of each parallel section, as long as they took here, handed out "
        "to more threads; a socket moves some 200 GB a second, which no model of items sees."
    )
    report.table(["fit", *table([])[0]], modelled)


def _measure(
    pool: Executor, name: str, counts: list[int], quick: bool, data_home: str | None
) -> tuple[list[str], list[list[str]]]:
    """The row of a problem in the table of what is measured, and its rows of what is modelled."""
    here = counts[-1]
    rounds = 1 if quick else max(3, 14 // len(counts))
    estimator, X, y = problems(quick, data_home)[name]()
    fits: dict[str, Callable[[], Any]] = {
        str(number): functools.partial(_with_jobs(estimator, number).fit, X, y) for number in counts
    }
    times = in_turn(fits, rounds)
    one, all_of_them = times["1"].median, times[str(here)].median
    some = 1 if quick or one > 2 else 3
    beside = _beside(pool, name, here, quick, data_home, some) if here > 1 else 1.0
    serial = _serial(one * beside, all_of_them, here)
    # What many threads wait for would be in the record: two make it.
    found = profile(_with_jobs(estimator, min(2, here)), X, y, X_test=X[:100])
    error = found.scaling([here])[0].seconds / all_of_them
    row = [
        name,
        *(str(times[str(number)]) for number in counts),
        f"{one / all_of_them:.1f}",
        f"{beside:.2f}",
        f"{100 * serial:.0f}",
        f"{error:.2f}",
    ]
    return row, [[name, *cells] for cells in table(found.scaling(_MODELLED))[1]]


def _peers(report: Report, quick: bool, data_home: str | None, threads: int) -> None:
    """The SVC of scikit-learn-intelex on the same data."""
    theirs = peers().get("scikit-learn-intelex")
    if theirs is None:
        report.text("scikit-learn-intelex is not installed: not measured.")
        return
    report.text("## scikit-learn-intelex on the same data\n\nOne fit each, after one of 500 rows.")
    rows = []
    for name, make in problems(quick, data_home).items():
        estimator, X, y = make()
        if not isinstance(estimator, SVC):
            continue
        model = theirs(C=estimator.C, gamma=estimator.gamma).fit(X[:500], y[:500])
        one, all_of_them = (once(_with_jobs(model, number).fit, X, y) for number in (1, threads))
        serial = _serial(one, all_of_them, threads)
        rows.append([name, f"{one:.2f}", f"{all_of_them:.2f}", f"{100 * serial:.0f}"])
    report.table(["fit", "1 thread s", f"{threads} threads s", "serial %"], rows)


def _with_jobs(estimator: Any, threads: int) -> Any:
    return clone(estimator).set_params(n_jobs=threads)


def _serial(one: float, all_of_them: float, threads: int) -> float:
    """The share that stays when `threads` threads work, by Amdahl's law."""
    return (threads * all_of_them / one - 1) / (threads - 1) if threads > 1 else 1.0


def _beside(
    pool: Executor, name: str, here: int, quick: bool, data_home: str | None, rounds: int
) -> float:
    """The time of one-thread fits in `here` processes at once, over that of one alone."""
    seconds = []
    for processes in (1, here):
        jobs = [pool.submit(_alone, name, quick, data_home, rounds) for _ in range(processes)]
        seconds.append(statistics.mean(job.result() for job in jobs))
    return seconds[1] / seconds[0]


def _alone(name: str, quick: bool, data_home: str | None, rounds: int) -> float:
    """Median seconds of a one-thread fit."""
    estimator, X, y = problems(quick, data_home)[name]()
    fit = functools.partial(_with_jobs(estimator, 1).fit, X, y)
    fit()
    return statistics.median(once(fit) for _ in range(rounds))
