"""Output solvers: how the weights W (m, k) of the hidden layer's outputs are found.

    ridge/          `Ridge`: least squares in closed form, from sums over tiles of H
    cg/             `CG`: least squares or kernel ridge regression, by conjugate gradients
    lms.py          `LMS`: the on-line delta rule, sample by sample
    one_hot.py      `OneHot`: no training, every center speaks for its own class
    calibration.py  probabilities of outputs

A solver of ``SOLVERS`` is a small object that holds its parameters; ``needs`` says what it computes
the weights from, and so which methods it has:

``"sums"``
    ``solve(normal, keep=False)`` gives a `RidgeSolution` from `NormalEquations`, which are fed
    batch by batch; ``keep``: the sums are needed again.
``"products"``
    ``system(layer, X, T, weights, places)`` and ``iterations(system)``, which yields a `CGSolution`
    after each iteration; see `CG`.
``"samples"``
    ``train(layer, X, T, weights, *, start, order)`` gives W (m, k). ``layer`` is a
    :class:`gpurbf.layer.Layer`, T (N, k) are the targets of samples X, weights (N,) their weights
    or None. Equal samples of several classes have the weighted mean of their targets, except in
    streams and with ``shuffle=False``. ``start`` (m, k) are the targets of centers that are
    samples, or weights learned before; None if there are neither. ``order`` (N',) are the rows in
    the order for a rule that learns sample by sample; None: all rows in their own order.
``"center targets"``
    The same, but ``start`` is required.

``check()``, if there is one, raises for a bad parameter before any work.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from gpurbf.layer import Layer
from gpurbf.solvers.cg import CG
from gpurbf.solvers.lms import LMS, DivergenceError
from gpurbf.solvers.one_hot import OneHot
from gpurbf.solvers.ridge import Ridge, RidgeSolution
from gpurbf.solvers.ridge.fixed_point import fixed_point
from gpurbf.solvers.ridge.normal_equations import NormalEquations

__all__ = ["CG", "LMS", "SOLVERS", "DivergenceError", "OneHot", "Ridge", "RidgeSolution"]

NEEDS = ("sums", "products", "samples", "center targets")
SOLVERS: dict[str, Callable[..., Any]] = {"ridge": Ridge, "cg": CG, "lms": LMS, "one-hot": OneHot}
# Centers up to which "auto" takes the closed form, 12 m² bytes and m³/3 operations.
_MAX_RIDGE_CENTERS = 10_000


def automatic(n_centers: int) -> tuple[str, str]:
    """Choose the solver that "auto" means.

    Parameters
    ----------
    n_centers : int

    Returns
    -------
    name, reason : str
    """
    few, limit = n_centers <= _MAX_RIDGE_CENTERS, f"{_MAX_RIDGE_CENTERS:,}"
    reason = f"{n_centers:,} centers are {'up to' if few else 'over'} {limit}"
    return "ridge" if few else "cg", reason


def make_solver(solver: Any, **parameters: Any) -> Any:
    """Make the solver of a name, or check a solver.

    Parameters
    ----------
    solver : str or object
        A name of ``SOLVERS``; an object is returned as it is.
    **parameters
        Parameters of an estimator; a solver given by name gets those that it takes.

    Returns
    -------
    solver : object

    Raises
    ------
    ValueError, TypeError
        If there is no such solver, or one of its parameters is bad.
    """
    if isinstance(solver, str) and solver in SOLVERS:
        taken = inspect.signature(SOLVERS[solver]).parameters
        solver = SOLVERS[solver](**{k: v for k, v in parameters.items() if k in taken})
    if inspect.isclass(solver) or getattr(solver, "needs", None) not in NEEDS:
        raise ValueError(
            f"Unknown solver {solver!r}: use one of {sorted(SOLVERS)} or an object such as "
            "gpurbf.solvers.lms.LMS(learning_rate=0.01)."
        )
    if hasattr(solver, "check"):
        solver.check()
    return solver


def iterates(
    solver: Any,
    layer: Layer,
    X: Any,
    T: np.ndarray,
    weights: np.ndarray | None,
    start: np.ndarray,
    order: np.ndarray,
) -> Iterable[np.ndarray]:
    """The output weights after each epoch of a solver that has epochs, else its only solution.

    For solvers that need sums, samples or center targets; sums are solved without an intercept.

    Parameters
    ----------
    solver : object
    layer : Layer
        With m centers.
    X : ndarray or CSR of shape (N, n)
    T : ndarray of shape (N, k)
        Targets.
    weights : ndarray of shape (N,) or None
    start : ndarray of shape (m, k)
        Targets of the centers, or weights learned before.
    order : ndarray of shape (N',)
        Rows in the order in which they are to be learned.

    Returns
    -------
    iterates : iterable of ndarray of shape (m, k), float64
        One W per epoch; the next epoch may change it in place.
    """
    if solver.needs == "sums":
        normal = NormalEquations(start.shape[1], *fixed_point(layer, X))
        normal.add(layer, X, T, weights)
        return [solver.solve(normal).W]
    if hasattr(solver, "epochs"):
        return solver.epochs(layer, X, T, weights, start=start, order=order)
    return [solver.train(layer, X, T, weights, start=start, order=order)]
