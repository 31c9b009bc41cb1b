"""Profile the three estimators, and measure how far the profile itself can be trusted."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import gpurbf
from benchmarks.measure import in_turn, run_python
from benchmarks.report import Report
from gpurbf.cli.classify import images
from gpurbf.profiling.machine import bandwidth, compute, scale_rate
from gpurbf.profiling.profiler import PHASES, Profile
from gpurbf.runtime.lazy import lazy_module
from gpurbf.runtime.stages import Recorder

kernels = lazy_module("benchmarks._naive_kernels")

TITLE = "Where the time goes"


def run(report: Report, quick: bool, data_home: str | None) -> None:
    """Ceilings beside independent measurements, the profiles, what recording costs."""
    X, y, X_test, y_test = images(quick, data_home)
    if quick:
        X, y = X[:500], y[:500]
    estimators = {
        "rbf": gpurbf.RBFClassifier(300 if quick else 4096, random_state=0),
        "fsvc": gpurbf.FSVC(random_state=0),
        "svc": gpurbf.SVC(C=10, gamma=0.001 if quick else 0.02 / 255**2),
    }
    _ceilings(report, quick)
    profiles = {}
    for name, estimator in estimators.items():
        profiles[name] = gpurbf.profile(estimator, X, y, X_test=X_test, y_test=y_test)
        _show(report, name, profiles[name])
    _cost(report, estimators, profiles, X, y, seconds=0 if quick else 60)


def _ceilings(report: Report, quick: bool) -> None:
    """Measure the profile's ceilings again, and by other means."""
    rounds = 1 if quick else 3
    report.text("## Ceilings")
    report.text(
        "Arithmetic is the kernels' instructions on registers alone, beside NumPy's product of "
        "large matrices, with the kernels that its OpenBLAS chooses or those for AVX2, whichever "
        "are faster; memory is STREAM's scale (an array times a number) by NumPy on all threads, "
        f"beside a compiled loop. The best of several runs, {rounds} times in turn, in billions a "
        "second."
    )
    others: dict[str, Callable[[], float]] = {
        "float32": partial(_best_product, "float32", quick),
        "float64": partial(_best_product, "float64", quick),
        "memory": partial(scale_rate, kernels.scale),
    }
    rows = []
    for kind in ("8-bit products", "float32", "float64", "8-bit differences", "memory"):
        ours, other = 0.0, 0.0
        for _ in range(rounds):
            ours = max(ours, _again(kind) or 0.0)
            other = max(other, others[kind]() if kind in others else 0.0)
        cells = [f"{rate / 1e9:,.0f}" if rate else "" for rate in (ours, other)]
        ratio = f"{other / ours:.2f}" if ours and other else ""
        rows.append((kind, *cells, ratio))
    report.table(("kind", "ceiling", "measured otherwise", "otherwise / ceiling"), rows)


def _again(kind: str) -> float | None:
    """The ceiling that the profile uses, measured once more."""
    for function in (compute, bandwidth):
        function.cache_clear()
    return bandwidth() if kind == "memory" else compute(kind)


def _best_product(dtype: str, quick: bool) -> float:
    """Operations a second of NumPy's product; unless quick, the best of two choices of kernels."""
    given = f"{dtype!r}, runs={2 if quick else 20}"
    code = f"from gpurbf.profiling.machine import product_rate; print(product_rate({given}))"
    rates = [run_python(code)]
    if not quick:
        # What OpenBLAS takes for the best kernels is not always; other libraries ignore the
        # variable. That of NumPy 2.5 crashes with it on a Zen 5.
        with contextlib.suppress(subprocess.CalledProcessError):
            rates.append(run_python(code, OPENBLAS_CORETYPE="Haswell"))
    return max(map(float, rates))


def _show(report: Report, name: str, profile: Profile) -> None:
    """One estimator's profile."""
    report.text(f"## {type(profile.estimator).__name__}")
    report.text(f"{profile.title}. Ran on {profile.estimator.backend_info_}.")
    report.text("\n".join(f"* {line}" for line in profile.bottleneck.splitlines()))
    report.figure(f"profile-{name}", f"Stages of {profile.title}", profile.plot)
    for phase in PHASES:
        report.text(f"{phase.capitalize()}, {profile.seconds[phase]:.3g} s:")
        report.table(*profile.table(phase))


def _cost(
    report: Report,
    estimators: dict[str, Any],
    profiles: dict[str, Profile],
    X: np.ndarray,
    y: np.ndarray,
    seconds: float,
) -> None:
    """Fits with and without a recorder in turn, and what no stage covers."""

    def recorded(estimator: Any) -> None:
        with Recorder():
            estimator.fit(X, y)

    report.text("## What it costs, and what it misses")
    report.text(
        "Seconds of a fit without and with a recorder in turn, and the share of the profiles' wall "
        "time that no stage covers."
    )
    rows = []
    for name, estimator in estimators.items():
        rounds = max(1, round(seconds / profiles[name].seconds["training"]))
        times = in_turn(
            {"off": partial(estimator.fit, X, y), "on": partial(recorded, estimator)},
            rounds=rounds,
            warm_up=False,
        )
        uncovered = [
            f"{100 * row.share:.2f}" for row in profiles[name].rows if row.stage == "in no stage"
        ]
        median = f"{times['on'].median / times['off'].median:.3f}"
        best = f"{times['on'].low / times['off'].low:.3f}"
        row = (rounds, times["off"], times["on"], median, best, *uncovered)
        rows.append((type(estimator).__name__, *row))
    report.table(
        (
            "estimator",
            "rounds",
            "off",
            "on",
            "on / off, medians",
            "on / off, best rounds",
            "uncovered %, training",
            "uncovered %, prediction",
        ),
        rows,
    )
