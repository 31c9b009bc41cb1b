"""Compare SVC and the networks on data as pipelines make them: scaled, reduced, tabular, tiny."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone
from sklearn.datasets import (
    load_breast_cancer,
    load_digits,
    load_iris,
    load_wine,
    make_classification,
)
from sklearn.decomposition import PCA
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import RidgeClassifier
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks import data
from benchmarks.measure import calls, in_turn, once
from benchmarks.report import Report
from benchmarks.svc import objectives, peers
from gpurbf import FSVC, SVC, RBFClassifier
from gpurbf.cli import classify

TITLE = "Pipelines"

# Fits that take longer than this are timed once, others in turn. Samples that are predicted one by
# one, in a full and in a quick run.
_LONG = 5.0
_ROWS = 64, 8
# Rows of a prediction at the most: scikit-learn takes a minute for 10,000 images.
_NEW = 2000


class Case(NamedTuple):
    """Training and test data of a problem, as the estimator in the pipeline gets them."""

    X: Any
    y: np.ndarray
    new: Any
    parameters: dict[str, Any]


def run(report: Report, quick: bool, data_home: str | None) -> None:
    """Verify the solutions, then measure; see the headings."""
    ours: dict[str, Any] = {"gpurbf": SVC}
    report.text("## " + "SVC: their time / ours")
    _table(report, cases(quick, data_home), ours | peers(), quick)
    report.text("## " + "RBFClassifier and FSVC beside Nystroem + RidgeClassifier")
    report.text(
        '`FSVC` is `FSVC("ratio", eval_radius=None)`. With the default parameters it compares the '
        "accuracies of many radii, which takes most of a fit of small data."
    )
    _networks(report, quick)
    report.text("## " + "Grid search on digits")
    _grid(report, quick)


def cases(quick: bool, data_home: str | None) -> dict[str, Case]:
    """The problems, their preparation done."""
    size = 60 if quick else 1
    found: dict[str, Case] = {}
    for name, load in {
        "iris": load_iris,
        "wine": load_wine,
        "breast cancer": load_breast_cancer,
        "digits": load_digits,
    }.items():
        found[f"{name}, scaled"] = _split(*load(return_X_y=True), scaled=True)
    found["digits"] = _split(*load_digits(return_X_y=True))
    images = classify.images(quick, data_home)
    n = min(20_000, len(images.X_train)) // size
    X, new = images.X_train[:n] / 255.0, images.X_test / 255.0
    y, ten = images.y_train[:n], {"C": 10}
    scaler = StandardScaler().fit(X)
    Z, new_Z = scaler.transform(X), scaler.transform(new)
    narrow = np.float32
    found["images, scaled, float64"] = Case(Z, y, new_Z, {})
    found["images, scaled, float32"] = Case(Z.astype(narrow), y, new_Z.astype(narrow), {})
    found["images / 255"] = Case(X, y, new, ten)
    found["images / 255, float32"] = Case(X.astype(narrow), y, new.astype(narrow), ten)
    pca = PCA(50 if n > 1000 else 10, random_state=0).fit(X)
    found["images, PCA(50)"] = Case(pca.transform(X), y, pca.transform(new), ten)
    tables: dict[str, tuple[int, int, int, float, dict[str, Any]]] = {
        "40,000 × 20": (40_000, 20, 2, 0.01, {}),
        "20,000 × 100, 10 classes": (20_000, 100, 10, 0.01, {}),
        "6,000 × 50, 100 classes": (6_000, 50, 100, 0.01, {}),
        "20,000 × 20, 20 % of labels wrong, C=100": (20_000, 20, 2, 0.2, {"C": 100}),
        "5,000 × 20, linear": (5_000, 20, 2, 0.01, {"kernel": "linear"}),
    }
    for name, (rows, n_features, n_classes, wrong, parameters) in tables.items():
        X, y = make_classification(
            (rows + 10_000) // size,
            n_features,
            n_informative=n_features // 2,
            n_classes=n_classes if size == 1 else min(n_classes, 10),
            flip_y=wrong,
            random_state=0,
        )
        rows //= size
        found[name] = Case(X[:rows], y[:rows], X[rows:], parameters)
    X, y, new = _text(size)
    for kernel in ("linear", "rbf"):
        found[f"text, {len(y):,} × 30,000, sparse, {kernel}"] = Case(X, y, new, {"kernel": kernel})
    return found


def _text(size: int) -> tuple[Any, np.ndarray, Any]:
    X, y = data.text(6_000 // size, 30_000, 10 if size == 1 else 2)
    rows = 4_000 // size
    return X[:rows], y[:rows], X[rows:]


def _split(X: np.ndarray, y: np.ndarray, *, scaled: bool = False) -> Case:
    X_train, X_test, y_train, _ = train_test_split(X, y, random_state=0)
    if scaled:
        scaler = StandardScaler().fit(X_train)
        X_train, X_test = scaler.transform(X_train), scaler.transform(X_test)
    return Case(X_train, y_train, X_test, {})


def _table(report: Report, problems: dict[str, Case], classes: dict[str, Any], quick: bool) -> None:
    """Fit, predict and one row of each class on each problem; solutions are compared first."""
    rows = []
    for name, case in problems.items():
        models = {key: cls(**case.parameters) for key, cls in classes.items()}
        clone(next(iter(models.values()))).fit(case.X, case.y)  # compiles
        first = {key: once(fit) for key, fit in calls(models, "fit", case.X, case.y).items()}
        differ = _verify(name, models, case)
        rounds = 1 if quick else 2 if max(first.values()) > 1 else 9
        short = {k: m for k, m in models.items() if first[k] < _LONG}
        again = in_turn({k: _fit(m, case) for k, m in short.items()}, rounds, warm_up=False)
        fits = first | {key: times.median for key, times in again.items()}
        new = case.new[:_NEW]
        predicts = in_turn(calls(models, "predict", new), rounds)
        some = case.new[: _ROWS[quick]]
        single = in_turn({k: _predict_each(m, some) for k, m in models.items()}, rounds)
        ours = next(iter(models))
        for key in list(models)[1:]:
            rows.append(
                [
                    name,
                    key,
                    f"{fits[ours]:.4g}",
                    f"{fits[key] / fits[ours]:.2f}",
                    f"{predicts[ours].median:.4g}",
                    f"{predicts[key].median / predicts[ours].median:.2f}",
                    f"{1e6 * single[ours].median / some.shape[0]:.0f}",
                    f"{single[key].median / single[ours].median:.2f}",
                    f"{differ[key]:.3f}",
                    models[ours].backend_info_.partition(" kernels, ")[2].partition(";")[0],
                ]
            )
    ratio = "their time / ours"
    header = [
        "case", "beside", "our fit s", ratio, "our predict s", ratio, "our one row µs", ratio,
        "differ %", "arithmetic",
    ]  # fmt: skip
    report.table(header, rows)


def _fit(model: Any, case: Case) -> Callable[[], Any]:
    return lambda: clone(model).fit(case.X, case.y)


def _predict_each(model: Any, X: Any) -> Callable[[], Any]:
    return lambda: [model.predict(X[i : i + 1]) for i in range(X.shape[0])]


def _verify(name: str, models: dict[str, Any], case: Case) -> dict[str, float]:
    """Percent of predictions that differ; objectives and support vectors must agree."""
    ours = next(iter(models.values()))
    labels, found = ours.predict(case.new[:_NEW]), {}
    expected = ours.objective_
    for key, model in list(models.items())[1:]:
        objective = objectives(model, case.X) if len(case.y) < 25_000 else None
        if objective is not None:
            worst = float((np.abs(objective - expected) / np.abs(expected)).max())
            if worst > 1e-4:
                raise AssertionError(f"{name}, {key}: an objective differs by {worst:.2g}")
        found[key] = 100 * float((model.predict(case.new[:_NEW]) != labels).mean())
    return found


def _networks(report: Report, quick: bool) -> None:
    """The networks beside the same centers' worth of Nystroem."""
    size, rows = (40 if quick else 1), []
    table = make_classification(50_000 // size, 20, n_informative=10, random_state=0)
    problems = {
        "40,000 × 20, m=1000": (_split(*table, scaled=True), 1000 // size),
        "iris, m=50": (_split(*load_iris(return_X_y=True), scaled=True), 50),
        "digits, m=300": (_split(*load_digits(return_X_y=True)), 300),
    }
    X, y, new = _text(size)
    name = f"text, {len(y):,} × 30,000, sparse, m=1000"
    problems[name] = Case(X, y, new, {}), 1000 // size
    for name, (case, m) in problems.items():
        peer = make_pipeline(Nystroem(n_components=m, random_state=0), RidgeClassifier())
        models = {
            "Nystroem + Ridge": peer,
            "RBFClassifier": RBFClassifier(m, random_state=0),
        }
        if isinstance(case.X, np.ndarray):
            models["FSVC"] = FSVC("ratio", eval_radius=None, random_state=0)
        fits = in_turn({k: _fit(v, case) for k, v in models.items()}, 1 if quick else 5)
        for model in models.values():
            model.fit(case.X, case.y)
        predicts = in_turn(calls(models, "predict", case.new), 5)
        some = case.new[: _ROWS[quick]]
        single = in_turn({k: _predict_each(v, some) for k, v in models.items()}, 3)
        there = "Nystroem + Ridge"
        for key in list(models)[1:]:
            rows.append(
                [
                    name,
                    key,
                    str(fits[key]),
                    f"{fits[there].median / fits[key].median:.2f}",
                    f"{predicts[there].median / predicts[key].median:.2f}",
                    f"{single[there].median / single[key].median:.2f}",
                ]
            )
    ratios = [f"{what}: their time / ours" for what in ("fit", "predict", "one row")]
    report.table(["case", "", "our fit s", *ratios], rows)


def _grid(report: Report, quick: bool) -> None:
    """Small fits, many of them."""
    X, y = load_digits(return_X_y=True)
    X, y = (X[:300], y[:300]) if quick else (X, y)
    grid = {"svc__C": [1, 10], "svc__gamma": [0.01, 0.03]}

    def search(cls: Any) -> Callable[[], Any]:
        pipeline = Pipeline([("scaler", StandardScaler()), ("svc", cls())])
        return lambda: GridSearchCV(pipeline, grid, cv=3).fit(X, y)

    times = in_turn({key: search(cls) for key, cls in {"gpurbf": SVC, **peers()}.items()}, 3)
    rows = [[key, str(t), f"{t.median / times['gpurbf'].median:.2f}"] for key, t in times.items()]
    report.table(["", "seconds", "their time / ours"], rows)
