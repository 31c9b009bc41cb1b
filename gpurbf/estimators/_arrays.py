"""Arrays of any library in, answers as arrays of that library: everything follows X.

CuPy's arrays are taken as they are, those of other libraries on a GPU as CuPy's, in place. Those of
other libraries on the host are taken as NumPy's and answered in kind where scikit-learn's
``array_api_dispatch`` says so; without it they are array-likes as any list is. Fitted attributes
are NumPy's all the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from sklearn import get_config  # type: ignore[attr-defined]
from sklearn.externals.array_api_compat import array_namespace, device, is_array_api_obj
from sklearn.utils._array_api import _convert_to_numpy

from gpurbf.runtime.arrays import beside, is_resident, library, to_host

Method = TypeVar("Method", bound=Callable[..., Any])


def where_X_is(method: Method) -> Method:
    """The method of X with its result as an array like X; labels that are words stay NumPy's."""

    @functools.wraps(method)
    def answered(self: Any, X: Any) -> Any:
        own = _own(X)
        result = beside(own, method(self, own))
        return result if own is X else _like(X, result)

    return answered  # type: ignore[return-value]


def on_host(A: Any) -> Any:
    """An array of any library as NumPy's; what is no array as it is."""
    return to_host(_own(A))


def _own(A: Any) -> Any:
    """The array as we compute with it, CuPy's or NumPy's; itself if nobody need convert it."""
    if isinstance(A, np.ndarray):
        return A
    if is_resident(A):
        xp = library(A)
        return A if isinstance(A, xp.ndarray) else xp.asarray(A)
    if get_config()["array_api_dispatch"] and is_array_api_obj(A):
        return _convert_to_numpy(A, array_namespace(A))
    return A


def _like(X: Any, result: Any) -> Any:
    """A result as an array of the library and on the device of X, if it is numbers."""
    if result.dtype.kind not in "biuf":
        return result
    xp = array_namespace(X)
    return xp.from_dlpack(result) if is_resident(result) else xp.asarray(result, device=device(X))


class ScoreMixin:
    """Accuracy of labels wherever they are."""

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The share of samples whose label is predicted.

        Parameters
        ----------
        X : array-like or CSR of shape (n_samples, n_features)
        y : array-like of shape (n_samples,)
            The true labels.
        sample_weight : array-like of shape (n_samples,), optional

        Returns
        -------
        accuracy : float
        """
        from sklearn.metrics import accuracy_score

        found = self.predict(X)  # type: ignore[attr-defined]
        y, found, weights = map(on_host, (y, found, sample_weight))
        return float(accuracy_score(y, found, sample_weight=weights))
