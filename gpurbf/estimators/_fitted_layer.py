"""State of a fitted layer: NumPy arrays, and a cache that no pickle carries."""

from __future__ import annotations

import os
from contextlib import nullcontext
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from gpurbf.centers import CENTERS, most_centers
from gpurbf.data.samples import FORCED, holds_squares, shared_quantizations, with_room
from gpurbf.estimators._base import StateMixin, say
from gpurbf.estimators._validation import (
    Rows,
    check_layer_parameters,
    check_samples,
    finite,
    profile_of,
)
from gpurbf.layer.activation import Activation
from gpurbf.layer.backends import get_backend
from gpurbf.layer.gamma import resolve_gamma, warn_if_rounding_decides
from gpurbf.layer.layer import HiddenLayer
from gpurbf.runtime.errors import OutOfRange, quiet, warn
from gpurbf.runtime.stages import stage


class FittedLayerMixin(StateMixin):
    """Fitted attributes of the layer, and the layer itself rebuilt from them when it is needed.

    Centers, activation and quantization stay those of the fit, whatever parameters are set or
    samples come later. Backend and precision may be changed, by a parameter, by ``config_context``
    or by the environment, before and after pickling. A change takes effect at once.
    """

    backend: str
    precision: str
    _cache: HiddenLayer | None

    def _keep_layer(self, layer: HiddenLayer) -> None:
        """Store what a fitted layer is made of."""
        self.centers_ = layer.centers
        self._activation, self._quantizations = layer.activation, layer.quantizations
        self._wide = layer.wide
        self._cache = layer
        self._report(layer)

    def _report(self, layer: HiddenLayer) -> None:
        self.backend_ = layer.backend.name
        self.backend_info_ = layer.describe()

    @property
    def _options(self) -> dict[str, Any]:
        """The backend and precision that are chosen now, for every layer of the model."""
        return {"backend": self.backend, "precision": self.precision}

    def _new_layer(
        self, C: Any, activation: Activation, quantizations: Any, dtype: Any = None
    ) -> HiddenLayer:
        """A layer with that backend and precision; OutOfRange if a forced one is too narrow."""
        made = HiddenLayer(C, activation, dtype=dtype, quantizations=quantizations, **self._options)
        if self.precision in FORCED and not holds_squares(made.dtype, C):
            raise OutOfRange(f"squared distances in {made.dtype}")
        return made

    def _layer(self) -> HiddenLayer:
        """The layer on the backend selected now."""
        layer = getattr(self, "_cache", None)
        if not (
            layer is not None
            and layer.centers is self.centers_
            and layer.activation is self._activation
            and layer.precision == self.precision
            and layer.backend
            is get_backend(self.backend, self.centers_.shape[0], metric=self._activation.metric)[0]
        ):
            dtype = np.float64 if getattr(self, "_wide", False) else None
            with finite(self, self.centers_):
                given = self.centers_, self._activation, self._quantizations, dtype
                layer = self._new_layer(*given)
            self._cache = layer  # one step: concurrent threads each make an equal layer
        return layer

    def _checked(self, X: Any) -> Any:
        """Validate samples for the fitted layer."""
        if not hasattr(self, "centers_"):  # check_is_fitted takes 3 % of a row's prediction
            check_is_fitted(self)
        return check_samples(self, X)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.sparse = True
        return tags


class ChosenLayerMixin(FittedLayerMixin):
    """The layer of RBFLayer and RBFClassifier; its centers are given or chosen by a rule."""

    n_centers: int | str
    centers: Any
    kernel: Any
    metric: str
    gamma: Any
    random_state: Any

    @stage("prepare", "centers chosen")
    def _choose_layer(self, rows: Rows) -> HiddenLayer:
        """Resolve gamma, choose the centers, and keep the layer made of them.

        The weights of the rows are positive; `center_indices_` are their places.

        Raises
        ------
        FloatingPointError
            If the samples are so large or small that float64 does not hold their squares.
        """
        X, y, weights, places = rows
        C = check_layer_parameters(self, X.shape[1])
        kernel, random_state = profile_of(self.kernel), check_random_state(self.random_state)
        given = {"weights": weights, "random_state": random_state}
        self.gamma_ = resolve_gamma(self.gamma, X, metric=self.metric, profile=kernel, **given)
        if not 0 < self.gamma_ < np.inf:
            raise OutOfRange(f"gamma={self.gamma!r}")
        activation, indices = Activation(self.metric, kernel, self.gamma_), None
        if isinstance(C, str):
            given |= {"layer": HiddenLayer, "activation": activation, **self._options}
            # A name asks for no definite number: no warning if there are fewer distinct samples.
            with quiet() if isinstance(self.n_centers, str) else nullcontext():
                C = CENTERS[C](X, y, most_centers(self.n_centers, X.shape[0]), **given)
            _check_chosen(self.centers, C, *X.shape)
            if C.ndim == 1:
                indices, C = C, X[C]
            else:  # a copy: a rule may return a view of X; integers would have float32 values
                C = C.astype(X.dtype if X.dtype.kind == "f" else C.dtype)
        C = with_room(C)
        layer = self._new_layer(C, activation, shared_quantizations(C, X, self.precision))
        warn_if_dense_takes_long(X, layer)
        if layer.quantization is None and self.gamma != "scale":
            warn_if_rounding_decides(X, activation, layer.dtype)
        self._keep_layer(layer)
        self.__dict__.pop("center_indices_", None)
        if indices is not None:
            self.center_indices_ = indices if places is None else places[indices]
        say(self, f"{self.centers_.shape[0]:,} centers, gamma {self.gamma_:.3g}")
        return layer


# Rough rates, only to tell seconds from minutes: operations per second of a core on dense tiles,
# and multiplications per second of SciPy's product of two sparse matrices.
_DENSE, _SPARSE = 5e10, 1.5e8
_LONG = 60.0


def warn_if_dense_takes_long(X: Any, layer: HiddenLayer) -> None:
    """Warn if X is sparse and making its rows dense, part by part, for dense centers takes long."""
    if sp.issparse(X):
        sparse_rows, n, n_centers = layer.sparse_rows(X), X.shape[1], layer.centers.shape[0]
        N = X.shape[0] - (0 if sparse_rows is None else int(sparse_rows.sum()))
        seconds = 2.0 * N * n * n_centers / (_DENSE * (os.cpu_count() or 1))
        if seconds > _LONG:
            warn(
                f"X is sparse with {n:,} features, and its distances to {n_centers:,} centers are "
                f"computed dense: {_minutes(seconds)}. With some hundred features, "
                "by sklearn.decomposition.TruncatedSVD, or a linear classifier it takes seconds."
            )


def warn_if_sparse_takes_long(X: Any) -> None:
    """Warn if X is sparse and its kernel, by sparse products, takes long."""
    if sp.issparse(X):
        # A feature that k samples have costs k² multiplications in the whole kernel.
        counts = np.bincount(X.indices, minlength=X.shape[1]).astype(float)
        seconds = float(counts @ counts) / _SPARSE
        if seconds > _LONG:
            warn(
                f"X is sparse with {X.shape[1]:,} features, too many to be made dense, and the "
                f"kernel of its {X.shape[0]:,} samples takes {_minutes(seconds)} of sparse "
                "products. With some hundred features, by sklearn.decomposition.TruncatedSVD, or "
                "with sklearn.svm.LinearSVC it takes seconds."
            )


def _minutes(seconds: float) -> str:
    return f"about {max(1, round(seconds / 60)):,} min"


def _check_chosen(rule: str, C: Any, N: int, n: int) -> None:
    """Refuse results of a rule, maybe one of the user's, that are neither rows nor points."""
    kind, fits = getattr(C, "dtype", np.dtype(object)).kind, False
    if kind in "fiu" and min(C.shape, default=0) > 0:
        rows = kind != "f" and C.ndim == 1 and C.min() >= 0 and C.max() < N
        fits = rows or (C.shape[1:] == (n,) and np.isfinite(abs(C).max()))
    if not fits:
        raise ValueError(
            f"The rule centers={rule!r} must return an array of one or more row numbers of X, or "
            f"of finite points of {n} features."
        )
