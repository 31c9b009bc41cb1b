"""SVC to scikit-learn's SVC and back: the same fitted arrays under the other class's names."""

from __future__ import annotations

import inspect
from typing import Any, Self

import numpy as np
import scipy.sparse as sp
from sklearn.svm import SVC as ScikitLearnSVC
from sklearn.utils.validation import check_is_fitted

from gpurbf.estimators._svc_outputs import KERNELS
from gpurbf.layer.activation import Activation
from gpurbf.layer.backends import get_backend

# Set by fit under the same name, and with the same meaning, in both classes.
_SAME = ("classes_", "class_weight_", "shape_fit_", "fit_status_", "n_iter_", "_gamma")
_IF_THERE = ("n_features_in_", "feature_names_in_")
# scikit-learn's place for the samples that a kernel function is called with.
_X_FIT = "_BaseLibSVM__Xfit"
_KERNELS = ("linear", "poly", "precomputed", "rbf", "sigmoid")


class ScikitLearnMixin:
    """The two methods; what they read and set is SVC's."""

    def to_sklearn(self) -> ScikitLearnSVC:
        """The same fitted model as scikit-learn's class, for whatever knows only that.

        Returns
        -------
        model : sklearn.svm.SVC
            With the same support vectors, and the same parameters as far as it has them.

        Raises
        ------
        ValueError
            If scikit-learn has no such kernel ("laplacian").
        NotFittedError
            Before ``fit``.
        """
        return to_sklearn(self)

    @classmethod
    def from_sklearn(cls, model: ScikitLearnSVC) -> Self:
        """A model that scikit-learn has fitted, evaluated by the hidden layer.

        Parameters
        ----------
        model : sklearn.svm.SVC
            Fitted. Probabilities, if it has any, stay with it.

        Returns
        -------
        model : SVC
            With the same parameters and support vectors; without ``violation_``, ``dual_gap_`` and
            ``objective_``, which scikit-learn does not keep.

        Raises
        ------
        TypeError
            If it is another class.
        ValueError
            If it knows classes that it was not trained for, all of whose samples had weight 0.
        NotFittedError
            If it is not fitted.

        Examples
        --------
        >>> import sklearn.svm
        >>> from sklearn.datasets import load_digits
        >>> from gpurbf import SVC
        >>> X, y = load_digits(return_X_y=True)
        >>> model = sklearn.svm.SVC(gamma=0.001).fit(X, y)
        >>> bool((SVC.from_sklearn(model).predict(X) == model.predict(X)).all())
        True
        """
        return from_sklearn(cls, model)


def _parameters(model: Any, cls: type) -> dict[str, Any]:
    """The parameters of a model that the other class has too."""
    known = inspect.signature(cls).parameters
    own = model.get_params(deep=False)
    return {name: value for name, value in own.items() if name in known and name != "probability"}


def _copy(source: Any, target: Any) -> None:
    for name in _SAME + tuple(name for name in _IF_THERE if hasattr(source, name)):
        setattr(target, name, getattr(source, name))


def to_sklearn(model: Any) -> ScikitLearnSVC:
    """See :meth:`ScikitLearnMixin.to_sklearn`."""
    check_is_fitted(model)
    kernel = model._fitted_kernel
    if not callable(kernel) and kernel not in _KERNELS:
        raise ValueError(
            f"scikit-learn's SVC has no kernel {kernel!r}: to_sklearn takes one of "
            f"{list(_KERNELS)} or a function such as sklearn.metrics.pairwise.laplacian_kernel."
        )
    parameters = _parameters(model, ScikitLearnSVC) | {"kernel": kernel}
    if (activation := model._activation) is not None:  # parameters set since are not the model's
        parameters |= {"coef0": activation.coef0, "degree": activation.degree}
    result = ScikitLearnSVC(**parameters)
    _copy(model, result)
    sparse = sp.issparse(model.dual_coef_)
    # LIBSVM walks through these arrays by address. They are what predictions are made of: others
    # may have changed dual_coef_ and intercept_, which only tell of them.
    own = np.array(model._dual_coef_, np.float64, order="C")
    vectors = model.support_vectors_
    if sparse:
        vectors = sp.csr_matrix(vectors, dtype=np.float64)
        vectors.sort_indices()
        own = _full(own)
    elif sp.issparse(vectors) or vectors.dtype != np.float64 or not vectors.flags.c_contiguous:
        vectors = vectors.toarray() if sp.issparse(vectors) else vectors
        vectors = np.ascontiguousarray(vectors, np.float64)
    # For two classes scikit-learn shows the negative of what LIBSVM has, as SVC does.
    sign = -1 if len(model.classes_) == 2 else 1
    result.support_ = np.ascontiguousarray(model.support_, np.int32)
    result.support_vectors_ = vectors
    result.dual_coef_, result._dual_coef_ = sign * own, own
    result._intercept_ = np.array(model._intercept_, np.float64)
    result.intercept_ = sign * result._intercept_
    result._n_support = np.ascontiguousarray(model.n_support_, np.int32)
    result._num_iter = model.n_iter_
    result._sparse, result._effective_probability = sparse, False
    result._probA = result._probB = np.empty(0)
    if callable(kernel):
        setattr(result, _X_FIT, model._X_fit)
    return result


def _full(dense: np.ndarray) -> sp.csr_matrix:
    """CSR that holds the zeros too: scikit-learn hands its numbers to LIBSVM as a dense matrix."""
    rows, columns = dense.shape
    indptr = columns * np.arange(rows + 1, dtype=np.int32)
    indices = np.tile(np.arange(columns, dtype=np.int32), rows)
    return sp.csr_matrix((dense.ravel(), indices, indptr), shape=dense.shape)


def from_sklearn(cls: type, model: Any) -> Any:
    """See :meth:`ScikitLearnMixin.from_sklearn`."""
    if not isinstance(model, ScikitLearnSVC):
        raise TypeError(
            f"from_sklearn takes a fitted sklearn.svm.SVC, got {type(model).__module__}."
            f"{type(model).__name__}."
        )
    check_is_fitted(model)
    if len(model.n_support_) < len(model.classes_):
        raise ValueError(
            f"The model names {len(model.classes_)} classes and was trained for "
            f"{len(model.n_support_)}, for the others' samples had weight 0: its predictions are "
            "of wrong classes. Fit it without those samples."
        )
    result = cls(**_parameters(model, cls))
    _copy(model, result)
    sign = -1.0 if len(model.classes_) == 2 else 1.0
    own = model._dual_coef_  # what it predicts with, whatever the public ones are by now
    own = own.toarray() if sp.issparse(own) else own.copy()
    result.support_ = model.support_
    result.support_vectors_ = model.support_vectors_
    result._dual_coef_, result._intercept_ = own, model._intercept_.copy()
    result.dual_coef_ = sign * model._dual_coef_
    result.intercept_ = sign * result._intercept_
    result._n_support = model.n_support_
    result._sparse = sp.issparse(model.dual_coef_)
    result._fitted_kernel, result._activation, result._quantizations = model.kernel, None, None
    result._tol, result._cache = float(model.tol), {}
    result.backend_ = "none"
    if callable(model.kernel):
        result._X_fit = getattr(model, _X_FIT)
    elif model.kernel != "precomputed":
        result._activation = Activation(
            *KERNELS[model.kernel], float(model._gamma), float(model.coef0), int(model.degree)
        )
        result.backend_ = get_backend(result.backend, len(result.support_))[0].name
    result.backend_info_ = f"{result.backend_} (trained by scikit-learn)"
    return result
