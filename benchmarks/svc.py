"""SVC beside scikit-learn's and scikit-learn-intelex's: answer, time, memory, grid search."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
from itertools import combinations
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn import svm
from sklearn.datasets import (
    load_breast_cancer,
    load_digits,
    load_iris,
    load_wine,
    make_blobs,
    make_circles,
    make_classification,
    make_moons,
)
from sklearn.metrics.pairwise import pairwise_kernels
from sklearn.model_selection import GridSearchCV, StratifiedKFold

from benchmarks import data
from benchmarks.measure import Times, in_turn, megabytes, once, peak_memory, timed
from benchmarks.report import Report
from gpurbf import SVC, datasets
from gpurbf.cli import classify

TITLE = "SVC"

# The job that people bring: pixels in [0, 1].
PARAMETERS: dict[str, Any] = {"C": 10, "gamma": 0.02}
CACHE = 1000  # megabytes, for everyone
# Of C and gamma in the grid search.
_FACTORS = np.array([0.1, 0.3, 1.0, 3.0, 10.0])


def run(report: Report, quick: bool, data_home: str | None) -> None:
    """Verify the solutions, then measure; see the headings."""
    images = classify.images(quick, data_home)
    fashion = None if quick else data.fashion(report, data_home)
    _same_answer(report, images, fashion, quick)
    _speed(report, "digits" if quick else "MNIST", images, quick)
    if fashion is not None:
        _speed(report, "Fashion-MNIST", fashion, quick, slow=False)
    _growth(report, images, quick)
    _memory(report, quick, data_home)
    _grid_search(report, images, quick)


def peers() -> dict[str, Any]:
    """The classes to compare with: scikit-learn's, scikit-learn-intelex's if it is installed."""
    found = {"scikit-learn": svm.SVC}
    with contextlib.suppress(ImportError):
        found["scikit-learn-intelex"] = importlib.import_module("sklearnex.svm").SVC
    return found


def scaled(X: np.ndarray) -> np.ndarray:
    """Pixels in [0, 1], float64."""
    return X / max(1, X.max())


def objectives(model: Any, X: np.ndarray) -> np.ndarray:
    """Dual objective of each pair, in float64 from the fitted attributes of any of the classes."""
    n, V, coef = model.n_support_, X[model.support_], model.dual_coef_
    coef = coef.toarray() if sp.issparse(coef) else coef
    options = {"gamma": model._gamma, "coef0": model.coef0, "degree": model.degree}
    kernel = functools.partial(pairwise_kernels, metric=model.kernel, filter_params=True, **options)
    ends = np.cumsum(n)
    parts = [np.arange(end - size, end) for end, size in zip(ends, n)]
    found = []
    for a, b in combinations(range(len(n)), 2):
        members = np.r_[parts[a], parts[b]]
        beta = np.r_[coef[b - 1, parts[a]], coef[a, parts[b]]]
        K = kernel(V[members[beta != 0]])
        beta = beta[beta != 0]
        found.append(beta @ K @ beta / 2 - np.abs(beta).sum())
    return np.array(found)


def _problems(
    images: datasets.Images, fashion: datasets.Images | None, quick: bool
) -> dict[str, tuple[dict[str, Any], Any, Any, Any]]:
    """Parameters, X, y and sample weights of the problems that all must solve alike."""
    rng = np.random.default_rng(0)
    imbalanced = make_classification(
        1000, 10, n_informative=6, n_classes=3, weights=[0.8, 0.15, 0.05], random_state=0
    )
    X, y = make_classification(1000, 10, random_state=0)
    weights = rng.uniform(0.2, 3, len(y))
    rows = 300 if quick else 10_000
    problems: dict[str, tuple[dict[str, Any], Any, Any, Any]] = {
        "digits": ({"C": 10, "gamma": 1e-3}, *load_digits(return_X_y=True), None),
        "digits, linear": ({"kernel": "linear"}, *load_digits(return_X_y=True), None),
        "iris": ({}, *load_iris(return_X_y=True), None),
        "iris, poly": ({"kernel": "poly"}, *load_iris(return_X_y=True), None),
        "wine": ({"C": 100}, *load_wine(return_X_y=True), None),
        "breast cancer": ({"C": 100}, *load_breast_cancer(return_X_y=True), None),
        "blobs": ({}, *make_blobs(1000, centers=6, cluster_std=3, random_state=0), None),
        "circles": ({"gamma": 2}, *make_circles(1000, noise=0.2, random_state=0), None),
        "moons": ({"C": 1000}, *make_moons(1000, noise=0.3, random_state=0), None),
        "imbalanced": ({"class_weight": "balanced"}, *imbalanced, None),
        "weighted": ({"gamma": 0.1}, X, y, weights),
        "MNIST 10k": (PARAMETERS, scaled(images.X_train[:rows]), images.y_train[:rows], None),
    }
    if fashion is not None:
        X = scaled(fashion.X_train[:rows])
        problems["Fashion 10k"] = PARAMETERS, X, fashion.y_train[:rows], None
    return problems


def _same_answer(
    report: Report, images: datasets.Images, fashion: datasets.Images | None, quick: bool
) -> None:
    """Dual objectives, support vectors and predictions beside scikit-learn's at equal tol."""
    rows = []
    for name, (parameters, X, y, weights) in _problems(images, fashion, quick).items():
        ours = SVC(**parameters).fit(X, y, weights)
        theirs = svm.SVC(**parameters).fit(X, y, weights)
        expected = objectives(theirs, X)
        worst = float((np.abs(objectives(ours, X) - expected) / np.abs(expected)).max())
        n, n_theirs = len(ours.support_), len(theirs.support_)
        differ = 100 * float((ours.predict(X) != theirs.predict(X)).mean())
        if worst > 1e-4:
            raise AssertionError(f"{name}: an objective differs by {worst:.2g}")
        gap = float((ours.dual_gap_ / -ours.objective_).max())
        steps = int(ours.n_iter_.sum()), int(np.sum(theirs.n_iter_))
        rows.append(
            (
                name,
                len(ours.n_iter_),
                f"{worst:.1e}",
                f"{gap:.1e}",
                n,
                n_theirs,
                f"{differ:.3f}",
                *steps,
            )
        )
    report.text(
        "## The same answer as scikit-learn's, equal tol\n\nThe largest relative difference of a "
        "pair's dual objective, the largest relative duality gap of ours, support vectors, and "
        "training samples that are predicted differently. The gap is relative to the objective, "
        "which is small where nearly all samples are fitted (`digits, linear`)."
    )
    header = (
        "data", "pairs", "objective", "gap", "SV", "SV, scikit-learn", "differ %", "steps",
        "steps, scikit-learn",
    )  # fmt: skip
    report.table(header, rows)


def _speed(
    report: Report, name: str, images: datasets.Images, quick: bool, slow: bool = True
) -> None:
    """Fit and predict, in turn; scikit-learn, if `slow`, once, because it takes minutes."""
    X, X_test = scaled(images.X_train), scaled(images.X_test)
    y, y_test = images.y_train, images.y_test
    kinds = {"gpurbf": SVC} | peers()
    rounds = dict.fromkeys(kinds, 1 if quick else 2) | {"scikit-learn": int(slow)}
    models = {k: kind(**PARAMETERS, cache_size=CACHE) for k, kind in kinds.items() if rounds[k]}
    for model in models.values():  # compile, load libraries
        model.fit(X[:2000], y[:2000]).predict(X_test[:100])
    fit: dict[str, list[float]] = {key: [] for key in models}
    predict: dict[str, list[float]] = {key: [] for key in models}
    predicted: dict[str, np.ndarray] = {}
    for i in range(max(rounds.values())):
        for key, model in models.items():
            if i < rounds[key]:
                fit[key].append(once(model.fit, X, y))
                seconds, predicted[key] = timed(model.predict, X_test)
                predict[key].append(seconds)
    ours, n = models["gpurbf"], len(models["gpurbf"].support_)
    rows = []
    for key, model in models.items():
        differ = float((predicted[key] != predicted["gpurbf"]).mean())
        if differ > 0.001 or abs(len(model.support_) - n) > 0.01 * n:
            raise AssertionError(
                f"{name}, {key}: {differ:.2%} of predictions, other support vectors"
            )
        accuracy = f"{100 * np.mean(predicted[key] == y_test):.2f}"
        cells: list[Any] = []
        for measured in (fit, predict):
            median, own = np.median(measured[key]), np.median(measured["gpurbf"])
            cells += [Times(float(median), min(measured[key]), max(measured[key]))]
            cells += [f"{median / own:.1f}"]
        rows.append((key, *cells, accuracy, f"{100 * differ:.2f}", len(model.support_)))
    report.text(
        f"## {name}: {len(X):,} training and {len(X_test):,} test samples\n\nC=10, gamma=0.02, "
        f"pixels in [0, 1] as float64, cache_size={CACHE} for all. Runs on: "
        f"{ours.backend_info_}."
    )
    ratio = "their time / ours"
    header = ("", "fit s", ratio, "predict s", ratio, "accuracy %", "differ %", "SV")
    report.table(header, rows)


def _growth(report: Report, images: datasets.Images, quick: bool) -> None:
    """Seconds of fit over the number of samples."""
    X, y = images.X_train, images.y_train
    sizes = [300, 600] if quick else [5_000, 10_000, 20_000, 40_000, 60_000]
    model = SVC(C=10, gamma=0.02 / float(max(1, X.max())) ** 2, cache_size=CACHE)
    times = in_turn(
        {str(N): functools.partial(model.fit, X[:N], y[:N]) for N in sizes},
        rounds=1 if quick else 2,
        warm_up=False,
    )
    report.text("## Growth: fit over the number of samples, uint8")
    seconds = np.array([times[str(N)].median for N in sizes])
    exponents = np.diff(np.log(seconds)) / np.diff(np.log(sizes))
    report.table(
        ("samples", "fit s", "exponent since the last"),
        [
            (f"{N:,}", times[str(N)], e)
            for N, e in zip(sizes, ["", *(f"{e:.2f}" for e in exponents)])
        ],
    )

    def plot(figure: Any) -> None:
        axis = figure.subplots()
        axis.loglog(sizes, seconds, "o-", label="measured")
        for power in (1, 2):
            line = seconds[0] * (np.array(sizes) / sizes[0]) ** power
            axis.loglog(sizes, line, ":", label=f"N^{power}")
        axis.set(xlabel="samples N", ylabel="seconds of fit")
        axis.legend()

    report.figure("svc-growth", "Seconds of fit over the number of samples", plot)


def _memory(report: Report, quick: bool, data_home: str | None) -> None:
    """Peak memory of a fit beyond its input."""
    setup = data.memory_setup(quick, data_home)
    rows = []
    for form, gamma in (("uint8", 0.02 / 255**2), ("float64 / 255", 0.02)):
        convert = "X_train = X_train / 255\n" if form != "uint8" else ""
        for cache in (200, 1000):
            fit = f"SVC(C=10, gamma={gamma!r}, cache_size={cache}).fit"
            compiled = f"from gpurbf import SVC\n{fit}(X_train[:1000], y_train[:1000])\n"
            peak = peak_memory(setup + convert + compiled, f"m = {fit}(X_train, y_train)")
            if peak is None:
                return
            rows.append((form, cache, f"{peak:.0f}", f"{peak - cache:.0f}"))
    report.text("## Peak memory of a fit beyond its input, megabytes")
    report.table(("data", "cache_size", "peak", "beyond cache_size"), rows)


def _grid_search(report: Report, images: datasets.Images, quick: bool) -> None:
    """The whole grid with ours, its diagonal with everyone, memory after every fit of ours."""
    rows = 300 if quick else 10_000
    X, y = scaled(images.X_train[:rows]), images.y_train[:rows]
    Cs, gammas = PARAMETERS["C"] * _FACTORS, PARAMETERS["gamma"] * _FACTORS
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
    models = {"gpurbf": SVC} | peers()
    for n_jobs in (1, 2):
        ours = 0.0
        for name, kind in models.items():
            # Processes start and libraries load before the clock does.
            search(kind(), diagonal, n_jobs, 300)
            seconds, best[name] = timed(search, kind(), diagonal, n_jobs)
            ours = ours or seconds
            table.append(
                (name, n_jobs, len(diagonal) * 3, f"{seconds:.1f}", f"{seconds / ours:.1f}")
            )
    for name, scores in best.items():
        if np.abs(scores - best["gpurbf"]).max() > 0.005:
            raise AssertionError(f"grid search: {name} scores {scores}, ours {best['gpurbf']}")
    for n_jobs in (1, 2):
        seconds = once(search, SVC(), whole, n_jobs)
        n_fits = 3 * len(whole["C"]) ** 2
        table.append(("gpurbf, whole grid", n_jobs, n_fits, f"{seconds:.1f}", ""))
    report.text(
        f"## Grid search, {len(X):,} samples, 3 folds\n\n5 C × 5 gamma around C=10, gamma=0.02; "
        "the peers fit its diagonal (large C with small gamma). Scores agree to 0.5 %."
    )
    report.table(("", "n_jobs", "fits", "seconds", "their time / ours"), table)
    _leak(report, X, y, whole)


def _leak(report: Report, X: np.ndarray, y: np.ndarray, grid: dict[str, np.ndarray]) -> None:
    """Memory of the process after each of the grid's fits."""
    if megabytes("VmRSS") is None:
        return
    resident: list[float] = []

    def score(model: SVC, X_test: np.ndarray, y_test: np.ndarray) -> float:
        value = model.score(X_test, y_test)
        gc.collect()
        resident.append(megabytes("VmRSS") or 0.0)
        return value

    GridSearchCV(SVC(), grid, cv=3, scoring=score, refit=False).fit(X, y)
    half = len(resident) // 2
    growth = max(resident[half:]) - max(resident[:half])
    report.text(
        f"Memory of the process over its {len(resident)} fits: {resident[0]:.0f} MB after the "
        f"first, {resident[-1]:.0f} MB after the last; the peak of the second half is "
        f"{growth:+z.0f} MB above that of the first."
    )

    def plot(figure: Any) -> None:
        axis = figure.subplots()
        axis.plot(resident, ".-")
        axis.set(xlabel="fits", ylabel="resident MB", ylim=(0, None))

    report.figure("svc-grid-memory", "Memory of the process over the fits of a grid search", plot)
