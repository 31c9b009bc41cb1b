"""Classify images: fit, predict, show accuracy and times, and draw the mistakes."""

from __future__ import annotations

import argparse
import atexit
import gc
import importlib.util
import os
import sys
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import numpy as np

import gpurbf
from gpurbf import datasets
from gpurbf.cli import BACKEND, UserError
from gpurbf.cli.processes import Processes
from gpurbf.datasets import Images
from gpurbf.layer.backends import LOADERS, get_backend
from gpurbf.runtime.lazy import lazy_module, without_collecting

jit = lazy_module("gpurbf.runtime.jit")

# Functions that make an estimator for N training samples and a backend.
ESTIMATORS: dict[str, Callable[[int, str], Any]] = {
    "svc": lambda N, backend: gpurbf.SVC(C=10, backend=backend),
    "rbf": lambda N, backend: gpurbf.RBFClassifier(
        min(4000, N // 2), backend=backend, random_state=0
    ),
    "fsvc": lambda N, backend: gpurbf.FSVC(backend=backend, random_state=0),
}
_NAMED = "mnist", "fashion-mnist"
# Lines of the table; each column is as wide as its longest possible entry.
_ROW = "| {:13} | {:10} | {:>7} | {:>7} | {:>9} | {:>10} |"
_HEADER = ("estimator", "backend", "centers", "fit s", "predict s", "accuracy %")
_RULE = (13 * "-", 10 * "-", 6 * "-" + ":", 6 * "-" + ":", 8 * "-" + ":", 9 * "-" + ":")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data",
        default="digits",
        metavar="digits|mnist|fashion-mnist|DIR",
        help="DIR is a folder of IDX files (gzip or plain) with MNIST's file names; mnist and "
        "fashion-mnist are first looked for in $GPURBF_TEST_DATA (default: digits)",
    )
    parser.add_argument(
        "--estimator", default="all", choices=[*ESTIMATORS, "all"], help="classifier (default: all)"
    )
    parser.add_argument("--backend", default="auto", choices=["auto", *LOADERS], help=BACKEND)
    parser.add_argument(
        "--out", default="gpurbf-out", metavar="DIR", help="where pictures go (default: gpurbf-out)"
    )
    parser.add_argument(
        "--verbose", action="store_true", help="print progress, and what ran, to stderr"
    )


def run(arguments: argparse.Namespace) -> None:
    """Fit and score the requested estimators; print a table, then the paths of the pictures."""
    log = say if arguments.verbose else lambda text: None
    atexit.register(gc.freeze)  # no garbage collection of imports at exit
    # A second process imports Matplotlib and compiles while this one imports scikit-learn. Later it
    # draws while this one prepares the next estimator.
    with Processes(1) as painter:
        pictures: list[Future[str]] = []
        try:
            # An unavailable backend is refused before the data are read.
            backend, _ = get_backend(arguments.backend)
            can_draw = importlib.util.find_spec("matplotlib") is not None
            compiles = backend.name == "numba" and arguments.data == "digits"
            painter.submit(_work_ahead, can_draw, compiles)
            log(f"reading {arguments.data}")
            with without_collecting():
                data = _load(arguments.data)
            title = Path(arguments.data).name or arguments.data
            N, height, width = data.X_train.shape
            kind = f"{height} × {width}, {len(np.unique(data.y_train))} classes"
            print(f"{title}: {N:,} training and {len(data.X_test):,} test images of {kind}\n")
            print(_ROW.format(*_HEADER), _ROW.format(*_RULE), sep="\n", flush=True)
            for name in ESTIMATORS if arguments.estimator == "all" else [arguments.estimator]:
                estimator, predicted = _classify(name, data, arguments.backend, log, pictures)
                if can_draw:
                    path = Path(arguments.out) / f"{title}-{name}.png"
                    model = f"{type(estimator).__name__} on {title}"
                    scores = estimator.decision_function(_rows(data.X_test))
                    shown = data.X_test, data.y_test, predicted, estimator.classes_, scores
                    pictures.append(painter.submit(draw, path, model, *shown))
        except ValueError as error:  # data that an estimator refuses
            raise UserError(str(error)) from error
        log("drawing")
        print("", *(picture.result() for picture in pictures), sep="\n")
        if not can_draw:
            print("no picture: get Matplotlib with `python -m pip install matplotlib`")


def _load(name: str) -> Images:
    """The data of that name, or in that folder; images are (N, height, width)."""
    if name == "digits":  # a quarter of each class for testing
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

        X, y = load_digits(return_X_y=True)
        train, test, y_train, y_test = train_test_split(
            X.reshape(-1, 8, 8), y, test_size=0.25, stratify=y, random_state=0
        )
        return Images(train, y_train, test, y_test)
    if name in _NAMED:
        load = getattr(datasets, f"load_{name.replace('-', '_')}")
        train, y_train, test, y_test = load(os.environ.get("GPURBF_TEST_DATA") or None)
        return Images(train.reshape(-1, 28, 28), y_train, test.reshape(-1, 28, 28), y_test)
    if not Path(name).is_dir():
        raise UserError(f"--data {name}: neither a folder nor one of digits, {', '.join(_NAMED)}.")
    data = datasets.load_folder(name)
    if data.X_train.ndim != 3:
        raise UserError(f"{name}: images must be height × width, got {data.X_train.shape}.")
    return data


def _classify(
    name: str, data: Images, backend: str, log: Callable[[str], None], pictures: list[Future[str]]
) -> tuple[Any, np.ndarray]:
    """Fit an estimator and predict the test images; print its row, return both."""
    X, y, X_test = _rows(data.X_train), data.y_train, _rows(data.X_test)
    estimator = ESTIMATORS[name](len(X), backend)
    title = type(estimator).__name__
    log(f"{title}: preparing")
    # Fit a few samples of every class first, so that compilation is not in the times.
    some = np.union1d(np.arange(min(600, len(y))), np.unique(y, return_index=True)[1])
    with warnings.catch_warnings(action="ignore"):
        ESTIMATORS[name](len(some), backend).fit(X[some], y[some]).predict(X[some])
    wait(pictures)  # drawing would take a core from the timed work
    log(f"{title}: fitting")
    started = time.perf_counter()
    estimator.fit(X, y)
    fitted = time.perf_counter()
    log(f"{title}: predicting")
    predicted = estimator.predict(X_test)
    done = time.perf_counter()
    log(f"{title} ran on {estimator.backend_info_}")
    n_centers = (estimator.support_ if name == "svc" else estimator.centers_).shape[0]
    times = f"{fitted - started:.2f}", f"{done - fitted:.2f}"
    row = title, estimator.backend_, f"{n_centers:,}", *times, _accuracy(data.y_test, predicted)
    print(_ROW.format(*row), flush=True)
    return estimator, predicted


def _accuracy(y: np.ndarray, predicted: np.ndarray) -> str:
    return f"{100 * np.mean(predicted == y):.2f}"


def _rows(images: np.ndarray) -> np.ndarray:
    return images.reshape(len(images), -1)


def say(text: str) -> None:
    """Print progress to stderr, so that the table can be piped."""
    print(text, file=sys.stderr, flush=True)


SIDE = 5  # images per side of the square of images that is shown
_SMALL = 16  # images with fewer pixels per side are smoothed, to be recognisable


def hardest(
    y: np.ndarray, predicted: np.ndarray, classes: np.ndarray, scores: np.ndarray
) -> np.ndarray:
    """Indices of all samples: mistakes, the most confident first, then the closest calls."""
    if scores.ndim == 1:  # two classes
        scores = np.column_stack((-scores, scores))
    true = y[:, None] == classes
    margin = np.where(true, scores, -np.inf).max(axis=1)  # the lead of the true class
    margin = margin - np.where(true, -np.inf, scores).max(axis=1)
    return np.lexsort((margin, predicted == y))


def _work_ahead(can_draw: bool, compiles: bool) -> None:
    """Import and compile ahead, in the other process, before there is something to draw."""
    gc.disable()
    atexit.register(gc.freeze)
    if can_draw:
        from matplotlib.backends import backend_agg  # noqa: F401 (for `draw`)
        from matplotlib.figure import Figure  # noqa: F401
    if compiles:  # what all estimators need for samples like the digits
        from gpurbf.layer.activation import Activation
        from gpurbf.layer.layer import HiddenLayer

        jit.announcer.said = True  # only the first process prints the message
        X = np.random.default_rng(0).integers(0, 16, (600, 64)).astype(float)
        layer = HiddenLayer(X[:300], Activation("euclidean", "gaussian", 1e-3), backend="numba")
        sums = np.zeros((300, 300)), np.zeros((300, 10))
        layer.gram(X, np.ones((600, 10)), None, np.zeros(300), sums)
        layer.matvec(X, np.ones((300, 10)))


def draw(
    path: Path,
    model: str,
    images: np.ndarray,
    y: np.ndarray,
    predicted: np.ndarray,
    classes: np.ndarray,
    scores: np.ndarray,
) -> str:
    """Write the picture to `path`, a PNG file; say where it is."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 6.5))
    figure.suptitle(f"{model}: accuracy {_accuracy(y, predicted)} %")
    # Explicit positions: an automatic layout draws everything twice.
    _confusion(figure.add_axes((0.05, 0.09, 0.4, 0.8)), y, predicted, np.union1d(classes, y))
    shown = hardest(y, predicted, classes, scores)[: SIDE**2]
    few = bool((predicted == y)[shown].any())
    axis = figure.add_axes((0.5, 0.02, 0.48, 0.88))
    axis.set_axis_off()
    which = "all mistakes (red), then the closest calls" if few else "worst mistakes"
    axis.set_title(f"{which}: true → predicted")
    # Draw all images as one: separate axes take longer.
    height, width = images.shape[1:]
    gap = 1 + height // 4  # for the text above each image
    sheet = np.zeros((SIDE * (height + gap) + gap, SIDE * (width + gap)))
    for (row, column), i in zip(np.ndindex(SIDE, SIDE), shown):
        top, start = row * (height + gap) + gap, column * (width + gap)
        sheet[top : top + height, start : start + width] = images[i]
        color = "firebrick" if few and y[i] != predicted[i] else "black"
        text = f"{y[i]} → {predicted[i]}"
        axis.text(start + width / 2, top - 1, text, fontsize=9, color=color, ha="center")
    smooth = "bilinear" if max(height, width) < _SMALL else None
    axis.imshow(sheet, cmap="gray_r", interpolation=smooth)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=100, pil_kwargs={"compress_level": 1})
    except OSError as error:
        raise UserError(f"--out {path.parent}: {error}") from error
    return f"picture: {path}"


def _confusion(axis: Any, y: np.ndarray, predicted: np.ndarray, labels: np.ndarray) -> None:
    """The matrix of counts; only mistakes are coloured, as the diagonal is much larger."""
    counts = (labels[:, None] == y).astype(int) @ (predicted[:, None] == labels)
    mistakes = counts * (1 - np.eye(len(labels), dtype=int))
    darkest = max(5, mistakes.max())
    axis.imshow(mistakes, cmap="Reds", vmin=0, vmax=darkest)
    for row, column in zip(*np.nonzero(counts)):
        color = "white" if mistakes[row, column] > darkest / 2 else "black"
        center = {"ha": "center", "va": "center"}
        axis.text(column, row, counts[row, column], color=color, fontsize=8, **center)
    ticks = np.arange(len(labels))
    axis.set(xlabel="predicted", xticks=ticks, xticklabels=labels)
    axis.set(ylabel="true", yticks=ticks, yticklabels=labels)


def images(quick: bool, data_home: str | None) -> Images:
    """MNIST; scikit-learn's digits, which need no file, for a quick run."""
    return digits(1400) if quick else datasets.load_mnist(data_home)


def digits(n_train: int) -> Images:
    """scikit-learn's digits, the first ones to train on."""
    from sklearn.datasets import load_digits

    X, y = (part.astype(np.uint8) for part in load_digits(return_X_y=True))
    return Images(X[:n_train], y[:n_train], X[n_train:], y[n_train:])
