"""RBFClassifierCV beside an explicit search; defaults of the RBF networks on data of every size."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
from sklearn.datasets import load_digits, load_iris, make_classification
from sklearn.model_selection import GridSearchCV, StratifiedKFold, train_test_split
from sklearn.preprocessing import StandardScaler

from benchmarks.measure import calls, in_turn
from benchmarks.report import Report
from gpurbf import RBFClassifier, RBFClassifierCV, datasets
from gpurbf.cli import classify

TITLE = "RBFClassifierCV"

_WIDTHS = (0.25, 0.5, 1.0, 2.0, 4.0)


def run(report: Report, quick: bool, data_home: str | None) -> None:
    """The penalty beside that of 5 folds, the time beside one fit, then the defaults."""
    problems = _problems(quick, data_home)
    searched = {name: _shorter(problems[name], 10_000) for name in list(problems)[:3]}
    _search(report, searched)
    _times(report, searched, quick)
    _defaults(report, problems, quick)


def _problems(quick: bool, data_home: str | None) -> dict[str, datasets.Images]:
    """Digits and images first, then tables, scaled."""
    digits = datasets.Images(*_split(*load_digits(return_X_y=True)))
    if quick:
        return {"digits": _shorter(digits, 200)}
    found = {
        "digits": digits,
        "MNIST": classify.images(quick, data_home),
        "Fashion-MNIST": datasets.load_fashion_mnist(),
    }
    tables = {
        "5,000 × 20": make_classification(7_500, 20, n_informative=10, random_state=0),
        "iris": load_iris(return_X_y=True),
    }
    for name, (X, y) in tables.items():
        X_train, y_train, X_test, y_test = _split(X, y, 1 / 3)
        scaler = StandardScaler().fit(X_train)
        X_train, X_test = scaler.transform(X_train), scaler.transform(X_test)
        found[name] = datasets.Images(X_train, y_train, X_test, y_test)
    return found


def _split(X: np.ndarray, y: np.ndarray, part: float = 0.25) -> tuple[np.ndarray, ...]:
    X_train, X_test, y_train, y_test = train_test_split(
        X, y, test_size=part, stratify=y, random_state=0
    )
    return X_train, y_train, X_test, y_test


def _shorter(images: datasets.Images, n: int) -> datasets.Images:
    """At the most n training samples."""
    return images._replace(X_train=images.X_train[:n], y_train=images.y_train[:n])


def _search(report: Report, problems: dict[str, datasets.Images]) -> None:
    """Leave-one-out against 5 folds with the same penalties; every fold draws its own centers."""
    report.text(
        "## The penalty beside that of 5 folds\n\n20 penalties, one width, everything else by "
        "default. Errors are mean squares of the outputs; *5 folds* fits `RBFClassifier` 100 "
        "times, with other centers in every fold. *Behind* is the accuracy of the 5 folds at the "
        "penalty chosen, less their best, with the standard error of the folds' differences."
    )
    rows, curves = [], {}
    for name, (X, y, X_test, y_test) in problems.items():
        model = RBFClassifierCV(random_state=0).fit(X, y)
        found = model.cv_results_
        search = GridSearchCV(
            RBFClassifier(random_state=0),
            {"alpha": found["param_alpha"]},
            scoring={"accuracy": "accuracy", "squares": _squares},
            cv=StratifiedKFold(5, shuffle=True, random_state=0),
            refit=False,
        ).fit(X, y)
        there = search.cv_results_
        folds = np.array([there[f"split{i}_test_accuracy"] for i in range(5)])
        chosen = int(np.argmax(found["mean_test_score"]))
        best = int(folds.mean(axis=0).argmax())
        by_squares = int(np.argmax(there["mean_test_squares"]))
        behind = 100 * (folds[:, chosen] - folds[:, best])
        error = behind.std(ddof=1) / np.sqrt(5)
        if behind.mean() < -3 * error - 0.1:
            raise AssertionError(f"{name}: {behind.mean():.2f} ± {error:.2f} % behind the search")
        curves[name] = (found, there["mean_test_squares"])
        accuracies = {
            number: 100 * RBFClassifier(alpha=alpha, random_state=0).fit(X, y).score(X_test, y_test)
            for number in {chosen, by_squares, best}
            for alpha in [found["param_alpha"][number]]
        }
        rows.append(
            [
                f"{name}, {len(X):,}",
                *(f"{found['param_alpha'][i]:.1e}" for i in (chosen, by_squares, best)),
                f"{behind.mean():.2f} ± {error:.2f}",
                *(f"{accuracies[i]:.2f}" for i in (chosen, by_squares, best)),
            ]
        )
    header = [
        "data", "leave-one-out", "5 folds, squares", "5 folds, accuracy", "behind %",
        "test %: leave-one-out", "squares", "accuracy",
    ]  # fmt: skip
    report.table(header, rows)
    report.figure(
        "rbf_cv-path",
        "The closed-form leave-one-out error and that of 5 folds, over the penalties",
        functools.partial(_draw, curves),
    )


def _squares(model: RBFClassifier, X: np.ndarray, y: np.ndarray) -> float:
    """The score that RBFClassifierCV takes, of new samples."""
    targets = np.eye(len(model.classes_))[np.searchsorted(model.classes_, y)]
    return -float(np.square(model.decision_function(X) - targets).mean())


def _draw(curves: dict[str, Any], figure: Any) -> None:
    axes = figure.subplots(1, len(curves), squeeze=False)[0]
    for ax, (name, (found, folds)) in zip(axes, curves.items(), strict=True):
        ax.plot(found["param_alpha"], -found["mean_test_score"], ".-", label="leave-one-out")
        ax.plot(found["param_alpha"], -folds, ".-", label="5 folds")
        ax.set(title=name, xscale="log", xlabel="alpha")
    axes[0].set_ylabel("mean squared error")
    axes[0].legend()


def _times(report: Report, problems: dict[str, datasets.Images], quick: bool) -> None:
    """One fit, the whole path, and the path of five widths."""
    report.text("## Time beside one fit\n\nIn turn, medians.")
    rows = []
    for name, (X, y, *_) in problems.items():
        for m in (300, 1000) if name == "digits" and not quick else (1000,):
            models: dict[str, Any] = {
                "RBFClassifier": RBFClassifier(min(m, len(X)), random_state=0),
                "20 penalties": RBFClassifierCV(min(m, len(X)), random_state=0),
                "and 5 widths": RBFClassifierCV(min(m, len(X)), gammas=_WIDTHS, random_state=0),
            }
            times = in_turn(calls(models, "fit", X, y), rounds=1 if quick else 5)
            one = times["RBFClassifier"].median
            rows += [
                [f"{name}, {len(X):,}", f"{m:,}", key, str(t), f"{t.median / one:.2f}"]
                for key, t in times.items()
            ]
    report.table(["data", "centers", "model", "fit s", "time / one fit's"], rows)


def _defaults(report: Report, problems: dict[str, datasets.Images], quick: bool) -> None:
    """Accuracy and time of what `n_centers="auto"` might mean, and of the default models."""
    report.text(
        "## Defaults\n\nAll of the training data; nothing given but the number of centers. Before "
        '`"auto"` the default was 1,000: the same model, with a warning where there are fewer '
        "samples."
    )
    rows = []
    for name, (X, y, X_test, y_test) in problems.items():
        counts: dict[str, Any] = {
            "at most 500": min(500, len(X)),
            "auto": "auto",
            "at most 2,000": min(2000, len(X)),
            "10 √N": min(round(10 * len(X) ** 0.5), len(X)),
            "half of N, at most 1,000": min(1000, len(X) // 2),
        }
        models: dict[str, Any] = {
            f"RBFClassifier, {key}": RBFClassifier(count, random_state=0)
            for key, count in counts.items()
        }
        models["RBFClassifierCV"] = RBFClassifierCV(random_state=0)
        models["RBFClassifierCV, 5 widths"] = RBFClassifierCV(gammas=_WIDTHS, random_state=0)
        rounds = 1 if quick or len(X) > 10_000 else 3
        times = in_turn(calls(models, "fit", X, y), rounds)
        for key, model in models.items():
            rows.append(
                [
                    f"{name}, {len(X):,}",
                    key,
                    f"{len(model.centers_):,}",
                    str(times[key]),
                    f"{100 * model.score(X_test, y_test):.2f}",
                ]
            )
    report.table(["data", "model", "centers", "fit s", "accuracy %"], rows)
