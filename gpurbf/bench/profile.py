"""Where the time of the three estimators goes, and how far the profile itself can be trusted."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import gpurbf
from gpurbf._stages import Recorder
from gpurbf.backends.threads import parallel_for, thread_limit
from gpurbf.bench.data import images
from gpurbf.bench.timing import in_turn, once
from gpurbf.profiling import Profile
from gpurbf.profiling.ceilings import bandwidth, compute, product_rate
from gpurbf.profiling.result import PHASES
from gpurbf.report import Report

TITLE = "Where the time goes"

_COPY = 1 << 27


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
    _ceilings(report)
    profiles = {}
    for name, estimator in estimators.items():
        profiles[name] = gpurbf.profile(estimator, X, y, X_test=X_test, y_test=y_test)
        _show(report, name, profiles[name])
    _cost(report, estimators, profiles, X, y, rounds=1 if quick else 2)


def _ceilings(report: Report) -> None:
    """What the profile takes for the machine's limits, and the same by other means."""
    report.text("## Ceilings")
    report.text(
        "Arithmetic is the kernels' instructions on registers alone, beside NumPy's product of "
        "large matrices; memory is a copy by NumPy on all threads, beside one by the C library's "
        "memmove. Best of several runs, in billions a second."
    )
    others: dict[str, Callable[[], float]] = {
        "float32": partial(product_rate, "float32"),
        "float64": partial(product_rate, "float64"),
        "memory": _memmove_rate,
    }
    rows = []
    for kind in ("8-bit products", "float32", "float64", "8-bit differences", "memory"):
        ours = bandwidth() if kind == "memory" else compute(kind)
        other = others[kind]() if kind in others else None
        cells = [f"{rate / 1e9:,.0f}" if rate else "" for rate in (ours, other)]
        ratio = f"{other / ours:.2f}" if ours and other else ""
        rows.append((kind, *cells, ratio))
    report.table(("kind", "ceiling", "measured otherwise", "ratio"), rows)


def _memmove_rate() -> float:
    """Bytes a second, read and written, of the C library's copy on all threads."""
    source, target = np.ones(_COPY, np.uint8), np.zeros(_COPY, np.uint8)
    n = thread_limit()
    part = _COPY // n

    def copy(i: int) -> None:
        offset = i * part
        ctypes.memmove(target.ctypes.data + offset, source.ctypes.data + offset, part)

    return 2 * n * part / min(once(lambda: parallel_for(copy, n)) for _ in range(20))


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
    rounds: int,
) -> None:
    """Fits with and without a recorder in turn, and what no stage covers."""

    def recorded(estimator: Any) -> None:
        with Recorder():
            estimator.fit(X, y)

    report.text("## What it costs, and what it misses")
    report.text(
        f"Seconds of a fit without and with a recorder, {rounds} rounds in turn, and the share of "
        "the profiles' wall time that no stage covers."
    )
    rows = []
    for name, estimator in estimators.items():
        times = in_turn(
            {"off": partial(estimator.fit, X, y), "on": partial(recorded, estimator)},
            rounds=rounds,
            warm_up=False,
        )
        uncovered = [
            f"{100 * row.share:.2f}" for row in profiles[name].rows if row.stage == "in no stage"
        ]
        ratio = f"{times['on'].low / times['off'].low:.3f}"
        rows.append((type(estimator).__name__, times["off"], times["on"], ratio, *uncovered))
    header = ("estimator", "off", "on", "ratio of the best", "uncovered %, training", "prediction")
    report.table(header, rows)
