"""Output weights without training: every center votes for its own class."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from gpurbf.runtime.memory import check_result
from gpurbf.runtime.stages import stage

# Rows whose targets are in memory at a time, where they need not all be.
TARGET_ROWS = 8192


class OneHot(BaseEstimator):
    """The targets of the centers are the weights: FSVC's "no tuning"."""

    needs = "center targets"
    n_epochs = 0

    def train(
        self, layer: Any, X: Any, T: Any, weights: Any, *, start: np.ndarray, **context: Any
    ) -> np.ndarray:
        """Return the weights at the start.

        Parameters
        ----------
        layer, X, T, weights, **context
            Not used.
        start : ndarray of shape (m, k)
            Targets of the centers.

        Returns
        -------
        W : ndarray of shape (m, k)
            `start` itself.
        """
        return start


@stage("prepare", "targets")
def one_hot(y: np.ndarray, n_classes: int) -> np.ndarray:
    """Make targets of classes: 0/1 columns, or one column of -1/1 for two classes.

    Parameters
    ----------
    y : int array of shape (N,)
        Class numbers.
    n_classes : int

    Returns
    -------
    T : ndarray of shape (N, n_classes) or (N, 1), float64
    """
    if n_classes == 2:
        return np.where(y == 1, 1.0, -1.0)[:, None]
    cure = "take RBFClassifier with solver='ridge', which makes them block by block"
    check_result((len(y), n_classes), np.dtype(np.float64), "targets", cure)
    T = np.zeros((len(y), n_classes))
    T[np.arange(len(y)), y] = 1
    return T


def mean_targets(
    y: np.ndarray, n_classes: int, keys: np.ndarray | None, weights: np.ndarray | None
) -> np.ndarray:
    """Targets as `one_hot` makes them; equal samples of several classes have their weighted mean.

    A rule that learns sample by sample would answer with the class that comes last. Samples with
    the same of ``keys`` (N,) are equal; None: all count as different.
    """
    T = one_hot(y, n_classes)
    if keys is None:
        return T
    _, first, sample = np.unique(keys, return_index=True, return_inverse=True)
    mixed = np.flatnonzero(np.isin(sample, sample[y != y[first[sample]]]))
    _, sample = np.unique(sample[mixed], return_inverse=True)
    w = np.ones(len(mixed)) if weights is None else weights[mixed]
    sums = np.zeros((sample.max(initial=-1) + 1, T.shape[1]))
    np.add.at(sums, sample, w[:, None] * T[mixed])
    mass = np.bincount(sample, w)[sample, None]
    T[mixed] = np.divide(sums[sample], mass, out=np.zeros((len(mixed), T.shape[1])), where=mass > 0)
    return T


def votes(labels: np.ndarray, n_classes: int, factors: np.ndarray | None) -> np.ndarray:
    """Output weights (m, k) before training: centers vote for their classes.

    The largest vote is 1; ``factors`` are those of the classes, None: all 1.
    """
    W = one_hot(labels, n_classes)
    return W if factors is None else W * (factors / factors.max())[labels, None]


def winning_class(outputs: Any) -> Any:
    """The number of the class with the largest output (N, k), the first of equal ones.

    If there is one output for two classes, the second wins above 0; see `one_hot`.
    """
    return outputs[:, 0] > 0 if outputs.shape[1] == 1 else outputs.argmax(axis=1)
