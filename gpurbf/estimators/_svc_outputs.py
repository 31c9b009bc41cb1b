"""A trained SVC: support vectors, the layer rebuilt from them, the outputs of the pairs."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from sklearn.utils.validation import check_is_fitted

from gpurbf.data.quantize import Quantization
from gpurbf.estimators._arrays import ScoreMixin
from gpurbf.estimators._base import DocLinkMixin, StateMixin
from gpurbf.estimators._validation import check_finite, check_samples, check_X
from gpurbf.layer.activation import Activation
from gpurbf.layer.backends import get_backend
from gpurbf.layer.backends.numba.matvec import row_products
from gpurbf.layer.layer import HiddenLayer
from gpurbf.layer.sparse_layer import SparseLayer
from gpurbf.runtime.arrays import beside
from gpurbf.runtime.stages import staged
from gpurbf.runtime.threads import limited
from gpurbf.svm.ovo import pair_weights, support_layer

# scikit-learn's names of kernels in terms of the hidden layer.
KERNELS = {
    "rbf": ("euclidean", "gaussian"),
    "laplacian": ("manhattan", "laplacian"),
    "linear": ("dot", "linear"),
    "poly": ("dot", "poly"),
    "sigmoid": ("dot", "sigmoid"),
}


class SupportVectorsMixin(ScoreMixin, DocLinkMixin, StateMixin):
    """Attributes and outputs that follow from support vectors; no pickle carries their cache."""

    # Parameters and what fit sets.
    kernel: Any
    backend: str
    precision: str
    n_jobs: int | None
    _activation: Activation | None
    _quantizations: tuple[Quantization, ...] | None
    _tol: float
    _sparse: bool
    _fitted_kernel: Any
    _X_fit: Any
    _n_support: np.ndarray
    _dual_coef_: np.ndarray
    _intercept_: np.ndarray
    _cache: dict[str, _Prepared]
    classes_: np.ndarray
    support_: np.ndarray
    support_vectors_: Any
    shape_fit_: tuple[int, ...]

    def _given(self) -> bool:
        """Whether the kernel of the model is a matrix, not a function of the hidden layer."""
        return self._activation is None

    def _call_kernel(self, X: Any) -> np.ndarray:
        K = self._fitted_kernel(X, self._X_fit)
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
        if getattr(self, "_fitted_kernel", self.kernel) != "linear":
            raise AttributeError("coef_ is only available when using a linear kernel")
        check_is_fitted(self)
        W = pair_weights(np.asarray(self._dual_coef_), self._n_support).dense()
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
        with limited(self.n_jobs):
            ready = self._prepared()
            if ready.layer is None:
                outputs = row_products(X[:, self.support_], ready.weights)
            else:
                outputs = ready.layer.scores(X, ready.weights)
                outputs = outputs.astype(np.float64, copy=False)
        outputs += beside(outputs, self._intercept_)
        check_finite(self, X, outputs=outputs)
        return outputs

    def _check_samples(self, X: Any) -> Any:
        if callable(self._fitted_kernel):
            X = self._call_kernel(X)
        else:
            X = (check_X if self._sparse or self._given() else check_samples)(self, X)
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

    def _prepared(self) -> _Prepared:
        """The layer and weights of the model as it is, on the backend that is asked for now."""
        V, dual_coef = self.support_vectors_, self._dual_coef_
        backend = None if self._activation is None else get_backend(self.backend, V.shape[0])
        name = "none" if backend is None else backend[0].name
        ready = self._cache.get("ready")
        if ready is None or not ready.fits(V, dual_coef, name, self.precision):
            W = pair_weights(np.asarray(dual_coef), self._n_support)
            layer: HiddenLayer | SparseLayer | None = None
            weights: Any
            if self._activation is None:
                weights = W.dense()
            else:
                layer, weights = support_layer(
                    V,
                    W,
                    self._activation,
                    n_support=self._n_support,
                    backend=backend,
                    precision=self.precision,
                    quantizations=self._quantizations,
                    tol=self._tol,
                )
            ready = _Prepared(V, dual_coef, name, self.precision, weights, layer)
            self._cache["ready"] = ready
        return ready

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_cache": {}}


class _Prepared(NamedTuple):
    """The layer and weights of predictions, and the attributes that they were made of."""

    V: Any
    dual_coef: np.ndarray
    backend: str
    precision: str
    weights: Any  # as the layer takes them
    layer: HiddenLayer | SparseLayer | None

    def fits(self, V: Any, dual_coef: np.ndarray, backend: str, precision: str) -> bool:
        """Whether it is what would be made of these."""
        same = V is self.V and dual_coef is self.dual_coef
        return same and (backend, precision) == (self.backend, self.precision)
