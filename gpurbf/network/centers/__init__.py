"""Center rules: which points become the centers of the hidden layer.

A rule is a function ``rule(X, y, n_centers, *, weights, random_state, **context)`` that returns
row indices (samples taken as they are) or an (m, n) array of new points. ``X`` is dense or CSR,
``y`` are class numbers 0..k-1 or None, ``weights`` are positive (samples of weight 0 are gone) or
None. ``context`` holds what some rules use: ``layer``, a constructor of hidden layers, and
``activation``, ``backend`` and ``precision`` for it. Add a rule by putting it into ``CENTERS``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpurbf.network.centers.fsvc import fsvc, fsvc_class
from gpurbf.network.centers.kmeans import kmeans, kmeans_class
from gpurbf.network.centers.sample import random, stratified

__all__ = ["CENTERS"]

CENTERS: dict[str, Callable[..., Any]] = {
    "random": random,
    "stratified": stratified,
    "kmeans": kmeans,
    "kmeans-class": kmeans_class,
    "fsvc": fsvc,
    "fsvc-class": fsvc_class,
}
