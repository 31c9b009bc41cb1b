"""RBFClassifier against Nystroem + RidgeClassifier; its memory, robustness and defaults."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import RidgeClassifier
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline

from benchmarks import data, ways
from benchmarks.measure import in_turn, once, peak_memory
from benchmarks.report import Report
from gpurbf import RBFClassifier, datasets
from gpurbf.cli import classify

TITLE = "RBFClassifier"


def run(report: Report, quick: bool, data_home: str | None) -> None:
    """Speed and accuracy beside the peer, memory, numerical robustness, the choice of defaults."""
    images = classify.images(quick, data_home)
    _peer(report, images, quick)
    _memory(report, quick, data_home)
    _scales(report, images, quick)
    _defaults(report, images, quick, data_home)


def _peer(report: Report, images: datasets.Images, quick: bool) -> None:
    """Fit, predict and accuracy; verified by the accuracy."""
    X_train, y_train, X_test, y_test = images
    m = 64 if quick else 4_096
    gamma = float(1 / (X_train.shape[1] * X_train.var()))
    models: dict[str, Any] = {
        f"Nystroem({m}) + RidgeClassifier": make_pipeline(
            Nystroem(gamma=gamma, n_components=m, random_state=0), RidgeClassifier()
        )
    }
    for name in ways.there():
        models[f"RBFClassifier({m}), {name}"] = RBFClassifier(m, backend=name, random_state=0)
    peer = next(iter(models))
    # float32, the faster of the peer's two arithmetics.
    inputs = dict.fromkeys(models, (X_train, X_test))
    inputs[peer] = X_train.astype(np.float32), X_test.astype(np.float32)
    for model in list(models.values())[1:]:  # compile; the peer has nothing to compile
        clone(model).set_params(n_centers=64).fit(X_train[:1000], y_train[:1000])
    fit: dict[str, Callable[[], Any]] = {
        name: functools.partial(model.fit, inputs[name][0], y_train)
        for name, model in models.items()
    }
    fit_times = in_turn(fit, rounds=1 if quick else 2, warm_up=False)
    predict: dict[str, Callable[[], Any]] = {
        name: functools.partial(model.predict, inputs[name][1]) for name, model in models.items()
    }
    predict_times = in_turn(predict, rounds=2 if quick else 3)
    accuracy = {name: 100 * float(np.mean(run() == y_test)) for name, run in predict.items()}
    for name, value in accuracy.items():
        if value < accuracy[peer] - 0.5:
            raise AssertionError(f"{name}: {value:.2f} %, the peer reaches {accuracy[peer]:.2f} %")
    report.text(
        f"## {len(X_train):,} training and {len(X_test):,} test samples, {m:,} centers\n\n"
        f"Both with gamma {gamma:.3g} (`scale`), everything else by default."
    )
    ratio = "Nystroem's time / this"
    report.table(
        ("model", "fit s", ratio, "predict s", ratio, "accuracy %", "runs on"),
        [
            (
                name,
                fit_times[name],
                f"{fit_times[peer].median / fit_times[name].median:.1f}",
                predict_times[name],
                f"{predict_times[peer].median / predict_times[name].median:.1f}",
                f"{accuracy[name]:.2f}",
                getattr(model, "backend_info_", ""),
            )
            for name, model in models.items()
        ],
    )


_WARM = """
from gpurbf import RBFClassifier
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import RidgeClassifier
from sklearn.pipeline import make_pipeline
gamma = float(1 / (X_train.shape[1] * X_train.var()))
"""
_OURS = """
model = RBFClassifier({m}, random_state=0).fit(X_train, y_train)
model.predict(X_test)
"""
_PEERS = """
nystroem = Nystroem(gamma=gamma, n_components={m}, random_state=0)
model = make_pipeline(nystroem, RidgeClassifier()).fit(X_train, y_train)
model.predict(X_test)
"""
# Compilation, imports and the peer's float32 copy of the data are not counted.
_READY = {
    "RBFClassifier": "RBFClassifier(64).fit(X_train[:1000], y_train[:1000])",
    "Nystroem + RidgeClassifier": "X_train, X_test = X_train.astype('f4'), X_test.astype('f4')",
}


def _memory(report: Report, quick: bool, data_home: str | None) -> None:
    """Peak of fit and predict beyond the input, each in a fresh process."""
    m = 64 if quick else 4_096
    setup = data.memory_setup(quick, data_home) + _WARM
    rows = []
    for (name, ready), lines in zip(_READY.items(), (_OURS, _PEERS)):
        peak = peak_memory(setup + ready, lines.format(m=m))
        rows.append((name, "not measured on this system" if peak is None else f"{peak:,.0f}"))
    report.text(f"## Peak memory of fit and predict beyond the input, {m:,} centers")
    report.table(("model", "MB"), rows)


def _scales(report: Report, images: datasets.Images, quick: bool) -> None:
    """Fits with gamma over four decades: never a failure, never a weight that is not finite."""
    X_train, y_train, X_test, y_test = images
    N = 500 if quick else 10_000
    X, y = X_train[:N], y_train[:N]
    scale = float(1 / (X.shape[1] * X.var()))
    rows = []
    for m in (64,) if quick else (4_096, 8_192):
        for factor in (0.01, 0.1, 1, 10, 100):
            model = RBFClassifier(m, gamma=factor * scale, random_state=0)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                seconds = once(model.fit, X, y)
            if not np.isfinite(model.coef_).all():
                raise AssertionError(f"{m} centers, gamma {factor} x scale: weights not finite")
            said = {str(w.message) for w in caught if issubclass(w.category, ConvergenceWarning)}
            accuracy = f"{100 * model.score(X_test, y_test):.2f}"
            rows.append((f"{m:,}", f"{factor:g}", f"{seconds:.2f}", accuracy, " ".join(said)))
    report.text(f"## gamma over four decades, {N:,} training samples")
    report.table(("centers", "gamma / scale", "fit s", "accuracy %", "warning"), rows)


# What is tried around the defaults, one parameter at a time.
_TRIED: list[dict[str, Any]] = [
    {},
    *({"centers": rule} for rule in ("random", "kmeans", "kmeans-class")),
    *({"gamma": gamma} for gamma in ("auto", "median", 0.25, 0.5, 2.0, 4.0)),
    *({"alpha": alpha} for alpha in (1e-10, 1e-8, 1e-7, 1e-5, 1e-4, 1e-3, 1e-2)),
    *({"kernel": kernel} for kernel in ("laplacian", "triangular", "inverse-multiquadric")),
    {"kernel": "laplacian", "metric": "manhattan"},
    {"fit_intercept": False},
]


def _defaults(report: Report, images: datasets.Images, quick: bool, data_home: str | None) -> None:
    """Accuracy on held-out training data with one parameter changed; test data are not used."""
    sets = {"digits": load_digits(return_X_y=True)}
    if not quick:
        sets["MNIST"] = images.X_train, images.y_train
        if fashion := data.fashion(report, data_home):
            sets["Fashion-MNIST"] = fashion.X_train, fashion.y_train
    columns = []
    for X, y in sets.values():
        split = train_test_split(X, y, test_size=1 / 6, stratify=y, random_state=0)
        columns.append([_accuracy(changes, *split) for changes in _TRIED[: 2 if quick else None]])
    names = [_name(changes) for changes in _TRIED]
    report.text(
        "## Around the defaults: accuracy % on a sixth of the training data, 1,000 centers\n\n"
        "A number as gamma is a multiple of `scale`."
    )
    report.table(("changed", *sets), list(zip(names, *columns)))


def _accuracy(
    changes: dict[str, Any], X: np.ndarray, X_held: np.ndarray, y: np.ndarray, y_held: np.ndarray
) -> str:
    """Accuracy of the default model with these changes."""
    if isinstance(gamma := changes.get("gamma"), float):
        changes = changes | {"gamma": gamma / (X.shape[1] * X.var())}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = RBFClassifier(random_state=0, **changes).fit(X, y)
        return f"{100 * model.score(X_held, y_held):.2f}"


def _name(changes: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in changes.items()) or "nothing"
