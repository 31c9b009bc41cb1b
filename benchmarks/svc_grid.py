"""SVC in a grid search: its time beside its peers', and memory over its fits."""

from __future__ import annotations

import functools
import gc
from typing import Any

import numpy as np
from sklearn.model_selection import GridSearchCV, StratifiedKFold

from benchmarks import memory
from benchmarks.report import Report
from benchmarks.timing import once
from gpurbf import SVC, datasets

FACTORS = np.array([0.1, 0.3, 1.0, 3.0, 10.0])


def run(
    report: Report,
    images: datasets.Images,
    quick: bool,
    peers: dict[str, Any],
    parameters: dict[str, Any],
) -> None:
    """The whole grid with ours, its diagonal with everyone, memory after every fit of ours."""
    rows = 300 if quick else 10_000
    X, y = images.X_train[:rows] / max(1, images.X_train.max()), images.y_train[:rows]
    Cs, gammas = parameters["C"] * FACTORS, parameters["gamma"] * FACTORS
    whole = {"C": Cs[:2] if quick else Cs, "gamma": gammas[:2] if quick else gammas}
    # Large C with small gamma and so on: settings a user meets, a fifth of the grid.
    diagonal = [{"C": [C], "gamma": [gamma]} for C, gamma in zip(Cs, gammas[::-1])]
    diagonal = diagonal[:2] if quick else diagonal
    folds = StratifiedKFold(3, shuffle=True, random_state=0)

    def search(model: Any, grid: Any, n_jobs: int, n: int | None = None) -> np.ndarray:
        search = GridSearchCV(model, grid, cv=folds, n_jobs=n_jobs, refit=False)
        return search.fit(X[:n], y[:n]).cv_results_["mean_test_score"]

    table = []
    best: dict[str, np.ndarray] = {}
    models = {"gpurbf": SVC} | peers

    def keep(name: str, model: Any, n_jobs: int) -> None:
        best[name] = search(model, diagonal, n_jobs)

    for n_jobs in (1, 2):
        ours = 0.0
        for name, kind in models.items():
            # Processes start and libraries load before the clock does.
            search(kind(), diagonal, n_jobs, 300)
            seconds = once(functools.partial(keep, name, kind(), n_jobs))
            ours = ours or seconds
            table.append(
                (name, n_jobs, len(diagonal) * 3, f"{seconds:.1f}", f"{seconds / ours:.1f}")
            )
    for name, scores in best.items():
        if np.abs(scores - best["gpurbf"]).max() > 0.005:
            raise AssertionError(f"grid search: {name} scores {scores}, ours {best['gpurbf']}")
    for n_jobs in (1, 2):
        seconds = once(functools.partial(search, SVC(), whole, n_jobs))
        n_fits = 3 * len(whole["C"]) ** 2
        table.append(("gpurbf, whole grid", n_jobs, n_fits, f"{seconds:.1f}", ""))
    report.text(
        f"## Grid search, {len(X):,} samples, 3 folds\n\n5 C × 5 gamma around C=10, gamma=0.02; "
        "the peers fit its diagonal (large C with small gamma). Scores agree to 0.5 %."
    )
    report.table(("", "n_jobs", "fits", "seconds", "ratio"), table)
    _leak(report, X, y, whole)


def _leak(report: Report, X: np.ndarray, y: np.ndarray, grid: dict[str, np.ndarray]) -> None:
    """Memory of the process after each of the grid's fits."""
    if memory.megabytes("VmRSS") is None:
        return
    megabytes: list[float] = []

    def score(model: SVC, X_test: np.ndarray, y_test: np.ndarray) -> float:
        value = model.score(X_test, y_test)
        gc.collect()
        megabytes.append(memory.megabytes("VmRSS") or 0.0)
        return value

    GridSearchCV(SVC(), grid, cv=3, scoring=score, refit=False).fit(X, y)
    half = len(megabytes) // 2
    growth = max(megabytes[half:]) - max(megabytes[:half])
    report.text(
        f"Memory of the process over its {len(megabytes)} fits: {megabytes[0]:.0f} MB after the "
        f"first, {megabytes[-1]:.0f} MB after the last; the second half's peak is {growth:+.0f} MB "
        "against the first's."
    )

    def plot(figure: Any) -> None:
        axis = figure.subplots()
        axis.plot(megabytes, ".-")
        axis.set(xlabel="fits", ylabel="resident MB", ylim=(0, None))

    report.figure("svc-grid-memory", "Memory of the process over the fits of a grid search", plot)
