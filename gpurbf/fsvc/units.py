"""FSVC's hidden unit: triangular or gaussian of a distance, as published."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from gpurbf.layer.activation import Activation

METRICS = ("euclidean", "manhattan", "sqeuclidean")
KERNELS = ("gaussian", "triangular")
# k of max(0, 1 - d / (k r)): the triangle with the area of the gaussian of that radius.
WIDTH = math.sqrt(2 * math.pi)
# float32 holds the squares of distances that such squares 2 r² are compared with.
_LEAST_SQUARE, _MOST_SQUARE = 1e-31, 1e36


class Unit(NamedTuple):
    """phi(d(x, c)) of a radius; with "sqeuclidean" d is the squared distance (SFSVC, 2018)."""

    kernel: str
    metric: str
    radius: float

    def of_distance(self, d: Any, out: Any = None) -> Any:
        """phi(d) for an array of distances, written to `out` if given, which may be d itself."""
        if self.kernel == "gaussian":
            square = 2 * float(self.radius) * float(self.radius)
            if d.dtype == np.float32 and not _LEAST_SQUARE < square < _MOST_SQUARE:
                H = self.of_distance(d.astype(np.float64)).astype(np.float32)
                if out is None:
                    return H
                out[...] = H
                return out
            # Of infinity the exponential is 0; NaN of two of them is found in the outputs.
            with np.errstate(over="ignore", invalid="ignore"):
                H = np.multiply(d, d, out=out)
                H = np.divide(H, -square, out=H)
                return np.exp(H, out=H)
        H = np.divide(d, WIDTH * float(self.radius), out=out)
        H = np.subtract(1, H, out=H)
        return np.maximum(0, H, out=H)

    @property
    def gamma(self) -> float:
        """The unit as exp(-gamma d²) or max(0, 1 - gamma d)."""
        r = self.radius
        return 1 / (2 * r * r) if self.kernel == "gaussian" else 1 / (WIDTH * r)

    def activation(self) -> Activation:
        """The unit as the hidden layer takes it."""
        if self.metric == "sqeuclidean":
            return Activation("euclidean", self.of_distance)
        return Activation(self.metric, self.kernel, self.gamma)


def direct_distance(x: np.ndarray, C: np.ndarray, metric: str) -> np.ndarray:
    """The distances of one sample (n,) to centers (m, n) from differences in float64."""
    D = np.subtract(C, x, dtype=np.float64)
    if metric == "manhattan":
        return np.abs(D, out=D).sum(axis=1)
    squares = np.square(D, out=D).sum(axis=1)
    return np.sqrt(squares) if metric == "euclidean" else squares
