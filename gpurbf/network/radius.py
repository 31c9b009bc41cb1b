"""The search for FSVC's radius: distances once on a sample of the data, radii many.

The 2007 paper tried radii on a grid, then around the best one, on its test set. Here the grid spans
the radii that make 1 to 10 % of the samples centers, and a part of the training data that chose no
center and trained no output decides.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gpurbf._stages import count, stage, staged
from gpurbf.backends.loops_fsvc import pass_over
from gpurbf.network.centers.fsvc import WIDTH, find_radius

__all__ = [
    "KnownLayer",
    "Sample",
    "Trial",
    "best",
    "center_limits",
    "extrapolate",
    "search",
    "select",
]

_COARSE, _FINE = 9, 2
# Evaluation radii: the selection radius and multiples of the typical distance between samples,
# the middle one with every radius, all of them with the best.
_FACTORS = (0.7, 0.5, 0.35, 0.25, 0.18)
# Few samples may need more than 10 % of them, but no more than half of them or so many centers.
_FEW = 1000


class Sample(NamedTuple):
    """Distances from S training and V validation samples to the training ones, labels, weights."""

    D: np.ndarray
    D_valid: np.ndarray
    y: np.ndarray
    y_valid: np.ndarray
    weights: np.ndarray
    weights_valid: np.ndarray


class Trial(NamedTuple):
    """One radius tried: its centers in the sample and those to expect in all data, its results.

    ``score`` is the accuracy on the validation samples, ``loss`` what is left of their targets'
    squares by the outputs times the best number (0 to 1), ``n_iter`` the LMS epochs that were best.
    """

    radius: float
    eval_radius: float
    n_centers: int
    expected_centers: float
    score: float
    loss: float
    n_iter: int


class KnownLayer:
    """A hidden layer over known distances: samples are row numbers of D, centers columns."""

    def __init__(self, D: np.ndarray, columns: np.ndarray, kernel: str, radius: float) -> None:
        self.D = D
        self.centers = columns
        self.kernel = kernel
        self.radius = radius
        self.dtype = np.dtype(np.float32)

    @staged("hidden layer", "known distances")
    def outputs(self, rows: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
        """H of some rows."""
        H = self.D[np.ix_(rows, self.centers)]
        if self.kernel == "gaussian":
            H *= H
            H *= np.float32(-0.5 / self.radius**2)
            np.exp(H, out=H)
        else:
            H *= np.float32(-1 / (WIDTH * self.radius))
            H += 1
            np.maximum(H, 0, out=H)
        if out is None:
            return H
        out[:] = H
        return out

    def normal(
        self,
        rows: np.ndarray,
        T: np.ndarray,
        weights: np.ndarray,
        mean: np.ndarray,
        out: tuple[np.ndarray, np.ndarray],
        grid: None = None,
    ) -> None:
        """Add HᵀH and HᵀT of weighted rows, H less its mean, to the two arrays."""
        root = np.sqrt(weights, dtype=np.float32)[:, None]
        H = self.outputs(rows)
        H -= mean.astype(np.float32)
        H *= root
        with stage("output training", "HᵀH"):
            out[0][...] += H.T @ H
            out[1][...] += H.T @ (T * root).astype(np.float32)
            count(operations=H.size * (H.shape[1] + 1 + 2 * T.shape[1]), kind="float32")
            count(nbytes=H.nbytes + 2 * out[0].nbytes)


def center_limits(n_samples: int, n_classes: int, max_centers: int | None) -> tuple[float, float]:
    """The least and the most centers that a search aims at: 1 to 10 % of the samples.

    Small data may have more, half of the samples up to 1,000.
    """
    high = max(0.1 * n_samples, min(0.5 * n_samples, _FEW), 1.0)
    if max_centers is not None:
        high = min(high, max_centers)
    return min(max(0.01 * n_samples, n_classes), high), high


def select(
    sample: Sample, kind: str, kernel: str, radius: float, overlap: float, margin: float, room: int
) -> np.ndarray:
    """The centers that the pass takes from the sample, as row numbers."""
    A = np.zeros((len(sample.y), sample.y.max() + 1))
    taken = np.zeros(len(sample.y), bool)
    pass_over(
        sample.D,
        sample.y,
        kernel == "gaussian",
        radius,
        WIDTH * radius,
        overlap,
        margin if kind == "error" else math.inf,
        kind == "per-class",
        room,
        A,
        taken,
    )
    return np.flatnonzero(taken)


def extrapolate(centers: np.ndarray, n_sample: int, n_samples: int) -> float:
    """Centers to expect of all samples: growth per doubling goes on to fall as in the sample."""
    m = len(centers)
    half = max(int((centers < n_sample / 2).sum()), 1)
    quarter = max(int((centers < n_sample / 4).sum()), 1)
    growth, before = math.log2(m / half), math.log2(half / quarter)
    # The root: half way between a growth that stays and one that falls so fast (measured on MNIST).
    fall = math.sqrt(min(max(growth / before, 0.25), 1.0)) if before > 0 else 1.0
    doublings = math.log2(n_samples / n_sample)
    terms = doublings if fall == 1.0 else fall * (1 - fall**doublings) / (1 - fall)
    return m * 2.0 ** (growth * terms)


def search(
    choose: Callable[[float], np.ndarray],
    expect: Callable[[np.ndarray], float],
    evaluate: Callable[[np.ndarray, float], tuple[float, float, int]],
    *,
    start: float,
    limits: tuple[float, float],
    radius: float | None,
    eval_radius: float | str | None,
) -> list[Trial]:
    """Try a grid of radii, then some around the best; returns the trials in order.

    Parameters
    ----------
    choose : callable
        ``choose(radius)`` gives the centers in the sample.
    expect : callable
        ``expect(centers)`` gives the number of centers in all data that those in the sample mean.
    evaluate : callable
        ``evaluate(centers, eval_radius)`` gives the last three fields of :class:`Trial`.
    start : float
        A radius of the size of the distances.
    limits : pair of float
        Least and most centers in all data, which the grid spans.
    radius : float or None
        Given: only evaluation radii are tried.
    eval_radius : float, "auto" or None
        None: the radius itself.
    """
    trials: dict[tuple[float, float], Trial] = {}

    def attempt(r: float, candidates: tuple[float, ...]) -> None:
        centers = choose(r)
        m = expect(centers)
        if radius is None and trials and m > 1.1 * limits[1]:
            return
        for e in candidates if eval_radius == "auto" else (float(eval_radius or r),):
            if (r, e) not in trials:
                trials[r, e] = Trial(r, e, len(centers), m, *evaluate(centers, e))

    step = 1.0
    if radius is None:
        low, high = limits
        small = find_radius(lambda r: expect(choose(r)), 0.9 * high, high, start)
        large: float = max(small, find_radius(lambda r: expect(choose(r)), low, 1.2 * low, start))
        step = (large / small) ** (1 / (_COARSE - 1))
        for i in range(_COARSE):
            r = large / step**i
            attempt(r, (r, 0.5 * start))
        radius_ = best(list(trials.values())).radius
    else:
        radius_ = radius
    attempt(radius_, (radius_, 0.5 * radius_, *(f * start for f in _FACTORS)))
    offsets = [i / (_FINE + 1) for i in range(-_FINE, _FINE + 1)]
    top = best(list(trials.values()))
    for r in dict.fromkeys(top.radius * step**i for i in offsets):
        attempt(r, (r if top.eval_radius == top.radius else top.eval_radius,))
    top = best(list(trials.values()))
    attempt(top.radius, tuple(top.eval_radius * 1.4**i for i in offsets))
    return list(trials.values())


def best(trials: list[Trial]) -> Trial:
    """The most accurate trial; of equal ones, which few samples make common, the least loss."""
    return max(trials, key=lambda trial: (trial.score, -trial.loss))
