"""SVC's checks of parameters."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any

import numpy as np

from gpurbf.estimators._validation import check_gamma, check_number, check_option
from gpurbf.network.hidden import PRECISIONS

__all__ = ["check_parameters"]


def check_parameters(estimator: Any, kernels: tuple[str, ...]) -> None:
    """Check every parameter of an SVC.

    Raises
    ------
    ValueError, TypeError
        Naming the parameter, what it got and what it takes.
    """
    if estimator.probability not in (False, "deprecated"):
        raise ValueError(
            f"SVC has no probability={estimator.probability!r}: wrap it, as scikit-learn advises, "
            "in sklearn.calibration.CalibratedClassifierCV(SVC(...), ensemble=False)."
        )
    if estimator.C != np.inf:
        check_number("C", estimator.C, numbers.Real, 0, above=True)
    if not callable(estimator.kernel):
        check_option("kernel", estimator.kernel, (*kernels, "precomputed"), "or a function")
    if not isinstance(estimator.gamma, str) and estimator.gamma == 0:
        pass  # a constant kernel, but scikit-learn's limit
    else:
        check_gamma(estimator.gamma, ("scale", "auto"))
    check_number("degree", estimator.degree, numbers.Integral, 0)
    check_number("coef0", estimator.coef0, numbers.Real, -np.inf)
    check_number("tol", estimator.tol, numbers.Real, 0, above=True)
    check_number("cache_size", estimator.cache_size, numbers.Real, 0, above=True)
    check_number("max_iter", estimator.max_iter, numbers.Integral, -1)
    check_option("decision_function_shape", estimator.decision_function_shape, ("ovr", "ovo"))
    check_option("precision", estimator.precision, PRECISIONS)
    weight = estimator.class_weight
    if not (weight is None or weight == "balanced" or isinstance(weight, Mapping)):
        raise ValueError(f"class_weight must be None, 'balanced' or a dict, got {weight!r}.")
