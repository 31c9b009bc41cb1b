"""Activations: the metric and the profile of a hidden unit, and their formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import numpy as np


class Activation(NamedTuple):
    """A hidden unit: ``profile(gamma, metric(x, c))``, all scalars."""

    metric: str
    profile: str | Callable
    gamma: float = 1.0
    coef0: float = 0.0
    degree: int = 3

    @property
    def linear(self) -> bool:
        """Whether it is x·c, so that sums over centers are products with the sum of the centers."""
        return (self.metric, self.profile) == ("dot", "linear")


# What users choose by name.
Metric = Literal["euclidean", "manhattan"]
Profile = Literal[
    "gaussian", "laplacian", "triangular", "multiquadric", "inverse-multiquadric", "thin-plate"
]
Precision = Literal["auto", "exact", "float32", "tf32", "float64"]
METRICS: tuple[Metric, ...] = get_args(Metric)
PROFILES: tuple[Profile, ...] = get_args(Profile)
PRECISIONS: tuple[Precision, ...] = get_args(Precision)

# These profiles take the distance itself; the other profiles of a distance take its square.
OF_DISTANCE = ("laplacian", "triangular")


def _thin_plate(s: np.ndarray) -> np.ndarray:
    """s log(s) / 2, and 0 where s is below the smallest normal number."""
    tiny = np.finfo(s.dtype).tiny
    return np.where(s < tiny, 0, s * np.log(np.maximum(s, tiny)) / 2)


# Each takes its argument v and the activation's scalars.
FORMULAS: dict[str, Callable[[np.ndarray, Activation], np.ndarray]] = {
    "gaussian": lambda v, a: np.exp(-a.gamma * v),
    "laplacian": lambda v, a: np.exp(-a.gamma * v),
    "triangular": lambda v, a: np.maximum(0, 1 - a.gamma * v),
    "multiquadric": lambda v, a: np.sqrt(1 + a.gamma * v),
    "inverse-multiquadric": lambda v, a: 1 / np.sqrt(1 + a.gamma * v),
    "thin-plate": lambda v, a: _thin_plate(a.gamma * v),
    "linear": lambda v, a: v,
    "poly": lambda v, a: (a.gamma * v + a.coef0) ** a.degree,
    "sigmoid": lambda v, a: np.tanh(a.gamma * v + a.coef0),
}


def apply_own(profile: Any, values: np.ndarray) -> None:
    """Put a user's function of the metric's values in their place."""
    found = profile(values)
    if np.shape(found) != values.shape:
        raise ValueError(
            f"kernel={profile!r} must map an array of d² to one of its shape, {values.shape}, got "
            f"{type(found).__name__} of shape {np.shape(found)}."
        )
    values[:] = found


# How the metric's value becomes the profile's argument: a square, clamped at 0; the root of that;
# the square of the value; the value itself.
SQUARED, ROOT, SQUARE, DOT = range(4)


def form(activation: Activation) -> int:
    """How the metric's value becomes the profile's argument."""
    if activation.metric == "dot":
        return DOT
    of_distance = activation.profile in OF_DISTANCE
    if activation.metric == "manhattan":
        return DOT if of_distance else SQUARE
    return ROOT if of_distance else SQUARED


def in_tile(activation: Activation) -> str:
    """The profile that a kernel applies: "linear" if a callable is applied afterwards."""
    return "linear" if callable(activation.profile) else activation.profile


def positive_definite(activation: Activation) -> bool:
    """Whether the kernel is always positive definite, and its value at distance 0 is always 1.

    Completely monotone functions of d², or of the Manhattan distance, are positive definite
    (Schoenberg, 1938).
    """
    profiles = {
        "euclidean": ("gaussian", "laplacian", "inverse-multiquadric"),
        "manhattan": ("laplacian",),
    }
    return activation.profile in profiles.get(activation.metric, ())


class Epilogue(NamedTuple):
    """On a GPU from a product to an activation: profile(form(factor * (row + column + alpha * P))).

    The sum is computed in the dtype of the terms (int32 wraps around, which is harmless where the
    sum itself fits), the rest in that of the activations.
    """

    alpha: Any  # -2 (squared Euclidean distances) or 1
    factor: float
    form: int
    profile: Any  # its number or its code
    gamma: float
    coef0: float
    degree: int
