"""Classify images: fit, predict, show accuracy and times, and draw the mistakes."""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import gpurbf
from gpurbf import datasets
from gpurbf.cli import UserError
from gpurbf.layer.backends import LOADERS, get_backend
from gpurbf.profiling.profiler import markdown_table


class Task(NamedTuple):
    """Data to classify; images are (N, height, width)."""

    title: str
    train: np.ndarray
    y_train: np.ndarray
    test: np.ndarray
    y_test: np.ndarray


def _digits() -> Task:
    """Scikit-learn's embedded digits, a quarter of each class for testing."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    digits = load_digits()
    train, test, y_train, y_test = train_test_split(
        digits.images, digits.target, test_size=0.25, stratify=digits.target, random_state=0
    )
    return Task("digits", train, y_train, test, y_test)


def _named(title: str, load: Callable[[str | None], datasets.Images]) -> Task:
    """One of the 28 × 28 data sets."""
    X_train, y_train, X_test, y_test = load(os.environ.get("GPURBF_TEST_DATA"))
    return Task(title, X_train.reshape(-1, 28, 28), y_train, X_test.reshape(-1, 28, 28), y_test)


DATA: dict[str, Callable[[], Task]] = {
    "digits": _digits,
    "mnist": lambda: _named("mnist", datasets.load_mnist),
    "fashion-mnist": lambda: _named("fashion-mnist", datasets.load_fashion_mnist),
}

_HEADER = ("estimator", "backend", "centers", "fit s", "predict s", "accuracy %")
_WIDEST = ("RBFClassifier", "numba-cuda", "100,000", "1000.00", "1000.00", "100.00")

# An estimator for a training set of N samples and a backend.
ESTIMATORS: dict[str, Callable[[int, str], Any]] = {
    "svc": lambda N, backend: gpurbf.SVC(C=10, backend=backend),
    "rbf": lambda N, backend: gpurbf.RBFClassifier(
        min(4000, N // 2), backend=backend, random_state=0
    ),
    "fsvc": lambda N, backend: gpurbf.FSVC(backend=backend, random_state=0),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument(
        "--data",
        default="digits",
        metavar="digits|mnist|fashion-mnist|DIR",
        help="DIR is a folder of IDX files (gzip or plain) with MNIST's file names; mnist and "
        "fashion-mnist are first looked for in $GPURBF_TEST_DATA (default: digits)",
    )
    parser.add_argument("--estimator", default="all", choices=[*ESTIMATORS, "all"])
    parser.add_argument("--backend", default="auto", choices=["auto", *LOADERS])
    parser.add_argument(
        "--out", default="gpurbf-out", metavar="DIR", help="folder for pictures (%(default)s)"
    )
    parser.add_argument(
        "--verbose", action="store_true", help="print progress, and what ran, to stderr"
    )


def run(arguments: argparse.Namespace) -> None:
    """Fit and score the estimators asked for; print a table, then draw pictures."""
    try:
        get_backend(arguments.backend)  # refused now rather than after the data are read
    except ValueError as error:  # an environment variable names what is not there
        raise UserError(str(error)) from error
    log = say if arguments.verbose else _silent
    log(f"reading {arguments.data}")
    task = _load(arguments.data)
    names = list(ESTIMATORS) if arguments.estimator == "all" else [arguments.estimator]
    N, height, width = task.train.shape
    print(
        f"{task.title}: {N:,} training and {len(task.test):,} test images of {height} × {width}, "
        f"{len(np.unique(task.y_train))} classes\n",
        flush=True,
    )
    results: dict[str, Result] = {}
    for name in names:
        try:
            result = _classify(name, task, arguments.backend, log)
        except ValueError as error:  # data that an estimator refuses, one class only for instance
            raise UserError(str(error)) from error
        # Of a table whose columns are as wide as any row makes them, the lines not printed yet.
        lines = markdown_table(_HEADER, [_WIDEST, result.row]).splitlines()
        print(*(lines[3:] if results else [*lines[:2], lines[3]]), sep="\n", flush=True)
        results[name] = result
    log("drawing")
    drawn = [_drawn(task, name, result, arguments.out) for name, result in results.items()]
    print("", *dict.fromkeys(drawn), sep="\n")


def _load(name: str) -> Task:
    """The data of that name, or in that folder."""
    try:
        if name in DATA:
            return DATA[name]()
        if not Path(name).is_dir():
            raise UserError(f"--data {name}: neither a folder nor one of {', '.join(DATA)}.")
        train, y_train, test, y_test = datasets.load_folder(name)
    except (OSError, ValueError) as error:
        raise UserError(str(error)) from error
    if train.ndim != 3:
        raise UserError(f"{name}: images must be height × width, got shape {train.shape}.")
    return Task(Path(name).name or name, train, y_train, test, y_test)


class Result(NamedTuple):
    """A fitted estimator, its labels for the test images, and its row of the table."""

    estimator: Any
    predicted: np.ndarray
    row: tuple[str, ...]


def _classify(name: str, task: Task, backend: str, log: Callable[[str], None]) -> Result:
    """Fit, predict and score one estimator."""
    X_train, X_test = _rows(task.train), _rows(task.test)
    estimator = ESTIMATORS[name](len(X_train), backend)
    title = type(estimator).__name__
    log(f"{title}: preparing")
    _prepare(name, X_train, task.y_train, backend)
    log(f"{title}: fitting")
    started = time.perf_counter()
    estimator.fit(X_train, task.y_train)
    fitted = time.perf_counter()
    log(f"{title}: predicting")
    predicted = estimator.predict(X_test)
    done = time.perf_counter()
    log(f"{title} ran on {estimator.backend_info_}")
    is_svc = isinstance(estimator, gpurbf.SVC)
    row = (
        title,
        estimator.backend_,
        f"{len(estimator.support_ if is_svc else estimator.centers_):,}",
        f"{fitted - started:.2f}",
        f"{done - fitted:.2f}",
        f"{100 * np.mean(predicted == task.y_test):.2f}",
    )
    return Result(estimator, predicted, row)


def _drawn(task: Task, name: str, result: Result, out: str) -> str:
    """Draw the picture of a result; where it is, or why there is none."""
    path = Path(out) / f"{task.title}-{name}.png"
    try:
        draw(
            path,
            f"{result.row[0]} on {task.title}: accuracy {result.row[-1]} %",
            task.test,
            task.y_test,
            result.predicted,
            result.estimator.classes_,
            result.estimator.decision_function(_rows(task.test)),
        )
    except ImportError as error:
        return str(error)
    except OSError as error:
        raise UserError(f"--out {out}: {error}") from error
    return f"picture: {path}"


def _rows(images: np.ndarray) -> np.ndarray:
    return images.reshape(len(images), -1)


def _prepare(name: str, X: np.ndarray, y: np.ndarray, backend: str) -> None:
    """Fit on a few samples of every class, so that compilation is not in the times."""
    rows = np.union1d(np.arange(min(600, len(y))), np.unique(y, return_index=True)[1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ESTIMATORS[name](len(rows), backend).fit(X[rows], y[rows]).predict(X[rows])


def say(text: str) -> None:
    """Progress, on stderr so that the table can be piped."""
    print(text, file=sys.stderr, flush=True)


def _silent(text: str) -> None:
    """Say nothing."""


SIDE = 5  # the images shown fill a square of this many a side
_SMALL = 16  # pixels a side below which images are drawn smooth, to be recognised


def worst_mistakes(
    y: np.ndarray, predicted: np.ndarray, classes: np.ndarray, scores: np.ndarray
) -> np.ndarray:
    """Indices of the wrong predictions, the most confident first."""
    wrong = np.flatnonzero(predicted != y)
    if scores.ndim == 1:  # two classes
        margin = np.abs(scores[wrong])
    else:
        order = np.argsort(classes, kind="stable")
        column = order[np.searchsorted(classes, y[wrong], sorter=order).clip(max=len(classes) - 1)]
        margin = scores[wrong].max(axis=1) - scores[wrong, column]
    return wrong[np.argsort(-margin, kind="stable")]


def closest_calls(y: np.ndarray, predicted: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Indices of the right predictions, the least confident first."""
    right = np.flatnonzero(predicted == y)
    if scores.ndim == 1:
        margin = np.abs(scores[right])
    else:
        second, first = np.sort(scores[right], axis=1)[:, -2:].T
        margin = first - second
    return right[np.argsort(margin, kind="stable")]


def draw(
    path: Path,
    title: str,
    images: np.ndarray,
    y: np.ndarray,
    predicted: np.ndarray,
    classes: np.ndarray,
    scores: np.ndarray,
) -> None:
    """Write the picture to `path`, a PNG file; its folder is made."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError(
            "no picture: Matplotlib is not installed (`python -m pip install matplotlib`)"
        ) from error
    from sklearn.metrics import confusion_matrix

    figure = Figure(figsize=(13, 6.5), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    left, right = figure.subfigures(1, 2, squeeze=False)[0]
    labels = np.union1d(classes, y)
    _confusion(left, confusion_matrix(y, predicted, labels=labels), labels)
    mistakes = worst_mistakes(y, predicted, classes, scores)
    shown = np.append(mistakes, closest_calls(y, predicted, scores))[: SIDE**2]
    few = len(mistakes) < len(shown)
    axis = right.subplots()
    axis.set_axis_off()
    axis.set_title(
        ("all mistakes (red), then the closest calls" if few else "worst mistakes")
        + ": true → predicted"
    )
    # One image of all: axes for each take longer.
    height, width = images.shape[1:]
    gap = 1 + height // 4  # for the line above each
    sheet = np.zeros((SIDE * (height + gap) + gap, SIDE * (width + gap)))
    for place, i in zip(np.ndindex(SIDE, SIDE), shown):
        top, left_ = place[0] * (height + gap) + gap, place[1] * (width + gap)
        sheet[top : top + height, left_ : left_ + width] = images[i]
        color = "firebrick" if few and y[i] != predicted[i] else "black"
        axis.text(
            left_ + width / 2,
            top - 1,
            f"{y[i]} → {predicted[i]}",
            fontsize=9,
            color=color,
            ha="center",
        )
    smooth = "bicubic" if max(height, width) < _SMALL else None
    axis.imshow(sheet, cmap="gray_r", interpolation=smooth)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)


def _confusion(figure: Any, counts: np.ndarray, labels: np.ndarray) -> None:
    """The matrix of counts; colour shows the mistakes only, which the diagonal would outshine."""
    axis = figure.subplots()
    mistakes = counts * (1 - np.eye(len(labels), dtype=int))
    darkest = max(5, mistakes.max())
    axis.imshow(mistakes, cmap="Reds", vmin=0, vmax=darkest)
    for row, column in np.ndindex(counts.shape):
        if counts[row, column]:
            dark = mistakes[row, column] > darkest / 2
            axis.text(
                column,
                row,
                counts[row, column],
                ha="center",
                va="center",
                color="white" if dark else "black",
                fontsize=8,
            )
    ticks = np.arange(len(labels))
    axis.set(xlabel="predicted", ylabel="true", xticks=ticks, yticks=ticks)
    axis.set_xticklabels(labels)
    axis.set_yticklabels(labels)


def images(quick: bool, data_home: str | None) -> datasets.Images:
    """MNIST; scikit-learn's digits, which need no file, for a quick run."""
    return digits(1400) if quick else datasets.load_mnist(data_home)


def digits(n_train: int) -> datasets.Images:
    """scikit-learn's digits, the first ones to train on."""
    from sklearn.datasets import load_digits

    X, y = (part.astype(np.uint8) for part in load_digits(return_X_y=True))
    return datasets.Images(X[:n_train], y[:n_train], X[n_train:], y[n_train:])
