"""FSVC's centers: one pass over the samples that keeps each sample that is novel.

R. Dogaru and I. Dogaru, RBF-M and FSVC, 2007 to 2017. The first sample is a center; each next x
becomes one if ``sum_c phi(d(x, c)) < overlap`` over the centers so far. The pass looks sequential,
but activity only grows, so a block of samples is decided at once:

    activity of the block over all centers  ─►  rows below `overlap`: the candidates
    activations among the candidates        ─►  walk over them in order, adding a center's
                                                row to the candidates after it

The products run in tiles, with the accuracy of the backend; a row that comes too near to a
threshold for that accuracy is decided by a direct float64 sum. So the centers are those of the
sequential pass for every backend, tile, block and number of threads.

The order of the samples is drawn from their values (`Order`). A shuffle by position would make the
model depend on the order of the file, and a repeated sample would come at another place than one
sample of weight 2. Sorted by a random hash of their values, samples come in random order, which is
the same however they were stored.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from gpurbf.data.quantize import Quantization
from gpurbf.data.samples import Samples, quantize_or_keep
from gpurbf.fsvc.units import Unit, direct_distance
from gpurbf.layer.activation import Activation
from gpurbf.layer.layer import HiddenLayer
from gpurbf.runtime.config import working_bytes
from gpurbf.runtime.errors import OutOfRange
from gpurbf.runtime.lazy import lazy_module
from gpurbf.runtime.stages import stage

kernels = lazy_module("gpurbf.fsvc._kernels")

SELECTIONS = ("pass", "per-class", "error")
# "error": a novel sample becomes a center if its class leads by less than this share of the
# activity.
MARGIN = 0.1

_CENTERS_PER_LAYER = 1024
_MIN_BLOCK_ROWS, _MAX_BLOCK_ROWS = 512, 16384
# Tiles flush activations below exp(-708.4) to 0, and the exponential is 0 below exp(-745.2): with
# 1.03 times the radius a tile gives 0 only where the exact activation is 0. Beyond _MAX_DOUBT
# distances are too inexact for that.
_WIDER, _MAX_DOUBT = 1.03, 0.01
# Candidates for which the centers that may reach them are found at a time.
_ROWS_AHEAD = 64
_CANDIDATES_PER_BLOCK = 1024  # target: the cost of their mutual activations is its square
# What a pass is pickled as, by the names of its attributes.
_PICKLED = ("overlap", "n_classes", "margin", "max_centers", "centers")


class Order(NamedTuple):
    """The order of the samples.

    ``rows`` (N,) is the order in which outputs are trained. ``stream`` are the rows that the pass
    sees, ``weights`` their weights. ``keys`` (N,) are the hashes by which a part of the
    samples is drawn.
    """

    rows: np.ndarray
    stream: np.ndarray
    weights: np.ndarray
    keys: np.ndarray


def order_of(keys: np.ndarray, weights: np.ndarray | None, y: np.ndarray, *, drawn: bool) -> Order:
    """All samples in their own order; or, if it is ``drawn``, in that of their keys.

    Then equal samples of a class (y) come once, with their total weight, the heaviest class first:
    the class of a center is that of its first sample.
    """
    weights = np.ones(len(keys)) if weights is None else weights
    if not drawn:
        rows = np.arange(len(keys))
        return Order(rows, rows, weights, keys)
    rows = np.lexsort((y, keys))
    new = (np.diff(keys[rows]) != 0) | (np.diff(y[rows]) != 0)
    first = np.flatnonzero(np.concatenate([[True], new])[: len(rows)])
    stream, mass = rows[first], np.add.reduceat(weights[rows], first)
    # In float32, so that the rounding of sums does not decide between equal ones.
    by_weight = np.lexsort((-np.float32(mass), keys[stream]))
    return Order(rows, stream[by_weight], mass[by_weight], keys)


def pass_precision(precision: str) -> str:
    """The precision of a pass: float64 or exact, whatever the user asks for."""
    return "auto" if precision in ("float32", "tf32") else precision


class Arithmetic(NamedTuple):
    """How a pass computes: in float64 or exactly, so that all backends choose the same centers.

    ``precision`` and ``quantizations`` are those of :class:`gpurbf.layer.layer.HiddenLayer`.
    """

    backend: str
    precision: str
    quantizations: tuple[Quantization, ...] | None

    def layer(self, C: Any, activation: Activation) -> HiddenLayer:
        """A hidden layer of centers C (m, n) or `Samples`."""
        return HiddenLayer(C, activation, dtype=np.float64, **self._asdict())

    def samples(self, block: np.ndarray) -> Samples:
        """A block of samples (b, n) as layers take them."""
        return quantize_or_keep(block, self.precision, self.quantizations)


class Rule(NamedTuple):
    """The rule by which samples become centers: parameters of FSVC, and the number of classes.

    ``kind`` is FSVC's `selection`. ``max_centers`` is the maximum number in all; with "per-class"
    each class gets an equal share.
    """

    kind: str
    overlap: float
    n_classes: int
    max_centers: int | None

    def shares(self) -> list[int | None]:
        """The maximum number of centers of each pass."""
        n = self.n_classes if self.kind == "per-class" else 1
        most = self.max_centers
        return [None if most is None else (most + n - 1 - c) // n for c in range(n)]


# A layer of some centers, and the weights that sum its outputs by class.
_SummedLayer = tuple[HiddenLayer, np.ndarray]


@dataclass(eq=False)
class Pass:
    """One pass over a stream of samples, in chunks of any size; it holds the centers so far.

    Its arrays are replaced, never changed, so that copies of a pass may share them.

    Parameters
    ----------
    arithmetic : Arithmetic
    unit : Unit
    overlap : float
        Activity below which a sample is novel.
    n_classes : int
        More than 1: activity is kept by class, for `margin`.
    margin : float
        A novel sample becomes a center if the activity of its class leads that of the best other
        class by less than this share of the whole activity; infinity: always.
    max_centers : int or None
        Maximum number of centers.

    Attributes
    ----------
    centers : ndarray of shape (m, n) or None
        In the dtype of the samples; None before the first ones.
    labels : int64 array of shape (m,)
        Their class numbers. A center adds to column ``label % n_classes`` of the activity: to its
        class's, or to the only one.
    indices : int64 array of shape (m,)
        Where the centers were in the stream, see `feed`.
    """

    arithmetic: Arithmetic
    unit: Unit
    overlap: float
    n_classes: int
    margin: float
    max_centers: int | None
    centers: Any = None
    labels: np.ndarray = field(default_factory=partial(np.empty, 0, np.int64))
    indices: np.ndarray = field(default_factory=partial(np.empty, 0, np.int64))
    _range: tuple[np.ndarray, np.ndarray] | None = None

    def take_columns(self, some: np.ndarray) -> None:
        """Leave out the other inputs, which are 0 for all centers and all samples of the feed."""
        if self.centers is not None:
            self.centers = self.centers[:, some]
        if self._range is not None:
            self._range = self._range[0][some], self._range[1][some]

    def spread_columns(self, some: np.ndarray, n: int) -> None:
        """Put the inputs back in their places among n, of which the others are 0."""
        centers = np.zeros((len(self.centers), n), self.centers.dtype)
        centers[:, some] = self.centers
        self.centers = centers
        if self._range is not None:
            low, high = np.zeros((2, n), self._range[0].dtype)
            low[some], high[some] = self._range
            self._range = low, high

    def feed(self, X: Any, y: np.ndarray, order: np.ndarray, places: np.ndarray) -> None:
        """Take the next samples of the stream.

        Parameters
        ----------
        X : ndarray or CSR of shape (N, n)
        y : int64 array of shape (N,)
            Class numbers.
        order : int array of shape (N',)
            The rows of X that come, in this order.
        places : int array of shape (N,)
            Numbers of the rows in `indices`.
        """
        if self.centers is None:
            self.centers = np.empty((0, X.shape[1]), X.dtype)
        layers: list[_SummedLayer] = []
        # Blocks, and their activities by class, are dense: of many inputs they have fewer rows.
        row_bytes = 8 * (X.shape[1] + self.n_classes)
        most = min(_MAX_BLOCK_ROWS, max(1, int(working_bytes() / 2 / row_bytes)))
        start, length = 0, min(_MIN_BLOCK_ROWS, most)
        while start < len(order) and len(self.indices) != self.max_centers:
            rows = order[start : start + length]
            block = X[rows].toarray() if sp.issparse(X) else X[rows]
            decided, n_candidates = self._decide(block, y[rows], places[rows], layers)
            start += decided
            wanted = _CANDIDATES_PER_BLOCK * decided / (n_candidates + 1)
            length = int(np.clip(wanted, _MIN_BLOCK_ROWS, most))

    def _decide(
        self, block: np.ndarray, labels: np.ndarray, places: np.ndarray, layers: list[_SummedLayer]
    ) -> tuple[int, int]:
        """Add the centers of a block, of its first rows only if it has too many candidates.

        Returns how many rows were decided, and how many candidates the block had.
        """
        doubt, samples = self._doubt(block), self.arithmetic.samples(block)
        A = self._activity(samples, doubt, layers)
        candidates = np.flatnonzero(A.sum(axis=1) < self.overlap + doubt)
        decided, n_candidates = len(block), len(candidates)
        if not n_candidates:
            return decided, 0
        # Their mutual activations fill at most a quarter of the budget.
        most = max(1, math.isqrt(working_bytes() // 4 // 8))
        if n_candidates > most:
            decided, candidates = int(candidates[most]), candidates[:most]
        rows, labels, samples = block[candidates], labels[candidates], samples[candidates]
        K = self.arithmetic.layer(samples, self.unit.activation()).activations(samples)
        taken = self._walk(A[candidates], K, rows, labels % self.n_classes, doubt)
        self.labels = np.append(self.labels, labels[taken])
        self.indices = np.append(self.indices, places[candidates][taken])
        self.centers = np.concatenate([self.centers, rows[taken]])
        return decided, n_candidates

    def _activity(self, block: Samples, doubt: float, layers: list[_SummedLayer]) -> np.ndarray:
        """Activity (b, k) over the centers before the block; covered rows are dropped early."""
        A = np.zeros((len(block), self.n_classes))
        open_ = np.arange(len(block))
        for layer, W in self._current_layers(layers):
            A[open_] += layer.matvec(block[open_], W)
            open_ = open_[A[open_].sum(axis=1) < self.overlap + doubt]
        return A

    def _current_layers(self, layers: list[_SummedLayer]) -> list[_SummedLayer]:
        """Layers over all centers so far: full ones are kept in `layers`, the rest is made anew."""
        m, current = len(self.indices), [*layers]
        for begin in range(len(layers) * _CENTERS_PER_LAYER, m, _CENTERS_PER_LAYER):
            some = slice(begin, begin + _CENTERS_PER_LAYER)
            columns = self.labels[some] % self.n_classes
            W = (columns[:, None] == np.arange(self.n_classes)).astype(np.float64)
            current.append((self.arithmetic.layer(self.centers[some], self.unit.activation()), W))
        layers[:] = current[: m // _CENTERS_PER_LAYER]
        return current

    def _walk(
        self, A: np.ndarray, K: np.ndarray, rows: np.ndarray, columns: np.ndarray, doubt: float
    ) -> np.ndarray:
        """Mark the candidates (rows) that become centers, in order, from their activities.

        ``A`` (b, k) are the activities over the centers before the block, ``K`` (b, b) the
        activations between candidates; see :func:`gpurbf.fsvc._kernels.walk`. A candidate in doubt
        is decided by the direct sum, in the order of the sequential pass.
        """
        taken, certain = np.zeros((2, len(rows)), bool)
        n_left = min(len(rows), (self.max_centers or math.inf) - len(self.indices))
        # An error of d² changes exp(-d² / 2r²) by the same relative amount at any distance.
        relative = (self.unit.kernel, self.unit.metric) == ("gaussian", "euclidean")
        rule = float(self.overlap), self.margin, doubt, relative
        position, m, layer = 0, len(self.indices), None
        near, first = np.empty((0, 0), bool), 0  # of rows from `first` on
        C = where = np.empty(0)  # all that may be centers, and their columns
        while True:
            position, n_left = kernels.walk(position, A, K, columns, certain, rule, n_left, taken)
            if position == len(rows):
                return taken
            if not len(C):
                C = np.concatenate([self.centers, rows])
                where = np.append(self.labels % self.n_classes, columns)
            some = np.append(np.ones(m, bool), taken)  # no later row is taken yet
            if doubt < _MAX_DOUBT and (layer or not A[position].any()):
                if position >= first + len(near):
                    layer, first = layer or self._wider_layer(C), position
                    part = self.arithmetic.samples(rows[first : first + _ROWS_AHEAD])
                    near = layer.activations(part) > 0
                some &= near[position - first]
            distances = direct_distance(rows[position], C[some], self.unit.metric)
            values = self.unit.of_distance(distances)
            A[position] = np.bincount(where[some], values, minlength=self.n_classes)
            certain[position] = True

    def _wider_layer(self, C: np.ndarray) -> HiddenLayer:
        """A layer of these centers, 0 only where the exact activation is 0.

        Tiles flush activations of the unit itself to 0 where the direct sum has subnormal numbers.
        """
        wider = self.unit._replace(radius=_WIDER * self.unit.radius).activation()
        return self.arithmetic.layer(self.arithmetic.samples(C), wider)

    def _doubt(self, block: np.ndarray) -> float:
        """Maximum difference of an activity near a threshold from the direct sum.

        The error of squared distances by matrix product is the rounding of |x|² at the spread of
        the data. The triangular unit takes a root, which turns an error e at a center itself into
        sqrt(e).
        """
        low, high = block.min(axis=0), block.max(axis=0)
        if self._range is not None:
            low, high = np.minimum(low, self._range[0]), np.maximum(high, self._range[1])
        self._range = low, high
        kernel, metric, radius = self.unit
        with np.errstate(over="ignore"):
            spread = np.square(np.subtract(high, low, dtype=np.float64)).sum()
        if not np.isfinite(spread):
            raise OutOfRange("squared distances")
        error = 4 * (len(low) + 8) * np.finfo(np.float64).eps * spread
        relative = error / (radius if metric == "sqeuclidean" else radius * radius)
        if metric == "manhattan":
            relative = 0.0
        elif metric == "euclidean" and kernel == "triangular":
            relative = math.sqrt(relative)
        return (1 + self.overlap) * (1e-9 + relative)


class Selection:
    """Centers chosen from a stream: by one pass, by one for each class, or by one that uses errors.

    Parameters
    ----------
    rule : Rule
    arithmetic, unit
        See :class:`Pass`.
    """

    def __init__(self, rule: Rule, arithmetic: Arithmetic, unit: Unit) -> None:
        kind, overlap, n_classes, _ = rule
        self.kind, self.unit = kind, unit
        looks_at = (n_classes, MARGIN) if kind == "error" else (1, math.inf)
        self.passes = [Pass(arithmetic, unit, overlap, *looks_at, most) for most in rule.shares()]

    def copy(self, arithmetic: Arithmetic | None = None) -> Selection:
        """A copy that can continue without changing this one, with another arithmetic if given."""
        other = copy.copy(self)
        other.passes = [
            replace(one, arithmetic=arithmetic or one.arithmetic) for one in self.passes
        ]
        return other

    @stage("prepare", "centers chosen")
    def feed(
        self, X: Any, y: np.ndarray, order: np.ndarray, places: np.ndarray | None = None
    ) -> np.ndarray:
        """Take the next samples: rows of X in `order`; y (N,) are the class numbers of all rows.

        `places` (N,) are the numbers of the rows in `indices`, by default their row numbers in X.
        Returns the new places of the earlier centers.
        """
        places = np.arange(X.shape[0]) if places is None else places
        before, n = [len(one.indices) for one in self.passes], X.shape[1]
        used = self._used_columns(X)
        if narrow := 2 * len(used) < n:
            X = X[:, used]
            for one in self.passes:
                one.take_columns(used)
        for c, one in enumerate(self.passes):
            one.feed(X, y, order[y[order] == c] if self.kind == "per-class" else order, places)
            if narrow:
                one.spread_columns(used, n)
        starts = np.cumsum([0] + [len(one.indices) for one in self.passes])
        return np.concatenate([start + np.arange(n) for start, n in zip(starts, before)])

    def _used_columns(self, X: Any) -> np.ndarray:
        """The columns of X that are not 0 in all samples and centers, if X is sparse, else all.

        The others add nothing to a distance, and blocks of samples and the centers are dense.
        """
        used = np.full(X.shape[1], not sp.issparse(X))
        if sp.issparse(X):
            used[X.indices] = used[:1] = True  # one column at least
            for one in self.passes:
                if one.centers is not None:
                    used |= one.centers.any(axis=0)
        return np.flatnonzero(used)

    def plain(self) -> dict[str, Any]:
        """The state to keep, as arrays, numbers and names; see `from_plain`."""
        passes = []
        for one in self.passes:
            own = {name: getattr(one, name) for name in _PICKLED}
            places = np.array([one.indices, one.labels])
            passes.append(own | {"places": places, "range": one._range})
        return {"kind": self.kind, "unit": tuple(self.unit), "passes": passes}

    @classmethod
    def from_plain(cls, kept: dict[str, Any], arithmetic: Arithmetic) -> Selection:
        """Restore the selection from the result of `plain`."""
        self = object.__new__(cls)
        self.kind, self.unit, self.passes = kept["kind"], Unit(*kept["unit"]), []
        for one in kept["passes"]:
            made = Pass(arithmetic, self.unit, **{name: one[name] for name in _PICKLED})
            made.indices, made.labels = one["places"][:2]  # 0.1.0 wrote a third row
            made._range = one["range"]
            self.passes.append(made)
        return self

    @property
    def centers(self) -> np.ndarray:
        """Centers (m, n); class after class with "per-class"."""
        parts = [one.centers for one in self.passes]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    @property
    def indices(self) -> np.ndarray:
        """Where the centers (m,) were in the stream."""
        return np.concatenate([one.indices for one in self.passes])

    @property
    def labels(self) -> np.ndarray:
        """Class numbers of the centers (m,)."""
        return np.concatenate([one.labels for one in self.passes])
