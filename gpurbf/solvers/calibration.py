"""Probabilities from outputs: a softmax whose temperature minimises the log-loss."""

from __future__ import annotations

import numpy as np
import scipy.optimize
from scipy.special import expit

from gpurbf.runtime.arrays import library
from gpurbf.runtime.stages import stage


def probabilities(scores: np.ndarray, temperature: float) -> np.ndarray:
    """Softmax of scores over the temperature; the logistic function for one column.

    Parameters
    ----------
    scores : ndarray of shape (N, k), or a device's
        One column for two classes.
    temperature : float

    Returns
    -------
    p : array of shape (N, n_classes), float64
        In the array library of the scores.
    """
    p, xp = scores.astype(np.float64), library(scores)
    p /= temperature
    if scores.shape[1] == 1:
        positive = expit(p) if xp is np else 1 / (1 + xp.exp(-p))
        return xp.concatenate([1 - positive, positive], axis=1)
    # In place: the array may take half of the memory.
    p -= p.max(axis=1)[:, None]
    xp.exp(p, out=p)
    p /= p.sum(axis=1)[:, None]
    return p


@stage("back and evaluate", "temperature")
def fit_temperature(scores: np.ndarray, y: np.ndarray, weights: np.ndarray | None) -> float:
    """Find the temperature that minimises the log-loss of scores.

    Temperature scaling of Guo et al., "On calibration of modern neural networks", 2017: one number,
    so the order of the classes does not change.

    Parameters
    ----------
    scores : ndarray of shape (N, k)
        One column for two classes.
    y : int array of shape (N,)
        Class numbers.
    weights : ndarray of shape (N,) or None

    Returns
    -------
    temperature : float
        Between exp(-7) and exp(4).
    """
    logits = scores.astype(np.float64)
    if logits.shape[1] == 1:
        # Two classes with scores -s/2 and s/2: their softmax is the logistic function of s.
        logits = np.hstack([-logits / 2, logits / 2])
    rows, tops = np.arange(len(y)), logits.max(axis=1, keepdims=True)

    def loss(log_temperature: float) -> float:
        factor = np.exp(-log_temperature)
        z = logits * factor - tops * factor
        log_p = z[rows, y] - np.log(np.exp(z).sum(axis=1))
        return -float(np.average(log_p, weights=weights))

    best = scipy.optimize.minimize_scalar(loss, bounds=(-7.0, 4.0), method="bounded")
    return float(np.exp(best.x))
