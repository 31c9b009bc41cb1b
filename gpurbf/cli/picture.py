"""The picture of a classifier's result: a confusion matrix and the worst mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["NoMatplotlib", "closest_calls", "draw", "worst_mistakes"]

SIDE = 5  # the images shown fill a square of this many a side
_SMALL = 16  # pixels a side below which images are drawn smooth, to be recognised


class NoMatplotlib(ImportError):
    """Matplotlib is not installed; the message says how to get it."""


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
        raise NoMatplotlib(
            "no picture: Matplotlib is not installed, `python -m pip install matplotlib` gets it"
        ) from error
    from sklearn.metrics import confusion_matrix

    figure = Figure(figsize=(13, 6.5), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    left, right = figure.subfigures(1, 2, squeeze=False)[0]
    labels = np.union1d(classes, y)
    _confusion(left, confusion_matrix(y, predicted, labels=labels), labels)
    axes = right.subplots(SIDE, SIDE)
    mistakes = worst_mistakes(y, predicted, classes, scores)
    shown = np.append(mistakes, closest_calls(y, predicted, scores))[: SIDE**2]
    few = len(mistakes) < len(shown)
    right.suptitle(
        ("all mistakes (red), then the closest calls" if few else "worst mistakes")
        + ": true → predicted"
    )
    for axis in axes.flat:
        axis.set_axis_off()
    smooth = "bicubic" if max(images.shape[1:]) < _SMALL else None
    for axis, i in zip(axes.flat, shown):
        axis.imshow(images[i], cmap="gray_r", interpolation=smooth)
        color = "firebrick" if few and y[i] != predicted[i] else "black"
        axis.set_title(f"{y[i]} → {predicted[i]}", fontsize=9, color=color)
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
