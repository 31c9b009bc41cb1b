"""Types of parameters that are chosen by name, for editors and type checkers."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from gpurbf.layer.activation import Metric, Precision, Profile

__all__ = ["Metric", "Precision"]

Backend = Literal["auto", "numpy", "mkl", "numba", "cupy", "numba-cuda"] | str  # or a user's own
Centers = (
    Literal["random", "stratified", "kmeans", "kmeans-class", "fsvc", "fsvc-class"] | ArrayLike
)
ClassWeight = Mapping[Any, float] | Literal["balanced"] | None
Count = int | Literal["auto", "all"]
Gamma = Literal["scale", "auto", "median"] | float
Kernel = Profile | Literal["rbf"] | Callable[[Any], Any]
RandomState = int | np.random.RandomState | None
Solver = Literal["auto", "ridge", "cg", "lms", "one-hot"] | Any
Values = Sequence[float] | np.ndarray
# Only of SVC, and of FSVC.
PairKernel = (
    Literal["rbf", "gaussian", "laplacian", "linear", "poly", "sigmoid", "precomputed"]
    | Callable[..., Any]
)
Unit = Literal["gaussian", "rbf", "triangular"]
Distance = Metric | Literal["sqeuclidean"]
