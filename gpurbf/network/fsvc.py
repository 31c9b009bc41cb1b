"""FSVC put together: three ways to choose centers, the outputs, the answer far from all centers."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from gpurbf._config import get_config
from gpurbf._stages import staged
from gpurbf.backends.arrays import to_host
from gpurbf.network.centers.fsvc import Pass, find_radius, squared, typical_distance
from gpurbf.network.hidden import Activation, HiddenLayer
from gpurbf.network.model import one_hot
from gpurbf.network.order import held_out
from gpurbf.network.radius import (
    KnownLayer,
    Sample,
    Trial,
    center_limits,
    extrapolate,
    search,
    select,
)
from gpurbf.network.solvers.lms import lms
from gpurbf.network.solvers.ridge import NormalEquations

__all__ = [
    "SELECTIONS",
    "SOLVERS",
    "Selection",
    "distances",
    "draw_sample",
    "grown",
    "nearest_centers",
    "radius_for_ratio",
    "train",
    "tune",
]

SELECTIONS = ("pass", "per-class", "error")
SOLVERS = ("one-hot", "lms", "ridge")
# "error": a novel sample whose class leads by less than this share of the activity is a center.
MARGIN = 0.1
# Of each class, what decides between radii.
VALIDATION = 0.2
_ROWS = 1024


class Selection:
    """Centers chosen from a stream: by one pass, by one for each class, or by one that sees errors.

    Parameters
    ----------
    kind : {"pass", "per-class", "error"}
    layer, kernel, metric, radius, overlap
        See :class:`gpurbf.network.centers.fsvc.Pass`.
    n_classes : int
    max_centers : int or None
        In all; with "per-class" each class gets an equal share of it.
    """

    def __init__(
        self,
        kind: str,
        layer: Callable[[np.ndarray, Activation], Any],
        kernel: str,
        metric: str,
        radius: float,
        overlap: float,
        n_classes: int,
        max_centers: int | None = None,
    ) -> None:
        self.kind = kind
        shares: list[int | None] = [max_centers]
        if kind == "per-class":
            shares = [None] * n_classes
            if max_centers is not None:
                shares = [(max_centers + n_classes - 1 - c) // n_classes for c in range(n_classes)]
        by_class = n_classes if kind == "error" else 1
        margin = MARGIN if kind == "error" else math.inf
        self.passes = [
            Pass(
                layer,
                kernel,
                metric,
                radius,
                overlap,
                n_classes=by_class,
                margin=margin,
                max_centers=share,
            )
            for share in shares
        ]

    def copy(self) -> Selection:
        """A selection that goes on from here and leaves this one as it is."""
        other = copy.copy(self)
        other.passes = [one.copy() for one in self.passes]
        return other

    @staged("prepare", "centers chosen")
    def feed(
        self, X: Any, y: np.ndarray, order: np.ndarray, places: np.ndarray | None = None
    ) -> np.ndarray:
        """Take the next samples: rows of X in `order`; y (N,) are the class numbers of all rows.

        `places` (N,) are what `indices` calls the rows, by default their numbers. Returns where the
        centers that there were before are now.
        """
        before = [len(one.indices) for one in self.passes]
        for c, one in enumerate(self.passes):
            rows = order[y[order] == c] if self.kind == "per-class" else order
            one.feed(X, y, rows, places)
            one.release()
        starts = np.cumsum([0] + [len(one.indices) for one in self.passes])
        return np.concatenate([start + np.arange(n) for start, n in zip(starts, before)])

    def __len__(self) -> int:
        return sum(len(one.indices) for one in self.passes)

    @property
    def centers(self) -> np.ndarray:
        """Centers (m, n); class after class with "per-class"."""
        parts = [one.centers for one in self.passes if one.indices]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    @property
    def indices(self) -> np.ndarray:
        """Where the centers (m,) were in the stream."""
        return np.concatenate([np.array(one.indices, np.int64) for one in self.passes])

    @property
    def labels(self) -> np.ndarray:
        """Class numbers of the centers (m,)."""
        return np.concatenate([np.array(one.labels, np.int64) for one in self.passes])


def train(
    solver: str,
    layer: Any,
    X: Any,
    T: np.ndarray,
    weights: np.ndarray | None,
    center_targets: np.ndarray,
    order: np.ndarray,
    *,
    learning_rate: float,
    n_epochs: int,
    alpha: float,
    after_epoch: Callable[[int, np.ndarray], bool] | None = None,
) -> np.ndarray:
    """Output weights W (m, k) for targets T (N, k) by one of ``SOLVERS``; none has a bias."""
    if solver == "one-hot":
        return center_targets
    if solver == "lms":
        return lms(
            layer,
            X,
            T,
            weights,
            center_targets=center_targets,
            learning_rate=learning_rate,
            n_epochs=n_epochs,
            order=order,
            after_epoch=after_epoch,
        )
    normal = NormalEquations(*center_targets.shape)
    normal.add(layer, X, T, weights)
    return normal.solve(alpha, False).W


def grown(normal: NormalEquations, m: int, places: np.ndarray) -> NormalEquations:
    """The sums for m centers, of which those at `places` are old: new ones were silent before."""
    larger = NormalEquations(m, len(normal.targets))
    larger.G[np.ix_(places, places)] = to_host(normal.G)
    larger.B[places] = to_host(normal.B)
    larger.targets, larger.weight = normal.targets, normal.weight
    larger.shift = np.zeros(m)
    larger.shift[places] = normal.shift
    return larger


def draw_sample(
    X: Any,
    y: np.ndarray,
    weights: np.ndarray | None,
    stream: np.ndarray,
    keys: np.ndarray,
    metric: str,
    **options: Any,
) -> Sample:
    """The sample of a radius search from the distinct rows `stream` of X, within the memory budget.

    `weights` and `keys` are those of the stream's rows.
    """
    labels = y[stream]
    held = held_out(keys, labels, weights, VALIDATION)
    # Half the budget for the distances; those with the smallest keys, in the order of the stream.
    S = int(math.sqrt(get_config()["memory"] * 2**20 / 2 / 4))

    def part(mask: np.ndarray, size: int) -> np.ndarray:
        members = np.flatnonzero(mask)
        return np.sort(members[np.argsort(keys[members], kind="stable")[:size]])

    training = part(~held, S)
    # Where no class has two distinct samples, training accuracy is all there is.
    validation = part(held, S // 4) if held.any() else training
    C = X[stream[training]]
    w = np.ones(len(stream)) if weights is None else weights
    return Sample(
        distances(C, C, metric, **options),
        distances(X[stream[validation]], C, metric, **options),
        labels[training],
        labels[validation],
        w[training],
        w[validation],
    )


@staged("hidden layer", "distances")
def distances(X: Any, C: Any, metric: str, **options: Any) -> np.ndarray:
    """The distances (N, m) that the unit takes, float32."""
    inside = "manhattan" if metric == "manhattan" else "euclidean"
    D = HiddenLayer(C, Activation(inside, squared), dtype=np.float32, **options).outputs(X)
    D = D.astype(np.float32, copy=False)  # a forced precision decides otherwise
    return D if metric == "sqeuclidean" else np.sqrt(D, out=D)


def tune(
    sample: Sample,
    n_samples: int,
    *,
    n_classes: int,
    kind: str,
    kernel: str,
    overlap: float,
    solver: str,
    max_centers: int | None,
    radius: float | None,
    eval_radius: float | str | None,
    **training: Any,
) -> list[Trial]:
    """Search the radii that are open on the sample, see :func:`gpurbf.network.radius.search`."""
    S = len(sample.y)
    limits = center_limits(n_samples, n_classes, max_centers)
    T, T_valid = one_hot(sample.y, n_classes), one_hot(sample.y_valid, n_classes)
    rows, valid_rows = np.arange(S), np.arange(len(sample.y_valid))
    w = sample.weights_valid / sample.weights_valid.sum()

    def result(layer: KnownLayer, W: np.ndarray, epoch: int) -> tuple[float, float, int]:
        if np.abs(W).max() > 1e18:  # LMS is about to overflow
            return 0.0, 1.0, epoch
        scores = layer.outputs(valid_rows) @ W.astype(np.float32)
        predicted = scores[:, 0] > 0 if scores.shape[1] == 1 else scores.argmax(axis=1)
        size = w @ np.square(scores, dtype=np.float64).sum(axis=1)
        fit = w @ (scores * T_valid).sum(axis=1)
        loss = 1 - fit**2 / (size * (w @ np.square(T_valid).sum(axis=1))) if size > 0 else 1.0
        return float(w @ (predicted == sample.y_valid)), float(loss), epoch

    def evaluate(centers: np.ndarray, r: float) -> tuple[float, float, int]:
        layer = KnownLayer(sample.D, centers, kernel, r)
        valid = KnownLayer(sample.D_valid, centers, kernel, r)
        epochs: list[tuple[float, float, int]] = []

        def after_epoch(epoch: int, W: np.ndarray) -> bool:
            epochs.append(result(valid, W, epoch))
            return False

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                W = train(
                    solver, layer, rows, T, sample.weights, T[centers], rows,
                    after_epoch=after_epoch, **training,
                )  # fmt: skip
        except ValueError:  # LMS overflowed: a radius that does not go with the learning rate
            return 0.0, 1.0, 1
        return max(epochs, key=lambda r: (r[0], -r[1])) if epochs else result(valid, W, 1)

    return search(
        lambda r: select(sample, kind, kernel, r, overlap, MARGIN, max_centers or S),
        lambda centers: extrapolate(centers, S, n_samples),
        evaluate,
        start=typical_distance(sample.D),
        limits=limits,
        radius=radius,
        eval_radius=eval_radius,
    )


def radius_for_ratio(
    X: Any, y: np.ndarray, stream: np.ndarray, new: Callable[[float], Selection], D: np.ndarray
) -> float:
    """A radius that makes 1 to 10 % of the stream centers: the rule of the authors' code.

    ``new(radius)`` gives an empty selection, D are some distances.
    """

    def count(radius: float) -> int:
        selection = new(radius)
        selection.feed(X, y, stream)
        return len(selection)

    # Well inside the rule's limits, so that a few more samples do not leave them.
    low, high = 0.02 * len(stream), max(0.05 * len(stream), len(np.unique(y)))
    return find_radius(count, min(low, high), high, typical_distance(D))


@staged("back and evaluate", "nearest centers")
def nearest_centers(X: Any, C: np.ndarray, metric: str, **options: Any) -> np.ndarray:
    """The index of the nearest center of each row of X (N, n), the lowest of equally near ones."""
    nearest = np.empty(X.shape[0], np.int64)
    for start in range(0, X.shape[0], _ROWS):
        rows = slice(start, start + _ROWS)
        nearest[rows] = distances(X[rows], C, metric, **options).argmin(axis=1)
    return nearest
