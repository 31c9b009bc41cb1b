"""Center rules: which points become the centers of the hidden layer.

A rule is a function ``rule(X, y, n_centers, *, weights, random_state, **context)`` that returns
row indices (samples taken as they are) or an (m, n) array of new points. ``X`` is dense or CSR,
``y`` are class numbers 0..k-1 or None, ``weights`` are positive (samples of weight 0 are gone) or
None. ``context`` holds what some rules use: ``layer``, a constructor of hidden layers, and
``activation``, ``backend`` and ``precision`` for it. Add a rule by putting it into ``CENTERS``.

How many centers a rule is asked for may have a name, see ``COUNTS``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpurbf.centers.fsvc import fsvc, fsvc_class
from gpurbf.centers.kmeans import kmeans, kmeans_class
from gpurbf.centers.sample import random, stratified

__all__ = ["CENTERS", "COUNTS", "most_centers"]


CENTERS: dict[str, Callable[..., Any]] = {
    "random": random,
    "stratified": stratified,
    "kmeans": kmeans,
    "kmeans-class": kmeans_class,
    "fsvc": fsvc,
    "fsvc-class": fsvc_class,
}

# What names for n_centers mean, given the number of samples: at the most so many.
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
    return COUNTS[n_centers](n_samples) if isinstance(n_centers, str) else n_centers
