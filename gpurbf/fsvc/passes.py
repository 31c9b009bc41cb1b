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
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from gpurbf.data.samples import Samples, quantize_or_keep
from gpurbf.fsvc.units import Unit
from gpurbf.layer.activation import Activation
from gpurbf.layer.protocol import Layer
from gpurbf.runtime.lazy import lazy_module
from gpurbf.runtime.stages import staged

kernels = lazy_module("gpurbf.fsvc._kernels")


SELECTIONS = ("pass", "per-class", "error")
# "error": a novel sample whose class leads by less than this share of the activity is a center.
MARGIN = 0.1

_CHUNK = 1024  # centers that share a hidden layer, made ready once
_FIRST, _LONGEST = 512, 16384  # samples in a block
_CANDIDATES = 1024  # wanted in a block: their mutual activations cost the square of it


class Pass:
    """One pass over a stream of samples, in chunks of any size; it holds the centers so far.

    Parameters
    ----------
    layer : callable
        ``layer(C, activation)`` gives a hidden layer, in float64.
    unit : Unit
    overlap : float
        Activity below which a sample is novel.
    n_classes : int, default=1
        More than 1: activity is kept by class, for `margin`.
    margin : float, default=inf
        A novel sample becomes a center if the activity of its class leads that of the best other
        class by less than this share of the whole; infinity: always.
    max_centers : int, optional
        The pass takes no more than so many.
    look : callable, optional
        ``look(block)`` gives a block of samples as layers take them.

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
        layer: Callable[[Any, Activation], Layer],
        unit: Unit,
        overlap: float,
        *,
        n_classes: int = 1,
        margin: float = math.inf,
        max_centers: int | None = None,
        look: Callable[[np.ndarray], Samples] = quantize_or_keep,
    ) -> None:
        self.unit = unit
        self.layer, self.look = layer, look
        self.overlap = overlap
        self.n_classes = n_classes
        self.margin = margin
        self.max_centers = max_centers
        self.indices: list[int] = []
        self.labels: list[int] = []
        self._columns: list[int] = []
        self._parts: list[np.ndarray] = []
        self._layers: list[tuple[Layer, np.ndarray]] = []
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

    def copy(
        self,
        layer: Callable[[Any, Activation], Layer] | None = None,
        look: Callable[[np.ndarray], Samples] | None = None,
    ) -> Pass:
        """A pass that goes on from here, with other layers if given, and leaves this as it is."""
        other = copy.copy(self)
        other.layer, other.look = layer or self.layer, look or self.look
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
        doubt, samples = self._doubt(block), self.look(block)
        A = self._activity(samples, doubt)
        candidates = np.flatnonzero(A.sum(axis=1) < self.overlap + doubt)
        if not len(candidates):
            return 0
        rows, A, labels = block[candidates], A[candidates], labels[candidates]
        columns = labels if self.n_classes > 1 else np.zeros_like(labels)
        samples = samples[candidates]
        room = len(rows) if self.max_centers is None else self.max_centers - len(self.indices)
        rule = Rule(self.overlap, self.margin, doubt)
        layer = self.layer(samples, self.unit.activation())
        with layer.allocator():
            walk = Walk(A, layer.activations(samples), columns, rule, room)
            while (position := walk.go_on()) < len(rows):
                walk.settle(self._direct(rows, columns, walk.taken, position))
        taken = walk.taken
        self._columns.extend(columns[taken].tolist())
        self.labels.extend(labels[taken].tolist())
        self.indices.extend(places[candidates][taken].tolist())
        self._parts.append(rows[taken])
        return len(candidates)

    def _activity(self, block: Samples, doubt: float) -> np.ndarray:
        """Activity (b, k) over the centers before the block; rows once covered leave early."""
        A = np.zeros((len(block), self.n_classes))
        open_ = np.arange(len(block))
        for layer, W in self._current_layers():
            A[open_] += layer.matvec(block[open_], W)
            open_ = open_[A[open_].sum(axis=1) < self.overlap + doubt]
        return A

    def _current_layers(self) -> list[tuple[Layer, np.ndarray]]:
        """Layers over all centers so far: full chunks are kept, the rest is made anew."""
        m = len(self.indices)
        while m - self._in_layers >= _CHUNK:
            self._layers.append(self._make_layer(self._in_layers, self._in_layers + _CHUNK))
            self._in_layers += _CHUNK
        return self._layers + (
            [self._make_layer(self._in_layers, m)] if m > self._in_layers else []
        )

    def _make_layer(self, begin: int, end: int) -> tuple[Layer, np.ndarray]:
        """The layer of some centers, and the weights that sum its outputs by class."""
        W = np.zeros((end - begin, self.n_classes))
        W[np.arange(end - begin), self._columns[begin:end]] = 1
        return self.layer(self.centers[begin:end], self.unit.activation()), W

    def _direct(
        self, rows: np.ndarray, columns: np.ndarray, taken: np.ndarray, position: int
    ) -> np.ndarray:
        """Activity by class of one candidate, in the order of the sequential pass."""
        earlier = taken[:position]
        C, where = rows[:position][earlier], columns[:position][earlier]
        if self._parts:
            C, where = np.concatenate([self.centers, C]), np.concatenate([self._columns, where])
        values = self.unit.direct(rows[position], C)
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
        with np.errstate(over="ignore"):
            spread = np.square(np.subtract(high, low, dtype=np.float64)).sum()
        if not np.isfinite(spread):
            raise FloatingPointError("squared distances")
        error = 4 * (len(low) + 8) * np.finfo(np.float64).eps * spread
        relative = error / (radius if metric == "sqeuclidean" else radius * radius)
        if metric == "manhattan":
            relative = 0.0
        elif metric == "euclidean" and kernel == "triangular":
            relative = math.sqrt(relative)
        return (1 + self.overlap) * (1e-9 + relative)


class Selection:
    """Centers chosen from a stream: by one pass, by one for each class, or by one that sees errors.

    Parameters
    ----------
    kind : {"pass", "per-class", "error"}
    layer, unit, overlap, look
        See :class:`Pass`.
    n_classes : int
    max_centers : int or None
        In all; with "per-class" each class gets an equal share of it.
    """

    def __init__(
        self,
        kind: str,
        layer: Callable[[Any, Activation], Layer],
        unit: Unit,
        overlap: float,
        n_classes: int,
        max_centers: int | None = None,
        look: Callable[[np.ndarray], Samples] = quantize_or_keep,
    ) -> None:
        self.kind, self.unit = kind, unit
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
                unit,
                overlap,
                n_classes=by_class,
                margin=margin,
                max_centers=share,
                look=look,
            )
            for share in shares
        ]

    def copy(
        self,
        layer: Callable[[Any, Activation], Layer] | None = None,
        look: Callable[[np.ndarray], Samples] | None = None,
    ) -> Selection:
        """A selection that goes on from here, with other layers if given."""
        other = copy.copy(self)
        other.passes = [one.copy(layer, look) for one in self.passes]
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

    def plain(self) -> dict[str, Any]:
        """All that there is to keep, as arrays, numbers and names; see `from_plain`."""
        return {
            "kind": self.kind,
            "unit": tuple(self.unit),
            "passes": [
                {
                    "overlap": one.overlap,
                    "n_classes": one.n_classes,
                    "margin": one.margin,
                    "max_centers": one.max_centers,
                    "centers": one.centers if one.indices else None,
                    "places": np.array([one.indices, one.labels, one._columns], np.int64),
                    "range": one._range,
                }
                for one in self.passes
            ],
        }

    @classmethod
    def from_plain(
        cls, kept: dict[str, Any], layer: Callable[[Any, Activation], Layer], look: Any
    ) -> Selection:
        """The selection that `plain` tells of, with layers and samples made so."""
        self = object.__new__(cls)
        self.kind, self.unit, self.passes = kept["kind"], Unit(*kept["unit"]), []
        for one in kept["passes"]:
            made = Pass(
                layer,
                self.unit,
                one["overlap"],
                n_classes=one["n_classes"],
                margin=one["margin"],
                max_centers=one["max_centers"],
                look=look,
            )
            made.indices, made.labels, made._columns = one["places"].tolist()
            made._parts = [] if one["centers"] is None else [one["centers"]]
            made._range = one["range"]
            self.passes.append(made)
        return self

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


class Rule(NamedTuple):
    """Rule by which a candidate becomes a center, and its range of doubt; see `Walk`."""

    overlap: float
    margin: float
    doubt: float


class Walk:
    """The candidates of a block, decided in order; see :func:`gpurbf.fsvc._kernels.walk`.

    Parameters
    ----------
    A : float64 array of shape (b, k)
        Activity by class of center, updated in place.
    K : float64 array of shape (b, b)
        Activation between candidates.
    labels : int64 array of shape (b,)
        Column of A that a candidate adds to.
    rule : Rule
    room : int
        How many centers there may be.

    Attributes
    ----------
    taken : bool array of shape (b,)
        The candidates chosen so far.
    """

    def __init__(
        self, A: np.ndarray, K: np.ndarray, labels: np.ndarray, rule: Rule, room: int
    ) -> None:
        self.A, self.K, self.labels, self.rule = A, K, labels, rule
        self._at, self._room = 0, room
        self.taken, self._certain = np.zeros((2, len(A)), bool)

    def go_on(self) -> int:
        """Decide candidates; the number of the one in doubt, b at the end."""

        given = self.A, self.K, self.labels, self._certain, *self.rule
        self._at, self._room = kernels.walk(self._at, *given, self._room, self.taken)
        return self._at

    def settle(self, activities: np.ndarray) -> None:
        """The activity by class of the one in doubt, which is certain."""
        self.A[self._at], self._certain[self._at] = activities, True


def pass_over(*arguments: Any) -> None:
    """The sequential pass over known distances; see :func:`gpurbf.fsvc._kernels.pass_over`."""

    kernels.pass_over(*arguments)
