"""What FSVC accepts as parameters, and what class weights do to its centers' votes."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any

import numpy as np

from gpurbf.estimators._validation import check_number, check_option
from gpurbf.network.fsvc.passes import SELECTIONS
from gpurbf.network.fsvc.units import KERNELS, METRICS
from gpurbf.network.hidden import PRECISIONS
from gpurbf.network.solvers import make_solver

OUTSIDE = ("nearest", "zero")


def check_fsvc_parameters(estimator: Any) -> None:
    """Every parameter but those that the data decide.

    Raises
    ------
    ValueError, TypeError
        Naming the parameter, what it got and what it takes.
    """
    if isinstance(estimator.radius, str):
        check_option("radius", estimator.radius, ("auto", "ratio"), "or a number > 0")
    else:
        check_number("radius", estimator.radius, numbers.Real, 0, above=True)
    if isinstance(estimator.eval_radius, str):
        check_option("eval_radius", estimator.eval_radius, ("auto",), "a number > 0, or None")
    elif estimator.eval_radius is not None:
        check_number("eval_radius", estimator.eval_radius, numbers.Real, 0, above=True)
    check_number("overlap", estimator.overlap, numbers.Real, 0, above=True)
    check_option("kernel", estimator.kernel, KERNELS)
    check_option("metric", estimator.metric, METRICS)
    check_option("selection", estimator.selection, SELECTIONS)
    check_option("outside", estimator.outside, OUTSIDE)
    check_option("precision", estimator.precision, PRECISIONS)
    check_number("learning_rate", estimator.learning_rate, numbers.Real, 0)
    check_number("n_epochs", estimator.n_epochs, numbers.Integral, 1)
    check_number("alpha", estimator.alpha, numbers.Real, 0, above=True)
    if estimator.max_centers is not None:
        check_number("max_centers", estimator.max_centers, numbers.Integral, 1)
    check_fsvc_solver(estimator)


def check_fsvc_solver(estimator: Any, goes_on: bool = False) -> Any:
    """The solver of the parameters; one that is named takes one epoch over a chunk of a stream."""
    solver = make_solver(
        estimator.solver,
        alpha=estimator.alpha,
        fit_intercept=False,
        learning_rate=estimator.learning_rate,
        n_epochs=1 if goes_on else estimator.n_epochs,
    )
    if solver.needs == "products":
        raise ValueError(
            f"FSVC has few centers and no use for solver={estimator.solver!r}: use 'ridge', which "
            "solves the same in closed form."
        )
    if getattr(solver, "fit_intercept", False):
        raise ValueError(
            f"FSVC's outputs have no constant, solver={solver!r} has one: set fit_intercept=False."
        )
    return solver


def class_votes(
    class_weight: Any, classes: np.ndarray, mass: Callable[[], np.ndarray]
) -> np.ndarray:
    """What a center of each class says before training: 1 for the class of the largest weight.

    "balanced" asks for the classes' mass.
    """
    if class_weight is None:
        return np.ones(len(classes))
    if class_weight == "balanced":
        factors = 1 / mass().astype(float)
    else:
        factors = np.array([class_weight.get(label, 1.0) for label in classes.tolist()])
    return factors / max(factors.max(), np.finfo(float).tiny)
