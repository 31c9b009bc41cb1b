"""Center rules: which points become the centers of the hidden layer.

A rule is a function ``rule(X, y, n_centers, *, weights, random_state, **context)`` that returns
row indices (samples taken as they are) or an (m, n) array of new points. ``X`` is dense or CSR,
``y`` are class numbers 0..k-1 or None, ``weights`` are positive (samples of weight 0 are gone) or
None. ``context`` holds what some rules use: ``layer``, a constructor of hidden layers, and
``activation``, ``backend`` and ``precision`` for it. Add a rule by putting it into ``CENTERS``.

The number of centers to ask a rule for may be given by a name, see ``COUNTS``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpurbf.centers.fsvc import fsvc, fsvc_class
from gpurbf.centers.kmeans import kmeans, kmeans_class
from gpurbf.centers.sample import random, stratified
from gpurbf.data.hashes import finder, row_hashes
from gpurbf.layer.activation import positive_definite
from gpurbf.layer.layer import HiddenLayer
from gpurbf.runtime.stages import stage

__all__ = ["CENTERS", "COUNTS", "center_finder", "most_centers", "own_centers"]

# Samples that are looked for first: where centers are only some of the samples, these show it, and
# a file of samples is not read once more.
_FIRST_ROWS = 8192

CENTERS: dict[str, Callable[..., Any]] = {
    "random": random,
    "stratified": stratified,
    "kmeans": kmeans,
    "kmeans-class": kmeans_class,
    "fsvc": fsvc,
    "fsvc-class": fsvc_class,
}

# Maximum number of centers that each name for n_centers means, given the number of samples.
COUNTS: dict[str, Callable[[int], int]] = {
    "auto": lambda n_samples: min(1000, n_samples),
    "all": lambda n_samples: n_samples,
}


def most_centers(n_centers: int | str, n_samples: int) -> int:
    """Resolve the number of centers to ask a rule for.

    Parameters
    ----------
    n_centers : int or str
        The number, or a name of ``COUNTS``.
    n_samples : int

    Returns
    -------
    number : int
    """
    return COUNTS[n_centers](n_samples) if isinstance(n_centers, str) else int(n_centers)


@stage("prepare", "centers chosen")
def own_centers(X: Any, layer: HiddenLayer) -> np.ndarray | None:
    """The number of the center equal to each sample, (N,); None if a sample has none.

    Also None if the kernel is not positive definite. Rows are compared by a hash of their values,
    as in the draw of centers.
    """
    if not positive_definite(layer.activation):
        return None
    find = center_finder(layer)
    places = find(X[:_FIRST_ROWS])
    if len(places) < X.shape[0] and (places >= 0).all():
        places = find(X)
    return None if (places < 0).any() else places


def center_finder(layer: HiddenLayer) -> Callable[[Any], np.ndarray]:
    """Make a function that finds the center equal to each row, dense or CSR; -1 for none."""
    find = finder(row_hashes(layer.sparse_centers, 0))
    return lambda X: find(row_hashes(X, 0))
