"""What a trained SVC is: support vectors, the layer rebuilt from them, the outputs of the pairs."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.utils.validation import check_is_fitted

from gpurbf._stages import staged
from gpurbf.backends.threads import limited
from gpurbf.estimators._validation import check_X
from gpurbf.network.hidden import Activation
from gpurbf.network.one_vs_one import SupportLayer, pair_weights

__all__ = ["KERNELS", "SupportVectorsMixin"]

# scikit-learn's names of kernels in terms of the hidden layer.
KERNELS = {
    "rbf": ("euclidean", "gaussian"),
    "laplacian": ("manhattan", "laplacian"),
    "linear": ("dot", "linear"),
    "poly": ("dot", "poly"),
    "sigmoid": ("dot", "sigmoid"),
}


class SupportVectorsMixin:
    """What follows from the support vectors: attributes, outputs, a cache no pickle carries."""

    # Parameters and what fit sets.
    kernel: Any
    coef0: float
    degree: int
    backend: str
    precision: str
    n_jobs: int | None
    _gamma: float
    _sparse: bool
    _X_fit: Any
    _n_support: np.ndarray
    _dual_coef_: np.ndarray
    _intercept_: np.ndarray
    _cache: dict[Any, SupportLayer]
    classes_: np.ndarray
    support_: np.ndarray
    support_vectors_: Any
    shape_fit_: tuple[int, ...]

    def _given(self) -> bool:
        """Whether the kernel is a matrix, not a function of the hidden layer."""
        return callable(self.kernel) or self.kernel == "precomputed"

    def _call_kernel(self, X: Any) -> np.ndarray:
        K = self.kernel(X, self._X_fit)
        return np.asarray(K.toarray() if sp.issparse(K) else K, dtype=np.float64, order="C")

    @property
    def n_support_(self) -> np.ndarray:
        """Support vectors of each class."""
        if not hasattr(self, "_n_support"):
            raise AttributeError("n_support_ is there after fit only.")
        return self._n_support

    @property
    def coef_(self) -> Any:
        """Weights of the features, (n_pairs, n_features); only for kernel="linear"."""
        if self.kernel != "linear":
            raise AttributeError("coef_ is only available when using a linear kernel")
        check_is_fitted(self)
        W = pair_weights(np.asarray(self._dual_coef_), self._n_support)
        if len(self.classes_) == 2:
            W = -W
        coef = self.support_vectors_.T @ W
        if sp.issparse(self.support_vectors_):
            coef = sp.csr_matrix(coef.T)
            coef.data.flags.writeable = False
            return coef
        coef = np.ascontiguousarray(coef.T)
        coef.flags.writeable = False
        return coef

    @staged("back and evaluate", "scores")
    def _outputs(self, X: Any) -> np.ndarray:
        """Outputs of the pairs (N, n_pairs), positive for the first class of the pair."""
        check_is_fitted(self)
        X = self._check_samples(X)
        W = pair_weights(np.asarray(self._dual_coef_), self._n_support)
        with limited(self.n_jobs):
            if self._given():
                outputs = X[:, self.support_] @ W
            else:
                outputs = self._support_layer().weighted(X, W)
        return outputs + self._intercept_

    def _check_samples(self, X: Any) -> Any:
        if callable(self.kernel):
            X = self._call_kernel(X)
        else:
            X = check_X(self, X)
            if sp.issparse(X) and not self._sparse:
                raise ValueError(
                    f"cannot use sparse input in {type(self).__name__!r} trained on dense data"
                )
        if self._given() and (X.ndim != 2 or X.shape[1] != self.shape_fit_[0]):
            raise ValueError(
                f"X.shape[1] = {X.shape[-1]} should be equal to {self.shape_fit_[0]}, "
                "the number of samples at training time"
            )
        if not self._given() and self._n_support.sum() != self.support_vectors_.shape[0]:
            raise ValueError(f"The internal representation of {type(self).__name__} was altered")
        return X

    def _support_layer(self) -> SupportLayer:
        """The hidden layer of the support vectors, on the backend asked for now."""
        key = self.backend, self.precision, id(self.support_vectors_)
        layer = self._cache.get(key)
        if layer is None:
            metric, profile = KERNELS[self.kernel]
            activation = Activation(
                metric, profile, self._gamma, float(self.coef0), int(self.degree)
            )
            layer = SupportLayer(self.support_vectors_, activation, self.backend, self.precision)
            self._cache.clear()
            self._cache[key] = layer
        return layer

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()  # type: ignore[assignment]
        return state | {"_cache": {}}
