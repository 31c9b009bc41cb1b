"""Replace scikit-learn's SVC by ours, so that code written for it runs unchanged."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import sklearn.svm
from sklearn.utils import check_array
from sklearn.utils.class_weight import compute_class_weight

from gpurbf.estimators import svc
from gpurbf.estimators._base import transaction
from gpurbf.estimators._validation import check_X
from gpurbf.layer.gamma import resolve_gamma

_log = logging.getLogger("gpurbf")
_logged = False
_replaced = sklearn.svm.SVC
_ORIGINAL = sklearn.svm._classes.SVC  # the one before may be that of another accelerator
# The layer of a fitted model is built from these attributes, and again if one of them is replaced.
_LAYER = "support_vectors_ _dual_coef_ _intercept_ _gamma kernel degree coef0".split()
_LAYER += "classes_ _probA _probB".split()


def patch_sklearn() -> None:
    """Replace ``sklearn.svm.SVC`` by a subclass of it that is trained and evaluated here.

    The subclass has scikit-learn's parameters and fitted attributes. It leaves to scikit-learn what
    :class:`gpurbf.SVC` does not support (sample weights of 0 or below); the logger "gpurbf" warns
    about this once. Existing models and names that are already imported do not change, so call this
    function first, as ``python -m gpurbf run script.py`` does.

    Examples
    --------
    >>> import gpurbf
    >>> gpurbf.patch_sklearn()
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.svm import SVC
    >>> X, y = load_iris(return_X_y=True)
    >>> SVC().fit(X, y).score(X, y) > 0.9
    True
    >>> gpurbf.unpatch_sklearn()
    """
    global _replaced
    if sklearn.svm.SVC is not SVC:
        _replaced = sklearn.svm.SVC
    # Not in `sklearn.svm._classes`, by which pickles of scikit-learn's models name their class.
    sklearn.svm.SVC = SVC


def unpatch_sklearn() -> None:
    """Undo `patch_sklearn`; fitted models keep working."""
    if sklearn.svm.SVC is SVC:  # and not a class that another accelerator has put there since
        sklearn.svm.SVC = _replaced


class SVC(_ORIGINAL):  # type: ignore[misc, valid-type]
    """scikit-learn's SVC, trained and evaluated by :class:`gpurbf.SVC`.

    As in scikit-learn, predictions use ``_dual_coef_`` and ``_intercept_``; the names without the
    first underscore are only for reading. Assigning a new array to these attributes has an effect,
    changing numbers in an array has none.
    """

    @transaction
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> SVC:
        """Same as in scikit-learn."""
        global _logged
        for name in ("_evaluator", "feature_names_in_"):
            self.__dict__.pop(name, None)
        if sample_weight is not None and not np.all(np.asarray(sample_weight, np.float64) > 0):
            if not _logged:
                _logged = True
                _log.warning(
                    "SVC.fit is left to scikit-learn: it treats sample weights of 0 or below in "
                    "its own way."
                )
            return super().fit(X, y, sample_weight)
        self._validate_params()
        model = svc.SVC(**_parameters(self, X, y, sample_weight)).fit(X, y, sample_weight)
        fitted = model.to_sklearn()
        parameters = fitted.get_params(deep=False)
        self.__dict__.update({k: v for k, v in vars(fitted).items() if k not in parameters})
        self._keep(model)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Same as in scikit-learn."""
        model = self._evaluator_now()
        return model.predict(X) if model else super().predict(X)

    def decision_function(self, X: Any) -> np.ndarray:
        """Same as in scikit-learn."""
        model = self._evaluator_now()
        return model.decision_function(X) if model else super().decision_function(X)

    def _dense_predict_proba(self, X: Any) -> np.ndarray:
        model = self._evaluator_now()
        return model.predict_proba(X) if model else super()._dense_predict_proba(X)

    def _sparse_predict_proba(self, X: Any) -> np.ndarray:
        model = self._evaluator_now()
        return model.predict_proba(X) if model else super()._sparse_predict_proba(X)

    def _evaluator_now(self) -> svc.SVC | None:
        """Our model of the support vectors, with the current parameters.

        None if scikit-learn trained the model on fewer classes than ``classes_`` lists: no sample
        of some class had a positive weight.
        """
        now = object.__new__(type(self))
        now.__dict__ = self.__dict__  # which a fit in another thread replaces, never changes
        if len(getattr(now, "_n_support", ())) < len(getattr(now, "classes_", ())):
            return None
        made, model = now.__dict__.get("_evaluator", ((), None))
        if model is None or any(a is not getattr(now, b) for a, b in zip(made, _LAYER)):
            model = now._keep(svc.SVC.from_sklearn(now))
        shape, ties = now.decision_function_shape, now.break_ties
        return model.set_params(decision_function_shape=shape, break_ties=ties)

    def _keep(self, model: svc.SVC) -> svc.SVC:
        self._evaluator = [getattr(self, name) for name in _LAYER], model
        return model

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_evaluator"}


def _parameters(estimator: Any, X: Any, y: Any, sample_weight: Any) -> dict[str, Any]:
    """Parameters of gpurbf.SVC for the same problem.

    In scikit-learn, sample weights change neither gamma nor balanced class weights.
    """
    parameters = svc.parameters_of(estimator, svc.SVC) | {"probability": estimator.probability}
    if sample_weight is None:
        return parameters
    given = callable(estimator.kernel) or estimator.kernel == "precomputed"
    if estimator.gamma == "scale" and not given:
        parameters["gamma"] = resolve_gamma("scale", check_X(svc.SVC(), X, reset=True))
    if estimator.class_weight == "balanced":
        labels = check_array(np.ravel(y), dtype=None, ensure_2d=False, input_name="y")
        classes = np.unique(labels)  # which cannot sort NaN
        weights = compute_class_weight("balanced", classes=classes, y=labels)
        parameters["class_weight"] = dict(zip(classes.tolist(), weights))
    return parameters
