"""SVC's checks of parameters, labels and weights, with scikit-learn's messages where it has one."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.utils.multiclass import check_classification_targets

from gpurbf._stages import staged
from gpurbf.estimators._validation import check_gamma, check_number, check_option
from gpurbf.network.hidden import PRECISIONS

__all__ = ["check_parameters", "effective_weights", "labels"]


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


@staged("read and validate", "weights")
def effective_weights(sample_weight: Any, X: Any, y: np.ndarray) -> np.ndarray | None:
    """Sample weights (N,), float64; those below zero count as zero.

    Raises
    ------
    ValueError
        If the shape is another, a weight is not finite or none is positive.
    """
    if sample_weight is None:
        return None
    weights = np.asarray(sample_weight, dtype=np.float64)
    if weights.ndim == 0:
        weights = np.full(len(y), float(weights))
    if weights.shape != y.shape:
        shape = X.shape if hasattr(X, "shape") else (len(X),)
        raise ValueError(
            f"sample_weight and X have incompatible shapes: {weights.shape} vs {shape}: "
            "sample_weight must be 1D, one number for each sample."
        )
    if not np.isfinite(weights).all():
        raise ValueError("sample_weight contains NaN or infinity: every weight must be finite.")
    if not (weights > 0).any():
        raise ValueError("Invalid input - all samples have zero or negative weights.")
    return np.maximum(weights, 0.0)


@staged("read and validate", "y")
def labels(y: np.ndarray, masked: bool) -> tuple[np.ndarray, np.ndarray]:
    """The sorted classes and each label's number; `masked`: some samples have no weight."""
    check_classification_targets(y)
    classes, codes = np.unique(y, return_inverse=True)
    if len(classes) < 2:
        if masked:
            raise ValueError(
                "Invalid input - all samples with positive weights belong to the same class"
                f" label: {classes.tolist()[0]!r}; SVC needs at least 2 classes."
            )
        raise ValueError(
            "The number of classes has to be greater than one; got 1 class: the data contains "
            f"only one class, {classes.tolist()[0]!r}."
        )
    return classes, codes
