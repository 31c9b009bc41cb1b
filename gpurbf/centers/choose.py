"""The hidden layer of a model: its centers chosen, its width resolved."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np

from gpurbf.centers import CENTERS, most_centers
from gpurbf.data.hashes import finder, row_hashes
from gpurbf.data.samples import shared_quantizations, with_room
from gpurbf.layer.activation import Activation, positive_definite
from gpurbf.layer.gamma import resolve_gamma
from gpurbf.layer.layer import HiddenLayer
from gpurbf.runtime.errors import quiet
from gpurbf.runtime.stages import staged

# Samples that are looked for among the centers at a time.
_ROWS_PER_BLOCK = 8192


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
    quantizations = shared_quantizations(C, X, precision)
    layer = HiddenLayer(
        C, activation, backend=backend, precision=precision, quantizations=quantizations
    )
    return layer, indices


@staged("prepare", "centers chosen")
def own_centers(X: Any, layer: HiddenLayer) -> np.ndarray | None:
    """The center that each sample is, (N,), if all are some and the kernel is positive definite.

    None elsewhere. Rows are compared by a hash of their values, as where centers are drawn.
    """
    if not positive_definite(layer.activation):
        return None
    find = center_finder(layer.sparse_centers)
    places = np.empty(X.shape[0], np.intp)
    for start in range(0, len(places), _ROWS_PER_BLOCK):
        rows = slice(start, start + _ROWS_PER_BLOCK)
        places[rows] = find(X[rows])
        if (places[rows] < 0).any():
            return None
    return places


def center_finder(C: Any) -> Callable[[Any], np.ndarray]:
    """A function that finds the center (a row of C, dense or CSR) equal to a row, -1 for none."""
    find = finder(row_hashes(C, 0))
    return lambda X: find(row_hashes(X, 0))
