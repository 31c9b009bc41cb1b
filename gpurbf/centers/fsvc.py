"""FSVC's centers as rules: passes with a radius that gives the number of centers asked for."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from gpurbf.centers.sample import warn_if_short
from gpurbf.data.hashes import row_hashes
from gpurbf.data.samples import quantizations_of
from gpurbf.fsvc.search import find_radius, typical_distance
from gpurbf.fsvc.selection import Arithmetic, Rule, Selection, order_of, pass_precision
from gpurbf.fsvc.units import KERNELS, Unit, direct_distance
from gpurbf.layer.activation import Activation


def fsvc(X: Any, y: Any, n_centers: int, **context: Any) -> np.ndarray:
    """Take n_centers centers of FSVC's pass over all samples, with a radius that gives as many.

    If no radius that was tried does, as the number jumps, other samples are added: the first of the
    pass. See :mod:`gpurbf.fsvc.selection` for the pass.

    Parameters
    ----------
    X : ndarray or CSR of shape (N, n)
    y : object
        Not used.
    n_centers : int
    **context
        ``weights``, ``random_state``, and the ``activation``, ``backend`` and ``precision`` of the
        layer.

    Returns
    -------
    indices : ndarray of shape (m,), int64
        Rows of X, in their order; all distinct samples if there are fewer than n_centers.

    Warns
    -----
    UserWarning
        If there are fewer distinct samples than n_centers.
    """
    return _by_count(X, n_centers, np.zeros(X.shape[0], np.int64), **context)


def fsvc_class(X: Any, y: Any, n_centers: int, **context: Any) -> np.ndarray:
    """Take the centers of a pass over each class, with one radius that gives n_centers in all.

    Each class has one, if there are as many centers as classes.

    Parameters
    ----------
    X, n_centers, **context
        See `fsvc`.
    y : int array of shape (N,)
        Class numbers; equal samples of two classes count as two.

    Returns
    -------
    indices : ndarray of shape (m,), int64
        Rows of X, in their order.

    Raises
    ------
    ValueError
        If there is no y.
    """
    if y is None:
        raise ValueError(
            "centers='fsvc-class' makes a pass over each class: pass y, or use 'fsvc'."
        )
    return _by_count(X, n_centers, y, **context)


def _by_count(
    X: Any,
    n_centers: int,
    groups: np.ndarray,
    *,
    weights: np.ndarray | None,
    random_state: Any,
    activation: Activation,
    backend: str,
    precision: str,
    **context: Any,
) -> np.ndarray:
    """Make passes over groups of samples; returns n_centers row numbers, first those taken."""
    keys = row_hashes(X, random_state.randint(np.iinfo(np.int32).max))
    stream = order_of(keys, weights, groups, drawn=True).stream
    warn_if_short(n_centers, len(stream))
    if n_centers >= len(stream):
        return np.sort(stream)
    precision = pass_precision(precision)
    # One quantization, the coarsest, for all comparisons.
    quantizations = (quantizations_of(X, precision) or ())[:1]
    arithmetic = Arithmetic(backend, precision, quantizations)
    kernel = activation.profile if activation.profile in KERNELS else "gaussian"
    most, n_groups = int(1.05 * n_centers) + 2, int(groups.max()) + 1
    rule = Rule("per-class", 1.0, n_groups, n_groups * (most + 1))
    found: dict[float, np.ndarray] = {}

    def count(radius: float) -> float:
        passes = Selection(rule, arithmetic, Unit(kernel, activation.metric, radius))
        passes.feed(X, groups, stream)
        found[radius] = passes.indices
        return len(passes.indices)

    some = X[stream[:200]]
    if sp.issparse(some):
        used = np.unique(some.indices)
        some = (some[:, used] if 2 * len(used) < some.shape[1] else some).toarray()
    D = np.array([direct_distance(x, some, activation.metric) for x in some])
    radius = find_radius(count, n_centers, most, typical_distance(D))
    # The first of each group, of the pass, of the stream: where the number of centers jumps, there
    # are more or fewer than asked.
    others, later = ~np.isin(stream, found[radius]), np.ones(len(stream), bool)
    later[np.unique(groups[stream], return_index=True)[1]] = False
    return np.sort(stream[np.lexsort((others, later))[:n_centers]])
