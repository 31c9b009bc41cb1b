"""FSVC's pass and hidden layer for any radius, from distances computed once on some samples."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from sklearn.utils import gen_batches

from gpurbf.data.samples import holds_squares
from gpurbf.fsvc.selection import MARGIN, Order, Rule
from gpurbf.fsvc.units import Unit
from gpurbf.layer import Layer
from gpurbf.layer.activation import Activation
from gpurbf.layer.layer import HiddenLayer
from gpurbf.runtime.config import working_bytes
from gpurbf.runtime.errors import OutOfRange
from gpurbf.runtime.lazy import lazy_module
from gpurbf.runtime.stages import count, stage
from gpurbf.runtime.threads import single_threaded_blas

activation_kernels = lazy_module("gpurbf.layer.backends.numba.activation_kernels")
kernels = lazy_module("gpurbf.fsvc._kernels")

# Square of the largest distance, in terms of that between near samples, above which float32 may
# lose a hundredth of the latter or more; of Manhattan distances not the square.
_FAR = 1e5
# Fraction of each class that is held out to compare radii.
_VALIDATION_SHARE = 0.2
_ROWS_PER_BLOCK = 1024


class Sample(NamedTuple):
    """Distances from S training and V validation samples to the training ones, labels, weights.

    ``keys`` are those of the training samples, the same of equal ones.
    """

    D: np.ndarray
    D_valid: np.ndarray
    y: np.ndarray
    y_valid: np.ndarray
    weights: np.ndarray | None
    weights_valid: np.ndarray
    keys: np.ndarray


def draw_sample(X: Any, y: np.ndarray, order: Order, metric: str, **options: Any) -> Sample:
    """Draw the sample of a radius search from the distinct rows of X, by the memory budget."""
    stream, keys = order.stream, order.keys[order.stream]
    # The scale of weights decides nothing. A first batch may have only classes of weight 0.
    labels, most = y[stream], order.weights.max()
    w = order.weights / most if most else np.ones(len(stream))
    held = held_out(keys, labels, w)
    # D takes half the budget, in float64 all of it, and D_valid a quarter as much. Samples with the
    # smallest keys are taken, in stream order.
    S = max(20, int(math.sqrt(working_bytes() / 2 / 4)))  # 20 however little it is

    def part(mask: np.ndarray, size: int) -> np.ndarray:
        members = np.flatnonzero(mask)
        return np.sort(members[np.argsort(keys[members], kind="stable")[:size]])

    training = part(~held, S)
    # Where no class has two distinct samples, training accuracy is all there is.
    validation = part(held, S // 4) if held.any() else training
    C = X[stream[training]]
    D, dtype = distances(C, C, metric, **options), None
    wide = C.dtype == np.float64  # a model of float32 samples has the rounding of float32 itself
    if wide and _are_too_coarse(D, 2 if metric == "euclidean" else 1):
        del D  # two would be beyond the budget
        dtype = np.float64
        D = distances(C, C, metric, dtype, **options)
    D_valid = distances(X[stream[validation]], C, metric, dtype, **options)
    known = None if (w == 1).all() else w[training]
    y_parts = labels[training], labels[validation]
    return Sample(D, D_valid, *y_parts, known, w[validation], keys[training])


def held_out(keys: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """A mask of about a fifth of each class's weight; equal samples stay together.

    A sample that is in several classes is held out of all, as one of its heaviest class: its copies
    in others would be wrong answers about it. Of each such class one sample at least is not in the
    mask.
    """
    _, sample = np.unique(keys, return_inverse=True)
    n_classes = int(y.max(initial=0)) + 1
    pairs, pair = np.unique(sample * n_classes + y, return_inverse=True)
    owner, label = np.divmod(pairs, n_classes)
    mass = np.bincount(pair, weights)
    heaviest = np.lexsort((np.float32(mass), owner))  # as `order_of` compares
    last = np.append(np.diff(owner) != 0, True)[: len(owner)]
    labels, totals = label[heaviest[last]], np.bincount(owner, mass)
    mask = np.zeros(len(totals), bool)
    for c in np.unique(labels):
        members = np.flatnonzero(labels == c)
        total = totals[members]
        mask[members] = np.cumsum(total) - total / 2 < _VALIDATION_SHARE * total.sum()
        mask[members[-1]] = False
    return mask[sample]


def _are_too_coarse(D: np.ndarray, power: int) -> bool:
    """Whether distances D between samples are in float32, which a few far samples make too coarse.

    ``power`` is that of D that gives what rounding errors are a part of.
    """
    near, far = float(np.quantile(D[:200, :200], 0.1)), float(D.max())
    return D.dtype == np.float32 and far**power > _FAR * near**power


@stage("hidden layer", "distances")
@single_threaded_blas()
def distances(X: Any, C: Any, metric: str, dtype: Any = None, **options: Any) -> np.ndarray:
    """The distances (N, m) that the unit takes; by default float32 if that holds their squares.

    BLAS has one thread, as in `gpurbf.fsvc.search.tune`, which compares radii by these distances.
    """
    inside = "manhattan" if metric == "manhattan" else "euclidean"
    dtype = dtype or (np.float32 if holds_squares(np.float32, X, C) else np.float64)
    D = HiddenLayer(C, Activation(inside, _squared), dtype=dtype, **options).activations(X)
    D = D.astype(dtype, copy=False)  # a forced precision may give another dtype
    if not np.isfinite(D.max()):
        raise OutOfRange("squared distances")
    return D if metric == "sqeuclidean" else np.sqrt(D, out=D)


def _squared(squares: np.ndarray) -> np.ndarray:
    """The profile that leaves d² as it is, for layers that are asked for distances."""
    return squares


@stage("back and evaluate", "nearest centers")
def nearest_centers(X: Any, C: np.ndarray, metric: str, **options: Any) -> np.ndarray:
    """The index of the nearest center of each row of X (N, n), the lowest of equally near ones.

    The farther a row is, the less its distances differ: float32 would not tell them apart.
    """
    nearest = np.empty(X.shape[0], np.int64)
    for rows in gen_batches(X.shape[0], _ROWS_PER_BLOCK):
        nearest[rows] = distances(X[rows], C, metric, np.float64, **options).argmin(axis=1)
    return nearest


def select(sample: Sample, rule: Rule, unit: Unit) -> np.ndarray:
    """The centers that the pass takes from the sample, as row numbers."""
    # Only "pass" looks at the activity of all centers alike.
    A = np.zeros((1 if rule.kind == "pass" else sample.y.max() + 1, len(sample.y)))
    taken = np.zeros(len(sample.y), bool)
    profile = activation_kernels.profile_address(unit.kernel, np.dtype(np.float64))
    margin, apart = MARGIN if rule.kind == "error" else math.inf, rule.kind == "per-class"
    profiled = profile, float(unit.gamma), unit.kernel == "gaussian"
    S, shares = len(taken), rule.shares()
    room = np.array([S if most is None else min(most, S) for most in shares])
    limits = rule.overlap, margin, apart, room
    kernels.pass_over(sample.D, sample.y, profiled, *limits, A, taken, np.empty(len(taken)))
    return np.flatnonzero(taken)


# From this many columns of targets (one per class) on, products skip the zeros of targets.
_MANY_TARGETS = 100


class KnownLayer(Layer):
    """A hidden layer over known distances: samples are row numbers of D, centers column numbers."""

    def __init__(self, D: np.ndarray, columns: np.ndarray, unit: Unit) -> None:
        self.D, self.unit, self.dtype = D, unit, D.dtype
        self.centers = columns  # row numbers, as samples are

    def in_float64(self) -> KnownLayer:
        """Return the layer over the same distances, in float64."""
        return KnownLayer(self.D.astype(np.float64), self.centers, self.unit)

    @stage("hidden layer", "known distances")
    def activations(self, X: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """H of some rows."""
        D = self.D[np.ix_(X, self.centers)]
        return self.unit.of_distance(D, out=D if out is None else out)

    def matvec(self, X: np.ndarray, W: np.ndarray) -> np.ndarray:
        """H @ W."""
        return self.activations(X) @ W.astype(self.dtype)

    def gram(
        self,
        X: np.ndarray,
        T: np.ndarray,
        weights: np.ndarray | None,
        mean: np.ndarray,
        out: tuple[np.ndarray, np.ndarray],
        grid: Any = None,
    ) -> None:
        """Add HᵀH and HᵀT of weighted rows, for H minus its mean, to the two arrays."""
        (G, B), m = out, len(self.centers)
        H = self.activations(X)
        H -= mean.astype(self.dtype)
        if weights is not None:
            root = np.sqrt(weights, dtype=self.dtype)[:, None]
            H *= root
            T = T * root
        with stage("output training", "HᵀH"):
            G += H.T @ H
            if T.shape[1] < _MANY_TARGETS:
                products = T.size
                B += H.T @ T.astype(self.dtype)
            else:
                nonzero = sp.csr_array(T)
                products = nonzero.nnz
                B += (nonzero.T @ H).T
            count(operations=H.size * (m + 1) + 2 * products * m, kind="float32")
            count(nbytes=H.nbytes + 2 * 8 * m * m)
