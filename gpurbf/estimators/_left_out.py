"""Training samples that are left out one at a time: which, and what is said of their outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin

from gpurbf.centers.choose import center_finder
from gpurbf.centers.sample import Distinct, Race
from gpurbf.runtime.stages import staged
from gpurbf.solvers.calibration import fit_temperature, probabilities
from gpurbf.solvers.ridge.normal_equations import OwnCenters

# What another penalty may be better by, as a part of the error, for rows to be enough.
_TOLERANCE = 0.01


class LeftOut(NamedTuple):
    """Samples that are left out: a row of each, the weight of all its copies, its center or -1.

    ``roots`` are of the rows' own weights, with which these were summed; None without weights.
    """

    rows: np.ndarray
    weights: np.ndarray
    centers: np.ndarray
    roots: np.ndarray | None

    def own(self, some: slice) -> OwnCenters:
        """Which of some of these rows are centers."""
        return own_among(self.centers[some])

    def first(self, n: int) -> LeftOut:
        """The first n of them."""
        return LeftOut._make(None if own is None else own[:n] for own in self)


class Kept(NamedTuple):
    """Samples to be left out when others have come, too: all that will be asked of them.

    What the race found that chose them, of each its center or -1, and its activations H (N, m) as
    they were summed.
    """

    found: Distinct
    centers: np.ndarray
    H: Any

    def first(self, n: int) -> Kept:
        """The first n of them."""
        return Kept(self.found.at(slice(n)), self.centers[:n], self.H[:n])

    def merged(self, later: Kept, race: Race) -> Kept:
        """What the race would have kept of all samples: one that stays has been kept always."""
        n = len(self.centers)
        places = np.arange(n), np.arange(n, n + len(later.centers))
        parts = (kept.found._replace(first=own) for kept, own in zip((self, later), places))
        found = race.merged(*parts)
        centers, H = (np.concatenate(own)[found.first] for own in zip(self[1:], later[1:]))
        return Kept(found, centers, H)


def own_among(centers: np.ndarray) -> OwnCenters:
    """Which of some rows are centers, whose centers these are, or -1."""
    rows = np.flatnonzero(centers >= 0)
    return OwnCenters(rows, centers[rows])


@staged("prepare", "samples to leave out")
def choose_left_out(
    X: Any, codes: np.ndarray, weights: np.ndarray | None, C: np.ndarray, n_left_out: int | None
) -> LeftOut:
    """Some distinct samples, by their content: neither order nor repetition changes them."""
    found = Race(0, by_class=True).over(X, codes, weights)
    rows, totals = found.first[:n_left_out], found.mass[:n_left_out]
    roots = None if weights is None else np.sqrt(weights[rows])
    return LeftOut(rows, totals, center_finder(C)(X[rows]), roots)


def squared_errors(outputs: np.ndarray, T: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The negative mean squared error of each of the outputs (p, N, k) for targets T (N, k)."""
    return -np.average(np.square(outputs - T).mean(axis=2), axis=1, weights=weights)


def settled(outputs: np.ndarray, T: np.ndarray, weights: np.ndarray) -> bool:
    """Whether more rows than these would hardly choose another of the outputs (p, N, k).

    All are judged by the same rows, so what is noise is that of their differences from the best: no
    other may be better than it by more than a hundredth of its error even if its difference is two
    standard errors less than it was found.
    """
    errors = np.square(outputs - T).mean(axis=2)
    found = np.average(errors, axis=1, weights=weights)
    best = int(found.argmin())
    ahead, each = found - found[best], errors - errors[best]
    noise = np.sqrt(np.square(weights * (each - ahead[:, None])).sum(axis=1)) / weights.sum()
    return bool((2 * noise - ahead).max() <= _TOLERANCE * found[best])


class LeftOutOutputs(ClassifierMixin, BaseEstimator):
    """For scorers: a fitted classifier whose samples are outputs (N, k) already.

    ``codes`` (N,) are their class numbers, with which probabilities are calibrated.
    """

    def __init__(self, classes: np.ndarray, codes: np.ndarray, weights: np.ndarray) -> None:
        self.classes_, self.codes, self.weights = classes, codes, weights

    def scored(self, scorer: Callable[..., float], outputs: np.ndarray) -> float:
        """The scorer's value; it gets the weights where they differ."""
        equal = np.ptp(self.weights) == 0
        options = {} if equal else {"sample_weight": self.weights}
        score = float(scorer(self, outputs, self.classes_[self.codes], **options))
        if not np.isfinite(score):
            raise ValueError(f"{scorer} gives {score} for samples left out: use another scoring.")
        return score

    def decision_function(self, outputs: np.ndarray) -> np.ndarray:
        """One column for two classes, as classifiers have it."""
        return outputs[:, 0] if outputs.shape[1] == 1 else outputs

    def predict(self, outputs: np.ndarray) -> np.ndarray:
        """The class with the largest output."""
        binary = outputs.shape[1] == 1
        winners = outputs[:, 0] > 0 if binary else outputs.argmax(axis=1)
        return self.classes_[winners.astype(np.intp)]

    def predict_proba(self, outputs: np.ndarray) -> np.ndarray:
        """The softmax of the outputs over their best temperature."""
        return probabilities(outputs, fit_temperature(outputs, self.codes, self.weights))
