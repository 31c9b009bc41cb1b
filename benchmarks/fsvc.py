"""FSVC: the pass against its plain form, what variants reach, LMS, the trade-off by radius."""

from __future__ import annotations

import functools
import warnings
from typing import Any, NamedTuple

import numpy as np

from benchmarks import data, ways
from benchmarks.measure import Times, calls, in_turn, once, timed
from benchmarks.report import Report
from gpurbf import FSVC, datasets
from gpurbf.cli import classify
from gpurbf.fsvc.known import distances
from gpurbf.fsvc.search import find_radius, typical_distance
from gpurbf.layer.backends.numba.packing import aligned
from gpurbf.solvers.lms import lms_rows

TITLE = "FSVC"
UNITS = [
    ("gaussian", "euclidean"),
    ("triangular", "euclidean"),
    ("gaussian", "manhattan"),
    ("triangular", "manhattan"),
]
# The published choice of centers, from which the variants differ.
ONE_RADIUS: dict[str, Any] = {"selection": "pass", "eval_radius": None}


def run(report: Report, quick: bool, data_home: str | None) -> None:
    """Speed of the pass, accuracy of the variants, speed of LMS, sweeps over the radius."""
    images = classify.images(quick, data_home)
    selection(report, images, quick)
    accuracy(report, images, quick)
    lms(report, images, quick)
    sweeps(report, images, quick, data_home)


def plain_pass(X: np.ndarray, radius: float, stop: int | None = None) -> np.ndarray:
    """The pass sample by sample in NumPy, distances by one matrix-vector product each."""
    C = np.empty(X.shape)
    squares, indices = np.empty(len(X)), np.empty(len(X), np.int64)
    m, factor = 0, -0.5 / radius**2
    for i, row in enumerate(X[:stop]):
        x = row.astype(np.float64)
        square = x @ x
        if np.exp(factor * (squares[:m] - 2 * (C[:m] @ x) + square)).sum() < 1:
            C[m], squares[m], indices[m] = x, square, i
            m += 1
    return indices[:m]


def by_differences(C: np.ndarray, x: np.ndarray, radius: float) -> float:
    """The activity of one sample as the formula is written."""
    return float(np.exp(-0.5 / radius**2 * ((C - x) ** 2).sum(axis=1)).sum())


def selection(report: Report, images: datasets.Images, quick: bool) -> None:
    """The blockwise pass on every backend; first its indices are those of the plain one."""
    X, y = images.X_train, images.y_train
    rows: list[tuple[Any, ...]] = []
    for radius in (20.0, 12.0) if quick else (3.0 * 255, 2.6 * 255):
        plain, expected = timed(plain_pass, X, radius)
        C = X[expected].astype(np.float64)
        x = X[-1].astype(np.float64)
        one = in_turn({"": functools.partial(by_differences, C, x, radius)}, rounds=20)[""].median
        m = len(C)
        rows += [
            (f"{m:,}", "NumPy, a matrix-vector product a sample", f"{plain:.1f}", "1"),
            (f"{m:,}", "NumPy, differences (last sample × N / 2)", f"{one * len(X) / 2:.0f}", ""),
        ]
        options = {"solver": "one-hot", "shuffle": False, **ONE_RADIUS}
        models = {name: FSVC(radius, backend=name, **options) for name in ways.there()}
        for name, model in models.items():
            if not np.array_equal(model.fit(X, y).center_indices_, expected):
                raise AssertionError(f"{name}: other centers than the plain pass")
        for name, times in in_turn(calls(models, "fit", X, y), rounds=3, warm_up=False).items():
            rows.append((f"{m:,}", f"FSVC, {name}", times, f"{plain / times.median:.0f}"))
    report.text(
        f"## The pass over {len(X):,} samples, overlap 1, gaussian, in the order given\n\n"
        "Same centers, checked. FSVC's times are of a whole fit without training."
    )
    report.table(("centers", "how", "seconds", "first row's time / this"), rows)


def radius_for(X: np.ndarray, y: np.ndarray, low: float, high: float, **parameters: Any) -> float:
    """A radius with so many centers, found on the training data alone."""
    some = X[:: max(1, len(X) // 200)]
    start = typical_distance(distances(some, some, parameters.get("metric", "euclidean")))

    def count(radius: float) -> int:
        model = FSVC(radius, solver="one-hot", random_state=0, **ONE_RADIUS | parameters)
        return len(model.set_params(max_centers=int(1.5 * high)).fit(X, y).centers_)

    return find_radius(count, low, high, start)


VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("votes (one-hot)", {"solver": "one-hot"}),
    ("LMS, best of 10 epochs", {"solver": "lms", "eval_radius": "auto", "learning_rate": 0.02}),
    ("ridge", {}),
    ("ridge, wider evaluation", {"eval_radius": "auto"}),
    ("per class, ridge, wider", {"eval_radius": "auto", "selection": "per-class"}),
    ("error-aware, ridge, wider", {"eval_radius": "auto", "selection": "error"}),
]


SEARCHES: list[tuple[str, dict[str, Any]]] = [
    ("radius='auto'", {}),
    ("the default: error-aware, both radii", {"selection": "error", "eval_radius": "auto"}),
]


def accuracy(report: Report, images: datasets.Images, quick: bool) -> None:
    """Test accuracy of each variant at two sizes, and of the search left to itself."""
    X, y = images.X_train, images.y_train
    rows = []
    for m in (100, 300) if quick else (1_200, 4_500):
        radii: dict[str, float] = {}
        for name, parameters in VARIANTS:
            kind = parameters.get("selection", "pass")
            if kind not in radii:
                radii[kind] = radius_for(X, y, 0.95 * m, 1.04 * m, selection=kind)
            model = FSVC(radii[kind], random_state=0, **ONE_RADIUS | parameters)
            rows.append(_row(name, model, images))
    for name, parameters in SEARCHES:
        limit = 300 if quick else 4_700
        model = FSVC(random_state=0, max_centers=limit, **ONE_RADIUS | parameters)
        rows.append(_row(name, model, images))
    report.text(
        "## Accuracy\n\nSelection radii are set by the number of centers; evaluation radii, LMS "
        "epochs and what `auto` decides by a fifth of the training data, in the seconds of the fit."
    )
    report.table(
        ("variant", "centers", "radius", "evaluated", "fit s", "predict s", "test %"), rows
    )


def _row(name: str, model: FSVC, images: datasets.Images) -> tuple[str, ...]:
    """Fit, predict, accuracy of a model."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(images.X_train[:2000], images.y_train[:2000]).predict(images.X_test)  # compiles
        fit = once(model.fit, images.X_train, images.y_train)
        predict, labels = timed(model.predict, images.X_test)
    return (
        name,
        f"{len(model.centers_):,}",
        f"{model.radius_:.4g}",
        f"{model.eval_radius_:.4g}",
        f"{fit:.2f}",
        f"{predict:.3f}",
        f"{100 * np.mean(labels == images.y_test):.2f}",
    )


def python_epoch(H: np.ndarray, T: np.ndarray, W: np.ndarray, learning_rate: float) -> None:
    """The delta rule as it is written."""
    for z, t in zip(H, T):
        W += learning_rate * np.outer(z, t - z @ W)


def lms(report: Report, images: datasets.Images, quick: bool) -> None:
    """An epoch on stored activations, ten outputs."""
    X, y = images.X_train, images.y_train.astype(np.int64)
    T = np.eye(10)[y]
    rows = []
    for m in (104, 330) if quick else (330, 1_200, 4_480):
        model = FSVC(12.0 if quick else 600.0, max_centers=m, solver="one-hot", **ONE_RADIUS).fit(
            X, y
        )
        m = len(model.centers_)
        N = min(len(X), 500_000 if quick else 8_000_000 // m)
        # As the solver keeps them, padded to whole vectors and groups of rows.
        N = N // 4 * 4
        H, V = (aligned((rows_, -(-m // 8) * 8), np.float64) for rows_ in (N, 10))
        H[:, m:], V[:, m:] = 0, 0
        H[:, :m], V[:, :m] = model._layer().activations(X[:N]), model.coef_
        W, Z = model.coef_.T.copy(), H[:, :m].copy()
        python_epoch(Z, T[:N], W, 0.05)
        lms_rows(H, T[:N], V, 0.05, np.ones(N))
        error = np.abs(V[:, :m].T - W).max()
        if error > 1e-12:
            raise AssertionError(f"LMS differs from the plain loop by {error:g}")
        few = min(N, 2_000)
        plain_epoch = functools.partial(python_epoch, Z[:few], T[:few], W, 0.05)
        fused_epoch = functools.partial(lms_rows, H, T[:N], V, 0.05, np.ones(N))
        plain = in_turn({"plain": plain_epoch}, rounds=3)["plain"]
        ours = in_turn({"fused": fused_epoch}, rounds=15)["fused"]
        rows.append(
            (
                f"{m:,}",
                _microseconds(plain, few),
                _microseconds(ours, N),
                f"{plain.median * N / (ours.median * few):.0f} "
                f"({plain.low * N / (ours.low * few):.0f})",
                f"{error:.0e}",
            )
        )
    report.text(
        "## LMS: microseconds a sample, ten outputs, float64\n\nOver 64 MB of activations. In "
        "brackets the range of the rounds and the ratio of the best ones. The error is that of the "
        "weights after an epoch."
    )
    header = ("centers", "Python loop over NumPy", "ours", "their time / ours", "error")
    report.table(header, rows)


def _microseconds(times: Times, N: int) -> str:
    return f"{1e6 * times.median / N:.2f} ({1e6 * times.low / N:.2f}–{1e6 * times.high / N:.2f})"


def sweeps(report: Report, images: datasets.Images, quick: bool, data_home: str | None) -> None:
    """Accuracy and number of centers over the radius, for four units, on up to three data sets."""
    sets = {"digits": classify.digits(1200)}
    if not quick:
        sets["MNIST"] = images
        if fashion := data.fashion(report, data_home):
            sets["Fashion-MNIST"] = fashion
    report.text(
        "## The trade-off\n\nTest accuracy over the radius, in units of the median distance of "
        "samples: ridge (solid) and votes (dashed), both evaluated at the selection radius."
    )
    for name, part in sets.items():
        curves = {unit: _curve(part, *unit) for unit in UNITS}
        report.figure(f"fsvc-{name.lower()}", f"{name}: radius", functools.partial(_draw, curves))
        report.text(f"### {name}, {len(part.X_train):,} samples")
        report.table(
            ("unit", "radius / median", "centers", "votes %", "ridge %"),
            [
                (" ".join(unit), f"{r:.3f}", f"{m:,}", f"{votes:.2f}", f"{ridge:.2f}")
                for unit, points in curves.items()
                for r, m, votes, ridge in points
            ],
        )


class Point(NamedTuple):
    """Radius over the median distance, number of centers, accuracy of votes and of ridge."""

    radius: float
    centers: int
    votes: float
    ridge: float


def _curve(images: datasets.Images, kernel: str, metric: str) -> list[Point]:
    """Measure a unit's accuracy over the radius, the largest radius first."""
    X, y, X_test, y_test = images
    unit: dict[str, Any] = {"kernel": kernel, "metric": metric}
    high = min(0.4 * len(X), 2_400)
    small, large = (radius_for(X, y, 0.9 * m, 1.1 * m, **unit) for m in (high, max(15, high / 40)))
    some = X[:: max(1, len(X) // 200)]
    median = typical_distance(distances(some, some, metric))
    points = []
    for radius in np.geomspace(large, small, 6):
        scores = []
        for solver in ("one-hot", "ridge"):
            model = FSVC(float(radius), solver=solver, random_state=0, **ONE_RADIUS | unit).fit(
                X, y
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)
                scores.append(100 * float(model.score(X_test, y_test)))
        points.append(Point(float(radius) / median, len(model.centers_), *scores))
    return points


def _draw(curves: dict[tuple[str, str], list[Point]], figure: Any) -> None:
    left, right = figure.subplots(1, 2)
    for i, (unit, points) in enumerate(curves.items()):
        radius, centers, votes, ridge = zip(*points)
        color = f"C{i}"
        left.plot(radius, ridge, "o-", color=color, label=" ".join(unit))
        left.plot(radius, votes, "o--", color=color)
        right.plot(centers, ridge, "o-", color=color)
        right.plot(centers, votes, "o--", color=color)
    left.set(xlabel="radius / median distance", ylabel="test accuracy %", xscale="log")
    right.set(xlabel="centers", ylabel="test accuracy %", xscale="log")
    left.legend()
