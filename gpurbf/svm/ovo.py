"""One-vs-one: outputs of class pairs from their support vectors, votes, scores of classes."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import scipy.sparse as sp

from gpurbf.data.quantize import Quantization
from gpurbf.data.samples import FORCED, Samples, quantize_or_keep
from gpurbf.layer.activation import Activation
from gpurbf.layer.backends.numba.matvec import GroupedWeights, row_products
from gpurbf.layer.layer import HiddenLayer, OutputWeights
from gpurbf.layer.sparse import SparseLayer, far_inputs
from gpurbf.runtime.arrays import beside
from gpurbf.runtime.stages import stage
from gpurbf.svm.rounding import arithmetic
from gpurbf.svm.train import group_samples

# Up to this many pairs, those of three classes, each class is in most of them.
_MAX_DENSE_PAIRS = 3
# To look for copies among fewer support vectors would be 3 % of a small fit (iris: 20 of 600 µs).
_MANY = 512


def support_layer(
    V: Any,
    W: GroupedWeights,
    activation: Activation,
    *,
    backend: Any,
    precision: str,
    quantizations: tuple[Quantization, ...] | None,
    tol: float,
) -> tuple[HiddenLayer | SparseLayer, OutputWeights]:
    """The hidden layer whose centers are the support vectors, and W in the form for its scores.

    On a CPU each class is summed for its own pairs alone, in float64. If all classes are summed in
    float32, support vectors are taken from the classes in turn. In a pair, all weights of one class
    have the same sign: their sum, and its rounding error, would grow to hundreds before the other
    class reduces it.

    A linear kernel needs only one center per pair, the weighted sum of its support vectors. This is
    not done with 8-bit codes: their products are so fast that it would gain little.

    Equal support vectors of a class are one center. Where features have few values, most may be
    copies; and copies' kernel values have the same error, which would not average out.

    Parameters
    ----------
    V : ndarray or CSR of shape (n_SV, n)
        The support vectors.
    W : GroupedWeights of shape (n_SV, n_pairs)
        Their weights, one class after the other, see :func:`pair_weights`.
    activation, backend, precision, quantizations
        See :class:`HiddenLayer`.
    tol : float
        Tolerance of the training; the rounding of predictions stays below it.

    Returns
    -------
    layer : HiddenLayer or SparseLayer
    weights : OutputWeights
    """
    samples, W = _without_copies(quantize_or_keep(V, precision, quantizations), W)
    if sp.issparse(samples.values):
        few = W.shape[1] <= _MAX_DENSE_PAIRS
        shift = far_inputs(samples.values) if activation.metric == "euclidean" else None
        return SparseLayer(samples, activation, shift), OutputWeights(W.dense() if few else W)
    if activation.linear and samples.quantization is None and W.shape[1] < W.shape[0]:
        dtype = np.float32 if precision in ("float32", "tf32") else np.float64
        sums = row_products(samples.values.T, W.dense()).T.astype(dtype, order="C")
        samples = Samples(sums, None, np.dtype(dtype))
        layer = HiddenLayer(samples, activation, backend=backend, precision=precision, dtype=dtype)
        return layer, OutputWeights(np.eye(len(sums)))
    dtype = np.float64 if precision == "float64" else np.float32
    if precision not in FORCED:
        dtype = arithmetic(samples, activation, backend, functools.partial(_sizes, W), tol)
    weights: np.ndarray | GroupedWeights = W
    if backend[0].xp is not np or W.shape[1] <= _MAX_DENSE_PAIRS:
        weights = W.dense()
        if dtype == np.float32:
            # Without a step in the training there are no support vectors.
            places = (np.arange(len(own)) / len(own) for _, own, _ in W.groups)
            order = np.argsort(np.concatenate([[], *places]), kind="stable")
            samples, weights = samples[order], weights[order]
    layer = HiddenLayer(samples, activation, backend=backend, precision=precision, dtype=dtype)
    return layer, OutputWeights(weights)


def _without_copies(V: Samples, W: GroupedWeights) -> tuple[Samples, GroupedWeights]:
    """Keep one of equal support vectors of a class, with the sum of their weights."""
    if len(V) < _MANY:
        return V, W
    labels = np.repeat(np.arange(len(W.groups)), [len(own) for _, own, _ in W.groups])
    found = group_samples(V.values, labels, None)
    if len(found.first) == len(labels):
        return V, W
    groups = []
    for c, (first, own, columns) in enumerate(W.groups):
        starts = found.starts[found.class_starts[c] : found.class_starts[c + 1]]
        members = found.members[first : first + len(own)] - first
        sums = np.add.reduceat(own[members], starts - first)
        groups.append((int(found.class_starts[c]), sums, columns))
    return V[found.first], GroupedWeights(groups, W.shape[1])


def _sizes(W: GroupedWeights) -> tuple[float, float]:
    """The largest norm of an output's weights, and the largest weight."""
    largest = max((np.abs(own).max(initial=0.0) for _, own, _ in W.groups), default=0.0)
    return float(W.norms().max(initial=0.0)), float(largest)


@stage("prepare", "pair weights")
def pair_weights(dual_coef: np.ndarray, n_support: np.ndarray) -> GroupedWeights:
    """Weights (n_SV, n_pairs), by class, from LIBSVM's layout (n_classes - 1, n_SV)."""
    n_classes, stops = len(n_support), np.cumsum(n_support)
    groups = [
        # Each row of the layout belongs to one of the other classes.
        (int(stop - n), dual_coef[:, stop - n : stop].T.copy(), own)
        for own, n, stop in zip(pairs_by_class(n_classes), n_support, stops)
        if n
    ]
    return GroupedWeights(groups, n_classes * (n_classes - 1) // 2)


@functools.lru_cache(1)
def pairs_by_class(n_classes: int) -> np.ndarray:
    """Numbers of the pairs of each class (n_classes, n_classes - 1), ordered by the other class."""
    pair = np.zeros((n_classes, n_classes), np.intp)
    first, second = np.triu_indices(n_classes, 1)
    pair[first, second] = pair[second, first] = np.arange(len(first))
    return pair[~np.eye(n_classes, dtype=bool)].reshape(n_classes, n_classes - 1)


def votes(by_first: Any, n_classes: int) -> Any:
    """Number of pairs (N, n_classes) won; by_first: whether the first class wins its pair."""
    pairs = beside(by_first, pairs_by_class(n_classes))
    # Class c is the second class of its first c pairs.
    is_second = np.arange(n_classes - 1) < np.arange(n_classes)[:, None]
    return (by_first[:, pairs] != beside(by_first, is_second)).sum(axis=2)


def class_scores(decisions: np.ndarray, n_classes: int) -> np.ndarray:
    """Votes plus the summed outputs squeezed into (-1/3, 1/3), as scikit-learn breaks ties.

    An output of exactly 0 is a vote for the first class of its pair here, as in scikit-learn's
    ``decision_function``, though not in its (LIBSVM's) ``predict``.
    """
    sums, own = np.zeros((len(decisions), n_classes)), pairs_by_class(n_classes)
    # The first class of a pair gains what the second one loses, pair after pair.
    signs = np.where(np.arange(n_classes - 1) < np.arange(n_classes)[:, None], -1.0, 1.0)
    for j in range(n_classes - 1):
        sums += signs[:, j] * decisions[:, own[:, j]]
    return votes(~(decisions < 0), n_classes) + sums / (3 * (np.abs(sums) + 1))
