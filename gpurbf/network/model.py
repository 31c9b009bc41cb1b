"""Composition: centers, hidden layer and output solver put together for the estimators."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import scipy.optimize
from scipy.special import expit, log_softmax

from gpurbf._stages import staged
from gpurbf._warnings import quiet
from gpurbf.backends.arrays import library
from gpurbf.backends.hashes import row_hashes
from gpurbf.backends.profiles import positive_definite
from gpurbf.network.centers import CENTERS, most_centers
from gpurbf.network.gamma import resolve_gamma
from gpurbf.network.hidden import Activation, HiddenLayer
from gpurbf.network.magnitude import with_room
from gpurbf.network.samples import shared_lattices

__all__ = [
    "center_finder",
    "choose_layer",
    "fit_temperature",
    "one_hot",
    "own_centers",
    "probabilities",
]

# Samples that are looked for among the centers at a time.
_ROWS = 8192


@staged("prepare", "centers chosen")
def choose_layer(
    X: Any,
    y: np.ndarray | None,
    weights: np.ndarray | None,
    *,
    n_centers: int | str,
    centers: Any,
    kernel: Any,
    metric: str,
    gamma: float | str,
    backend: str,
    precision: str,
    random_state: Any,
) -> tuple[HiddenLayer, np.ndarray | None]:
    """The hidden layer for training data, and the row indices of its centers if they are samples.

    Parameters are RBFLayer's; ``y`` are class numbers, ``weights`` positive, ``random_state`` a
    RandomState.

    Raises
    ------
    FloatingPointError
        If the samples are so large or small that float64 does not hold their squares.
    """
    kernel = "gaussian" if isinstance(kernel, str) and kernel == "rbf" else kernel
    number = resolve_gamma(
        gamma, X, metric=metric, profile=kernel, weights=weights, random_state=random_state
    )
    if not 0 < number < np.inf:
        raise FloatingPointError(f"gamma={gamma!r}")
    activation = Activation(metric, kernel, number)
    indices = None
    if isinstance(centers, str):
        # A name asks for no certain number: where there are fewer distinct samples, nobody is told.
        with quiet() if isinstance(n_centers, str) else nullcontext():
            C = CENTERS[centers](
                X,
                y,
                most_centers(n_centers, X.shape[0]),
                weights=weights,
                random_state=random_state,
                layer=HiddenLayer,
                activation=activation,
                backend=backend,
                precision=precision,
            )
        if C.ndim == 1:
            indices, C = C, X[C]
        elif X.dtype == np.float32:
            C = C.astype(np.float32, copy=False)
    else:
        C = centers
    C = with_room(C)
    lattices = shared_lattices(C, X, precision)
    layer = HiddenLayer(C, activation, backend=backend, precision=precision, lattices=lattices)
    return layer, indices


@staged("prepare", "centers chosen")
def own_centers(X: Any, layer: HiddenLayer) -> np.ndarray | None:
    """The center that each sample is, (N,), if all are some and the kernel is positive definite.

    None elsewhere. Rows are compared by a hash of their values, as where centers are drawn.
    """
    if not positive_definite(layer.activation):
        return None
    find = center_finder(layer.compact)
    places = np.empty(X.shape[0], np.intp)
    for start in range(0, len(places), _ROWS):
        found = places[start : start + _ROWS] = find(X[start : start + _ROWS])
        if (found < 0).any():
            return None
    return places


def center_finder(C: Any) -> Callable[[Any], np.ndarray]:
    """What finds the center (a row of C, dense or CSR) that each row of X is, -1 for none."""
    hashes = row_hashes(C, 0)
    order = np.argsort(hashes, kind="stable")

    def find(X: Any) -> np.ndarray:
        rows = row_hashes(X, 0)
        found = order[np.searchsorted(hashes, rows, sorter=order).clip(max=len(order) - 1)]
        return np.where(hashes[found] == rows, found, -1)

    return find


@staged("prepare", "targets")
def one_hot(y: np.ndarray, n_classes: int) -> np.ndarray:
    """Targets T (N, k) of class numbers y: 0/1 columns, or one column of -1/1 for two classes."""
    if n_classes == 2:
        return np.where(y == 1, 1.0, -1.0)[:, None]
    return np.eye(n_classes)[y]


def probabilities(scores: np.ndarray, temperature: float) -> np.ndarray:
    """Softmax of scores (N, k) over the temperature; the logistic function for one column."""
    scaled = scores.astype(np.float64) / temperature
    xp = library(scores)
    if scores.shape[1] == 1:
        positive = expit(scaled) if xp is np else 1 / (1 + xp.exp(-scaled))
        return xp.concatenate([1 - positive, positive], axis=1)
    powers = xp.exp(scaled - scaled.max(axis=1)[:, None])
    return powers / powers.sum(axis=1)[:, None]


@staged("back and evaluate", "temperature")
def fit_temperature(scores: np.ndarray, y: np.ndarray, weights: np.ndarray | None) -> float:
    """The temperature that minimises the log-loss of scores (N, k) for class numbers y.

    Temperature scaling of Guo et al., "On calibration of modern neural networks", 2017: one number,
    so the order of the classes stays.
    """
    logits = scores.astype(np.float64)
    if logits.shape[1] == 1:
        # Two classes with scores -s/2 and s/2: their softmax is the logistic function of s.
        logits = np.hstack([-logits / 2, logits / 2])
    rows = np.arange(len(y))

    def loss(log_temperature: float) -> float:
        log_p = log_softmax(logits * np.exp(-log_temperature), axis=1)[rows, y]
        return -float(np.average(log_p, weights=weights))

    best = scipy.optimize.minimize_scalar(loss, bounds=(-7.0, 4.0), method="bounded")
    return float(np.exp(best.x))
