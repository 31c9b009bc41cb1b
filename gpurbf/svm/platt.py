"""Probabilities of SVC, as LIBSVM has them: a sigmoid for each pair of classes, then coupling.

Lin, Lin and Weng, "A note on Platt's probabilistic outputs for support vector machines", 2007. Wu,
Lin and Weng, "Probability estimates for multi-class classification by pairwise coupling", 2004, the
second of their methods.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import combinations

import numpy as np
import scipy.optimize
from scipy.special import expit

from gpurbf.runtime.threads import map_single_threaded_blas
from gpurbf.svm.ovo import pairs_by_class

# Parts of the samples that are left out in turn.
N_FOLDS = 5
# Minimum distance of a pair's probabilities from 0 and 1, as in LIBSVM.
_CERTAIN = 1e-7
# Outputs whose relative difference is at most this differ only by rounding.
_ROUNDING = 1e-9
# A would overflow for outputs that differ by so little.
_VANISHING = 1e-300
# Coefficients in the systems of linear equations that a thread solves together, in its cache.
_MAX_NUMBERS = 1 << 17


def fit_sigmoids(
    codes: np.ndarray,
    random_state: np.random.RandomState,
    outputs: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> np.ndarray:
    """A and B (2, n_pairs) of every pair, from outputs of models that did not see the sample.

    Folds are drawn class by class. If one class of a pair is not in the training part, the pair's
    output is 1 or -1, for the other class, as in LIBSVM.

    Parameters
    ----------
    codes : ndarray of shape (N,)
        Class numbers, each of 0 … max present.
    random_state : RandomState
        Draws the folds.
    outputs : callable
        ``outputs(train, test)`` trains on some samples and returns the pairs' outputs for others.
    """
    N, n_classes = len(codes), int(codes.max()) + 1
    first, second = np.triu_indices(n_classes, 1)
    pairs = pairs_by_class(n_classes)
    fold = np.empty(N, np.intp)
    fold[np.lexsort((random_state.permutation(N), codes))] = np.arange(N) % N_FOLDS
    held_out = np.empty((N, n_classes - 1))  # a sample's outputs for the pairs of its class
    for k in range(N_FOLDS):
        train, test = np.flatnonzero(fold != k), np.flatnonzero(fold == k)
        known = np.bincount(codes[train], minlength=n_classes) > 0
        found = np.tile(known[first] - known[second].astype(float), (len(test), 1))
        if known.sum() > 1 and len(test):
            found[:, known[first] & known[second]] = outputs(train, test)
        held_out[test] = np.take_along_axis(found, pairs[codes[test]], axis=1)
    members = [np.flatnonzero(codes == c) for c in range(n_classes)]
    sigmoids = [
        fit_sigmoid(held_out[members[a], b - 1], held_out[members[b], a])
        for a, b in combinations(range(n_classes), 2)
    ]
    return np.ascontiguousarray(np.transpose(sigmoids))


def fit_sigmoid(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """A and B of 1 / (1 + exp(A f + B)), the probability of the first class at the output f.

    Parameters
    ----------
    first, second : ndarray
        Outputs of samples of the first and of the second class of a pair.
    """
    n_first, n_second = len(first), len(second)
    f = np.concatenate([first, second])
    # Platt's targets, which keep A finite where the classes are separated.
    t = np.repeat([(n_first + 1) / (n_first + 2), 1 / (n_second + 2)], [n_first, n_second])
    start = np.array([0.0, np.log((n_second + 1) / (n_first + 1))])
    if np.ptp(f) <= max(_ROUNDING * np.abs(f).max(), _VANISHING):
        # Outputs are equal, so only A f + B is known: take A and B nearest to the start, as LIBSVM.
        way = np.array([f[0], 1.0])
        return start + way * (np.log(1 / t.mean() - 1) - start[1]) / (way @ way)
    # The search is for numbers of the size of 1; outputs may be far smaller, as they grow with C.
    mean = f.mean()
    size = np.abs(f - mean).mean()
    F = np.stack([(f - mean) / size, np.ones_like(f)])

    def log_loss(line: np.ndarray) -> tuple[float, np.ndarray]:
        z = line @ F
        return float(np.sum(t * z + np.logaddexp(0, -z))), F @ (t - expit(-z))

    def hessian(line: np.ndarray) -> np.ndarray:
        p = expit(-(line @ F))
        return (F * (p * (1 - p))) @ F.T

    a, b = scipy.optimize.minimize(
        log_loss, start, jac=True, hess=hessian, method="trust-exact", options={"gtol": 1e-5}
    ).x / [size, 1]
    return np.array([a, b - a * mean])


def pair_probabilities(outputs: np.ndarray, A: np.ndarray, B: np.ndarray) -> np.ndarray:
    """The probability (N, n_pairs) of the first class of each pair, from the pairs' outputs."""
    return np.clip(expit(-(A * outputs + B)), _CERTAIN, 1 - _CERTAIN)


def class_probabilities(r: np.ndarray, n_classes: int) -> np.ndarray:
    """Probabilities of the classes (N, n_classes) from those of the first class of each pair.

    They minimise the sum over all pairs (i, j) of (r_ji p_i - r_ij p_j)², and sum to 1. LIBSVM ends
    its iterations at differences of 0.005 / n_classes; here the equations are solved exactly.
    """
    rows = max(1, _MAX_NUMBERS // (n_classes + 1) ** 2)
    parts = (r[start : start + rows] for start in range(0, max(1, len(r)), rows))
    p = np.concatenate(
        map_single_threaded_blas([partial(_solved, part, n_classes) for part in parts])
    )
    p = np.maximum(p, np.finfo(float).tiny)  # only rounding makes them negative
    return p / p.sum(axis=1, keepdims=True)


def _solved(r: np.ndarray, n: int) -> np.ndarray:
    first, second = np.triu_indices(n, 1)
    lost = np.zeros((len(r), n, n))  # the probabilities that a class (row) loses to another
    lost[:, first, second], lost[:, second, first] = 1 - r, r
    # Q p + b = 0 and sum(p) = 1, where b is the multiplier of the constraint.
    system = np.ones((len(r), n + 1, n + 1))
    system[:, :n, :n] = -lost * lost.swapaxes(1, 2)
    system[:, range(n), range(n)] = np.square(lost).sum(axis=2)
    system[:, n, n] = 0
    return np.linalg.solve(system, np.eye(n + 1)[:, n:])[:, :n, 0]
