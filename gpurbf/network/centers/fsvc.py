"""FSVC's centers: one pass over the samples that keeps each one no earlier center covers.

R. Dogaru and I. Dogaru, RBF-M and FSVC, 2007 to 2017. The first sample is a center; each next x
becomes one if ``sum_c phi(d(x, c)) < overlap`` over the centers so far. The pass looks sequential,
but activity only grows, so a block of samples is decided at once:

    activity of the block over all centers  ─►  rows below `overlap`: the candidates
    activations among the candidates        ─►  walk over them in order, adding a center's
                                                row to the candidates after it

The products run in tiles, with the accuracy of the backend; a row that comes too near to a
threshold for that accuracy is decided by a direct float64 sum. So the centers are those of the
sequential pass for every backend, tile, block and number of threads.
"""

from __future__ import annotations

import copy
import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp

from gpurbf._warnings import warn
from gpurbf.backends import Activation
from gpurbf.backends.loops_fsvc import walk
from gpurbf.network.centers.sample import row_hashes
from gpurbf.network.order import drawn_order, without_repeats

__all__ = [
    "KERNELS",
    "METRICS",
    "Pass",
    "direct",
    "find_radius",
    "fsvc",
    "fsvc_class",
    "squared",
    "typical_distance",
    "unit",
]

METRICS = ("euclidean", "manhattan", "sqeuclidean")
KERNELS = ("gaussian", "triangular")
# k of max(0, 1 - d / (k r)): the triangle with the area of the gaussian of that radius.
WIDTH = math.sqrt(2 * math.pi)

_CHUNK = 1024  # centers that share a hidden layer, made ready once
_FIRST, _LONGEST = 512, 16384  # samples in a block
_TRIALS, _PLATEAU = 60, 5  # radii tried at most, and without change
_CANDIDATES = 1024  # wanted in a block: their mutual activations cost the square of it


def unit(kernel: str, metric: str, radius: float) -> Activation:
    """The hidden unit of that radius: triangular or gaussian of a distance, as published.

    With "sqeuclidean" the squared distance stands where the distance is meant (SFSVC, 2018).
    """
    if metric == "sqeuclidean":
        profiles = {"triangular": _triangular_of_square, "gaussian": _gaussian_of_square}
        return Activation("euclidean", functools.partial(profiles[kernel], radius))
    gamma = 1 / (2 * radius**2) if kernel == "gaussian" else 1 / (WIDTH * radius)
    return Activation(metric, kernel, gamma)


def squared(squares: np.ndarray) -> np.ndarray:
    """The profile that leaves d² as it is, for layers that are asked for distances."""
    return squares


def _triangular_of_square(radius: float, squared: np.ndarray) -> np.ndarray:
    return np.maximum(0, 1 - squared / (WIDTH * radius))


def _gaussian_of_square(radius: float, squared: np.ndarray) -> np.ndarray:
    return np.exp(-(squared * squared) / (2 * radius * radius))


def direct_distance(x: np.ndarray, C: np.ndarray, metric: str) -> np.ndarray:
    """The distances of one sample (n,) to centers (m, n) from differences in float64."""
    D = np.subtract(C, x, dtype=np.float64)
    if metric == "manhattan":
        return np.abs(D).sum(axis=1)
    squares = np.square(D).sum(axis=1)
    return np.sqrt(squares) if metric == "euclidean" else squares


def direct(x: np.ndarray, C: np.ndarray, kernel: str, metric: str, radius: float) -> np.ndarray:
    """Activations of one sample (n,) at centers (m, n) from differences in float64."""
    d = direct_distance(x, C, metric)
    if kernel == "triangular":
        return np.maximum(0, 1 - d / (WIDTH * radius))
    return np.exp(-(d * d) / (2 * radius * radius))


class Pass:
    """One pass over a stream of samples, in chunks of any size; it holds the centers so far.

    Parameters
    ----------
    layer : callable
        ``layer(C, activation)`` gives what has ``outputs(X)`` and ``scores(X, W)``, in float64.
    kernel, metric, radius
        The hidden unit, see :func:`unit`.
    overlap : float
        Activity below which a sample is novel.
    n_classes : int, default=1
        More than 1: activity is kept by class, for `margin`.
    margin : float, default=inf
        A novel sample becomes a center if the activity of its class leads that of the best other
        class by less than this share of the whole; infinity: always.
    max_centers : int, optional
        The pass takes no more than so many.

    Attributes
    ----------
    centers : ndarray of shape (m, n)
        In the dtype of the samples.
    labels : list of int
        Their class numbers.
    indices : list of int
        Where the centers were in the stream, see `feed`.
    """

    def __init__(
        self,
        layer: Callable[[np.ndarray, Activation], Any],
        kernel: str,
        metric: str,
        radius: float,
        overlap: float,
        *,
        n_classes: int = 1,
        margin: float = math.inf,
        max_centers: int | None = None,
    ) -> None:
        self.unit = (kernel, metric, radius)
        self.layer = layer
        self.overlap = overlap
        self.n_classes = n_classes
        self.margin = margin
        self.max_centers = max_centers
        self.indices: list[int] = []
        self.labels: list[int] = []
        self._columns: list[int] = []
        self._parts: list[np.ndarray] = []
        self._layers: list[tuple[Any, np.ndarray]] = []
        self._in_layers = 0
        self._range: tuple[np.ndarray, np.ndarray] | None = None

    @property
    def centers(self) -> np.ndarray:
        """The centers so far, in the dtype of the samples."""
        if len(self._parts) > 1:
            self._parts = [np.concatenate(self._parts)]
        return self._parts[0]

    @property
    def full(self) -> bool:
        """Whether no more centers may be taken."""
        return self.max_centers is not None and len(self.indices) >= self.max_centers

    def copy(self) -> Pass:
        """A pass that goes on from here and leaves this one as it is."""
        other = copy.copy(self)
        for name in ("indices", "labels", "_columns", "_parts", "_layers"):
            setattr(other, name, list(getattr(self, name)))
        return other

    def release(self) -> None:
        """Drop the layers, which are made anew when the stream goes on."""
        self._layers, self._in_layers = [], 0

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_layers": [], "_in_layers": 0}

    def feed(
        self,
        X: Any,
        y: np.ndarray | None = None,
        order: np.ndarray | None = None,
        places: np.ndarray | None = None,
    ) -> None:
        """Take the next samples of the stream: rows of X in `order`.

        y (N,) are class numbers; `places` (N,) are what `indices` calls the rows, by default their
        numbers.
        """
        y = np.zeros(X.shape[0], np.int64) if y is None else y
        places = np.arange(X.shape[0]) if places is None else places
        order = np.arange(X.shape[0]) if order is None else order
        start, length = 0, _FIRST
        while start < len(order) and not self.full:
            rows = order[start : start + length]
            block = X[rows].toarray() if sp.issparse(X) else X[rows]
            n_candidates = self._decide(block, y[rows], places[rows])
            start += len(rows)
            length = int(np.clip(_CANDIDATES * len(rows) / (n_candidates + 1), _FIRST, _LONGEST))

    def _decide(self, block: np.ndarray, labels: np.ndarray, places: np.ndarray) -> int:
        """Add the centers of one block; returns how many candidates it had."""
        doubt = self._doubt(block)
        A = self._activity(block, doubt)
        candidates = np.flatnonzero(A.sum(axis=1) < self.overlap + doubt)
        if not len(candidates):
            return 0
        rows, A, labels = block[candidates], A[candidates], labels[candidates]
        columns = labels if self.n_classes > 1 else np.zeros_like(labels)
        K = self.layer(rows, unit(*self.unit)).outputs(rows)
        taken, certain = np.zeros((2, len(rows)), bool)
        room = len(rows) if self.max_centers is None else self.max_centers - len(self.indices)
        position = 0
        while position < len(rows):
            position, room = walk(
                position, A, K, columns, certain, self.overlap, self.margin, doubt, room, taken
            )
            if position < len(rows):
                A[position] = self._direct(rows, columns, taken, position)
                certain[position] = True
        self._columns.extend(columns[taken].tolist())
        self.labels.extend(labels[taken].tolist())
        self.indices.extend(places[candidates][taken].tolist())
        self._parts.append(rows[taken])
        return len(candidates)

    def _activity(self, block: np.ndarray, doubt: float) -> np.ndarray:
        """Activity (b, k) over the centers before the block; rows once covered leave early."""
        A = np.zeros((len(block), self.n_classes))
        open_ = np.arange(len(block))
        for layer, W in self._current_layers():
            A[open_] += layer.scores(block[open_], W)
            open_ = open_[A[open_].sum(axis=1) < self.overlap + doubt]
        return A

    def _current_layers(self) -> list[tuple[Any, np.ndarray]]:
        """Layers over all centers so far: full chunks are kept, the rest is made anew."""
        m = len(self.indices)
        while m - self._in_layers >= _CHUNK:
            self._layers.append(self._make_layer(self._in_layers, self._in_layers + _CHUNK))
            self._in_layers += _CHUNK
        return self._layers + (
            [self._make_layer(self._in_layers, m)] if m > self._in_layers else []
        )

    def _make_layer(self, begin: int, end: int) -> tuple[Any, np.ndarray]:
        """The layer of some centers, and the weights that sum its outputs by class."""
        W = np.zeros((end - begin, self.n_classes))
        W[np.arange(end - begin), self._columns[begin:end]] = 1
        return self.layer(self.centers[begin:end], unit(*self.unit)), W

    def _direct(
        self, rows: np.ndarray, columns: np.ndarray, taken: np.ndarray, position: int
    ) -> np.ndarray:
        """Activity by class of one candidate, in the order of the sequential pass."""
        earlier = taken[:position]
        C, where = rows[:position][earlier], columns[:position][earlier]
        if self._parts:
            C, where = np.concatenate([self.centers, C]), np.concatenate([self._columns, where])
        values = direct(rows[position], C, *self.unit)
        return np.bincount(where.astype(np.int64), values, minlength=self.n_classes)

    def _doubt(self, block: np.ndarray) -> float:
        """How far an activity near a threshold may be from the direct sum.

        Distances by matrix product err by the rounding of |x|² at the spread of the data; the
        triangular unit has a root, which makes an error of e at a center itself one of sqrt(e).
        """
        low, high = block.min(axis=0), block.max(axis=0)
        if self._range is not None:
            low, high = np.minimum(low, self._range[0]), np.maximum(high, self._range[1])
        self._range = low, high
        kernel, metric, radius = self.unit
        spread = np.square(np.subtract(high, low, dtype=np.float64)).sum()
        error = 4 * (len(low) + 8) * np.finfo(np.float64).eps * spread
        relative = error / (radius if metric == "sqeuclidean" else radius**2)
        if metric == "manhattan":
            relative = 0.0
        elif metric == "euclidean" and kernel == "triangular":
            relative = math.sqrt(relative)
        return (1 + self.overlap) * (1e-9 + relative)


def find_radius(count: Callable[[float], float], low: float, high: float, start: float) -> float:
    """A radius for which ``low <= count(radius) <= high``, if there is one, else one that is near.

    The number of centers falls with the radius, nearly as a power of it: the bracket is narrowed by
    secants in logarithms, kept off its ends.
    """
    small, large = 0.0, math.inf  # radii with too many and too few centers
    at_small = at_large = 0.0
    radius, target, same = start, math.log(math.sqrt(low * high)), 0
    for _ in range(_TRIALS):
        m = count(radius)
        if low <= m <= high:
            return radius
        if m > high:
            small, at_small = radius, math.log(m)
        else:
            # Smaller radii that change nothing will not: all distinct samples are centers.
            same = same + 1 if math.log(m) == at_large else 0
            large, at_large = radius, math.log(m)
        if same == _PLATEAU or (small and large / small < 1 + 1e-9):
            break
        if small == 0.0 or large == math.inf:
            radius *= 2.0 if small else 0.5
        else:
            place = (at_small - target) / (at_small - at_large)
            radius = small * (large / small) ** min(max(place, 0.1), 0.9)
    return large if large < math.inf else radius


def typical_distance(D: np.ndarray) -> float:
    """The median of some distances between different samples; 1 if there are none."""
    some = D[:200, :200]
    return float(np.median(some[some > 0])) if (some > 0).any() else 1.0


def fsvc(X: Any, y: Any, n_centers: int, **context: Any) -> np.ndarray:
    """The centers of a pass over all samples, its radius found so that there are n_centers."""
    return _by_count(X, y, n_centers, np.zeros(X.shape[0], np.int64), **context)


def fsvc_class(X: Any, y: Any, n_centers: int, **context: Any) -> np.ndarray:
    """The centers of a pass over each class, with one radius, so that there are n_centers."""
    if y is None:
        raise ValueError(
            "centers='fsvc-class' makes a pass over each class: pass y, or use 'fsvc'."
        )
    return _by_count(X, y, n_centers, y, **context)


def _by_count(
    X: Any,
    y: Any,
    n_centers: int,
    groups: np.ndarray,
    *,
    random_state: Any,
    activation: Activation,
    layer: Callable[..., Any],
    backend: str,
    precision: str,
    **context: Any,
) -> np.ndarray:
    """Passes over groups of samples; the first n_centers that were taken, as row numbers."""
    keys = row_hashes(X, random_state.randint(np.iinfo(np.int32).max))
    labels = groups if y is None else y
    stream = without_repeats(drawn_order(keys, labels), keys, labels)
    if n_centers >= len(stream):
        if n_centers > len(stream):
            warn(
                f"n_centers={n_centers} is more than the {len(stream)} distinct samples: all of "
                "them are taken as centers. Lower n_centers to choose among them."
            )
        return np.sort(stream)
    exact = functools.partial(
        layer,
        backend=backend,
        precision="auto" if precision in ("float32", "tf32") else precision,
        dtype=np.float64,
    )
    kernel = activation.profile if activation.profile in KERNELS else "gaussian"
    most = int(1.05 * n_centers) + 2
    found: dict[float, np.ndarray] = {}

    def count(radius: float) -> float:
        taken = []
        for group in np.unique(groups):
            members = stream[groups[stream] == group]
            one = Pass(exact, kernel, activation.metric, radius, 1.0, max_centers=most + 1)
            one.feed(X, order=members)
            taken += one.indices
        found[radius] = np.array(taken)
        return len(taken)

    some = X[stream[:200]]
    some = some.toarray() if sp.issparse(some) else some
    D = np.array([direct_distance(x, some, activation.metric) for x in some])
    radius = find_radius(count, n_centers, most, typical_distance(D))
    place = np.empty(X.shape[0], np.int64)
    place[stream] = np.arange(len(stream))
    first = np.argsort(place[found[radius]])[:n_centers]
    return np.sort(found[radius][first])
