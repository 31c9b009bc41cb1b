"""Base of the estimators on a cluster: parameters, lazy predictions, results for the client."""

from __future__ import annotations

import copy
import inspect
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
from sklearn.base import BaseEstimator, clone
from sklearn.utils.multiclass import unique_labels
from sklearn.utils.validation import _num_samples, check_consistent_length, check_is_fitted

from gpurbf.dask.blocks import aligned_blocks, row_blocks
from gpurbf.dask.graph import Tasks, shared
from gpurbf.runtime.errors import quiet


class DaskEstimator(BaseEstimator):
    """An estimator for samples on a cluster; after fitting, ``model_`` is the local estimator.

    Fitted attributes are those of ``model_``. ``class Name(DaskEstimator, local=Local)`` has the
    parameters of the local estimator, and ``client``.
    """

    local: type
    client: Any
    n_jobs: int | None
    model_: Any

    def __init_subclass__(cls, *, local: type | None = None) -> None:
        super().__init_subclass__()
        if local is None:
            return
        own = inspect.signature(local.__init__)  # type: ignore[misc]
        client = inspect.Parameter("client", inspect.Parameter.KEYWORD_ONLY, default=None)
        signature = own.replace(parameters=[*own.parameters.values(), client])

        def __init__(self: Any, *args: Any, client: Any = None, **kwargs: Any) -> None:
            vars(self).update(vars(local(*args, **kwargs)), client=client)

        __init__.__signature__ = signature  # type: ignore[attr-defined]
        cls.__init__, cls.local = __init__, local  # type: ignore[method-assign]

    def _new_model(self) -> Any:
        """The local estimator, not fitted; it has none of the parameters that a subclass added."""
        names = inspect.signature(self.local).parameters
        return self.local(**{name: vars(self)[name] for name in names if name in vars(self)})

    def to_local(self) -> Any:
        """A copy of the fitted model, a local estimator of gpurbf, without Dask.

        Returns
        -------
        model : estimator
        """
        check_is_fitted(self)
        return copy.deepcopy(self.model_)

    def set_params(self, **params: Any) -> DaskEstimator:
        """Set parameters, also those of the fitted model: some take effect at once.

        Parameters
        ----------
        **params
            New values by name.

        Returns
        -------
        self : estimator
        """
        super().set_params(**params)
        names = inspect.signature(self.local).parameters
        if "model_" in vars(self) and (own := {k: v for k, v in params.items() if k in names}):
            self.model_ = copy.copy(self.model_).set_params(**own)  # lazy results keep the old one
        return self

    def _lazily(self, method: str, X: Any) -> da.Array:
        """Apply a method of the model block by block, when the result is computed."""
        check_is_fitted(self)
        model = self.model_  # once: a refit in another thread replaces it
        # One row shows the shape and dtype of results; it needs no names of columns.
        probe = copy.copy(model)
        vars(probe).pop("feature_names_in_", None)
        with quiet():  # this row is not the user's
            like = getattr(probe, method)(np.zeros((1, probe.n_features_in_)))[:0]
        tasks, model = Tasks(self.client, self.n_jobs), shared(model, "model")
        task, arguments = partial(_applied, method, like), [(model, own) for own in row_blocks(X)]
        parts = tasks.each(method.replace("_", "-"), task, arguments)
        lengths = X.chunks[0] if isinstance(X, da.Array) else [np.nan] * len(parts)
        shapes = [(length, *like.shape[1:]) for length in lengths]
        return da.concatenate(list(map(partial(da.from_delayed, meta=like), parts, shapes)))

    def __getattr__(self, name: str) -> Any:
        if name.endswith("_") and not name.startswith("_") and "model_" in vars(self):
            return getattr(self.model_, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __sklearn_clone__(self) -> DaskEstimator:
        # A client is a connection, which cannot be copied.
        values = self.get_params(deep=False)
        return type(self)(
            **{k: v if k == "client" else clone(v, safe=False) for k, v in values.items()}
        )

    def __sklearn_tags__(self) -> Any:
        return self._new_model().__sklearn_tags__()

    def __getstate__(self) -> dict[str, Any]:
        return dict(super().__getstate__()) | {"client": None}


class DaskClassifier(DaskEstimator):
    """A classifier on a cluster."""

    def predict(self, X: Any) -> da.Array:
        """The predicted labels, computed lazily, block by block.

        Parameters
        ----------
        X : dask array, dask data frame or list of delayed blocks

        Returns
        -------
        labels : dask array of shape (n_samples,)
        """
        return self._lazily("predict", X)

    def decision_function(self, X: Any) -> da.Array:
        """The local estimator's scores, computed lazily, block by block.

        Parameters
        ----------
        X : dask array, dask data frame or list of delayed blocks

        Returns
        -------
        scores : dask array
        """
        return self._lazily("decision_function", X)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The accuracy; labels are compared on the workers that have the samples.

        Parameters
        ----------
        X : dask array, dask data frame or list of delayed blocks
        y : dask array, dask series or list of delayed blocks
        sample_weight : dask array, dask series or list of delayed blocks, optional

        Returns
        -------
        score : float
        """
        check_is_fitted(self)
        tasks, model = Tasks(self.client, self.n_jobs), shared(self.model_, "model")
        arguments = [(model, *part) for part in aligned_blocks(X, y, sample_weight)]
        right, whole = np.sum(tasks.results(tasks.each("score", _right, arguments)), axis=0)
        if not whole > 0:
            raise ValueError("The accuracy needs at least one sample with a weight > 0.")
        return float(right / whole)


def _applied(method: str, like: np.ndarray, model: Any, X: Any) -> np.ndarray:
    return getattr(model, method)(X) if _num_samples(X) else like


def _right(model: Any, X: Any, y: Any, weights: Any) -> np.ndarray:
    """The weight of the correctly predicted samples, and of all samples."""
    check_consistent_length(X, y, weights)  # one label would be compared with all predictions
    n = _num_samples(X)
    w = np.ones(n) if weights is None else np.asarray(weights, np.float64)
    right = np.empty(0, bool)
    if n:
        predicted, labels = model.predict(X), np.asarray(y).ravel()
        unique_labels(labels, predicted)  # strings never equal numbers: refused, as without Dask
        right = predicted == labels
    return np.array([w @ right, w.sum()])
