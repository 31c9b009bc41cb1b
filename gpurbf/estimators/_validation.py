"""Checks that the estimators share: data, labels, weights, the kernel's parameters."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from gpurbf._stages import count, staged
from gpurbf.network.centers import CENTERS
from gpurbf.network.hidden import METRICS, PRECISIONS, PROFILES

# uint8 stays: it is the integer lattice itself, and eight times smaller than float64.
DTYPES = (np.float64, np.float32, np.uint8)


@staged("read and validate", "X")
def check_X(estimator: Any, X: Any, *, reset: bool = False, **options: Any) -> Any:
    """X (N, n) as float64, float32 or uint8, dense or CSR, finite; with ``y=`` the pair."""
    count(nbytes=getattr(X, "nbytes", 0))
    return validate_data(
        estimator, X, reset=reset, accept_sparse="csr", dtype=list(DTYPES), **options
    )


def check_weights(sample_weight: Any, n_samples: int) -> np.ndarray | None:
    """Sample weights (N,) in float64, or None.

    Raises
    ------
    ValueError
        If they have another shape, are negative, not finite or all zero.
    """
    if sample_weight is None:
        return None
    if isinstance(sample_weight, numbers.Number):
        weights = np.full(n_samples, sample_weight, dtype=np.float64)
    else:
        weights = np.asarray(sample_weight, dtype=np.float64)
    if weights.shape != (n_samples,):
        raise ValueError(
            f"sample_weight must be 1D with one number per sample: shape ({n_samples},), "
            f"got {weights.shape}."
        )
    if not np.isfinite(weights).all():
        raise ValueError("sample_weight contains NaN or infinity: every weight must be finite.")
    if (weights < 0).any():
        raise ValueError("Negative values in sample_weight: every weight must be >= 0.")
    if not weights.any():
        raise ValueError("sample_weight is zero for all samples: at least one must be > 0.")
    return weights


@staged("read and validate", "y")
def check_labels(y: Any, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The sorted classes and each label's number; at least two classes."""
    check_classification_targets(y)
    classes = np.unique(y)
    if len(classes) < 2:
        raise ValueError(
            f"{name} needs samples of at least 2 classes with positive weight in the data, but the "
            f"data contains only one class: {classes[0]}."
        )
    # Found one by one: sorting many labels would take several times their memory.
    return classes, np.searchsorted(classes, y)


@staged("read and validate", "X")
def training_data(
    estimator: Any, X: Any, y: Any, sample_weight: Any, *, reset: bool = True, **options: Any
) -> tuple[Any, np.ndarray, np.ndarray | None]:
    """Validated X, y and weights, less the samples of weight 0: nothing may depend on them."""
    X, y = check_X(estimator, X, y=y, reset=reset, **options)
    weights = check_weights(sample_weight, X.shape[0])
    if weights is not None and not weights.all():
        kept = weights > 0
        X, y, weights = X[kept], y[kept], weights[kept]
    return X, y, weights


@staged("prepare", "weights")
def with_class_weights(
    class_weight: Any, classes: np.ndarray, codes: np.ndarray, weights: np.ndarray | None
) -> np.ndarray | None:
    """Sample weights times class weights; "balanced" makes the classes' weights equal."""
    if class_weight is None:
        return weights
    if isinstance(class_weight, str) and class_weight == "balanced":
        mass = np.bincount(codes, weights, minlength=len(classes))
        factors = mass.sum() / (len(classes) * mass)
    elif isinstance(class_weight, Mapping):
        factors = compute_class_weight(class_weight, classes=classes, y=classes[codes])
    else:
        raise ValueError(f"class_weight must be None, 'balanced' or a dict, got {class_weight!r}.")
    return factors[codes] if weights is None else factors[codes] * weights


def check_layer_parameters(estimator: Any, n_features: int) -> Any:
    """Check what RBFLayer and RBFClassifier have in common; return the centers as a name or array.

    Raises
    ------
    ValueError, TypeError
        Naming the parameter, what it got and what it takes.
    """
    if not callable(estimator.kernel) and estimator.kernel not in PROFILES:
        raise ValueError(
            f"Unknown kernel {estimator.kernel!r}: use one of {list(PROFILES)} or a function of d²."
        )
    check_option("metric", estimator.metric, METRICS)
    check_option("precision", estimator.precision, PRECISIONS)
    check_gamma(estimator.gamma, ("scale", "auto", "median"))
    if isinstance(estimator.centers, str):
        check_option("centers", estimator.centers, tuple(CENTERS), "or an array (m, n)")
        check_number("n_centers", estimator.n_centers, numbers.Integral, 1)
        return estimator.centers
    centers = estimator.centers
    centers = centers.toarray() if sp.issparse(centers) else np.asarray(centers)
    if centers.dtype not in DTYPES:
        centers = centers.astype(np.float64)
    if centers.ndim != 2 or centers.shape[1] != n_features or not len(centers):
        raise ValueError(
            f"centers must have shape (m, {n_features}) to match X, got {centers.shape}."
        )
    if not np.isfinite(centers).all():
        raise ValueError("centers contains NaN or infinity.")
    return centers


def check_option(name: str, value: Any, allowed: tuple[str, ...], also: str = "") -> None:
    """A name out of a list."""
    if not isinstance(value, str) or value not in allowed:
        raise ValueError(f"Unknown {name} {value!r}: use one of {sorted(allowed)} {also}".strip())


def check_number(name: str, value: Any, kind: Any, low: float, *, above: bool = False) -> None:
    """A finite number of that kind, at least (or above) low; True and False are not numbers."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, kind):
        expected = "an integer" if kind is numbers.Integral else "a number"
        raise TypeError(f"{name} must be {expected}, got {value!r}.")
    if not np.isfinite(value) or value < low or (above and value == low):
        raise ValueError(f"{name} must be {'>' if above else '>='} {low}, got {value!r}.")


def check_gamma(gamma: Any, names: tuple[str, ...]) -> None:
    """A positive number or one of the names."""
    if isinstance(gamma, str):
        check_option("gamma", gamma, names, "or a number > 0")
    else:
        check_number("gamma", gamma, numbers.Real, 0, above=True)
