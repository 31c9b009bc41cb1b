"""Compare the estimators with no parameter given with defaults of the past."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.datasets import load_iris, make_classification
from sklearn.model_selection import train_test_split
from sklearn.svm import SVC as SklearnSVC

from benchmarks.measure import calls, in_turn, once, timed
from benchmarks.report import Report
from gpurbf import FSVC, SVC, RBFClassifier, datasets
from gpurbf.cli.classify import digits

TITLE = "Defaults"

# With no parameter but the seed, and what the same parameters once were.
MODELS: dict[str, Any] = {
    "RBFClassifier()": RBFClassifier(random_state=0),
    "FSVC()": FSVC(random_state=0),
    "FSVC() before": FSVC(selection="pass", eval_radius=None, random_state=0),
    "SVC()": SVC(),
}
# scikit-learn's takes minutes on what has more samples.
_FEW = 10_000
_ROUNDS = 5


def run(report: Report, quick: bool, data_home: str | None) -> None:
    """Each estimator on each data set."""
    report.text(
        "Data as they come, nothing scaled. Fits of less than a second are medians of five in "
        "turn; test accuracy is of rows that no fit saw."
    )
    rows = []
    for name, (X, y, X_test, y_test) in _problems(quick, data_home):
        models: dict[str, Any] = {key: clone(model) for key, model in MODELS.items()}
        if len(X) <= _FEW:
            models["scikit-learn's SVC()"] = SklearnSVC()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            for model in models.values():
                few = slice(None if len(X) <= _FEW else 400)
                clone(model).fit(X[few], y[few]).predict(X_test[:10])  # compiles
            fits = calls(models, "fit", X, y)
            seconds = {key: once(fit) for key, fit in fits.items()}
            short = {key: fits[key] for key, s in seconds.items() if s < 1}
            medians = in_turn(short, 1 if quick else _ROUNDS, warm_up=False)
            seconds |= {key: times.median for key, times in medians.items()}
            for key, model in models.items():
                predict, labels = timed(model.predict, X_test)
                right = 100 * float(np.mean(labels == y_test))
                centers = getattr(model, "centers_", getattr(model, "support_vectors_", ()))
                rows.append(
                    (
                        f"{name}, {len(X):,} × {X.shape[1]}",
                        key,
                        f"{len(centers):,}",
                        f"{seconds[key]:.3g}",
                        f"{1e3 * predict:.3g}",
                        f"{right:.2f}",
                    )
                )
    report.table(("data", "", "centers", "fit s", "predict ms", "test %"), rows)


def _problems(quick: bool, data_home: str | None) -> Iterator[tuple[str, Iterable[np.ndarray]]]:
    """Training and test samples by name."""
    X, y = load_iris(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, stratify=y, random_state=0)
    yield "iris", (X, y, X_test, y_test)
    yield "digits", digits(1200)
    size = 10 if quick else 1
    for n_classes, wrong in ((4, 0.01), (2, 0.1)):
        X, y = make_classification(
            7_000 // size, 20, n_informative=10, n_classes=n_classes, flip_y=wrong, random_state=0
        )
        n = 5_000 // size
        yield f"table of {n_classes} classes", (X[:n], y[:n], X[n:], y[n:])
    if not quick:
        yield "MNIST", datasets.load_mnist(data_home)
        yield "Fashion-MNIST", datasets.load_fashion_mnist(data_home)
