"""Radii of FSVC's units: one that makes so many samples centers, one of the data's own size."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

__all__ = ["find_radius", "typical_distance"]

_TRIALS, _PLATEAU = 60, 5  # radii tried at most, and without change


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
