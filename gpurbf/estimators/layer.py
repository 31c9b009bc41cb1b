"""RBFLayer: the hidden layer as a scikit-learn transformer."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin

from gpurbf.data.samples import BOUNDED, holds_squares
from gpurbf.estimators import _choices as choices
from gpurbf.estimators._base import transaction, where_X_is
from gpurbf.estimators._fitted_layer import ChosenLayerMixin
from gpurbf.estimators._validation import (
    Rows,
    check_finite,
    check_weights,
    check_X,
    finite,
    on_host,
)
from gpurbf.runtime.arrays import is_resident
from gpurbf.runtime.errors import WrongType
from gpurbf.runtime.threads import limited


class RBFLayer(ChosenLayerMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Hidden layer of an RBF network: ``H[i, j] = kernel(gamma, d(x_i, c_j))``.

    Parameters
    ----------
    n_centers : int, "auto" or "all", default="auto"
        Number of centers m that a rule chooses. ``"auto"``: 1,000, or all distinct samples if there
        are fewer. ``"all"``: all distinct samples. For k-means equal samples count one by one. Not
        used if `centers` is an array.
    centers : str or array-like of shape (m, n_features), default="stratified"
        A rule of ``gpurbf.centers.CENTERS``: ``"random"``, ``"stratified"`` (by class; without y
        the same as ``"random"``),
        ``"kmeans"``, ``"kmeans-class"``, ``"fsvc"``, ``"fsvc-class"``; or the centers themselves.
    kernel : str or callable, default="gaussian"
        With d the metric's distance: ``"gaussian"`` (or ``"rbf"``) exp(-gamma d²),
        ``"laplacian"`` exp(-gamma d), ``"triangular"`` max(0, 1 - gamma d),
        ``"multiquadric"`` sqrt(1 + gamma d²), ``"inverse-multiquadric"`` 1 / sqrt(1 + gamma d²),
        ``"thin-plate"`` s log(s) / 2 with s = gamma d²; or a function that maps an array of d² to
        an array of the same shape.
    metric : {"euclidean", "manhattan"}, default="euclidean"
        The distance d.
    gamma : float, "scale", "auto" or "median", default="scale"
        ``"scale"`` is 1 / (n_features * X.var()), ``"auto"`` 1 / n_features, ``"median"``
        1 / (2 median(d)²) over a sample of the rows, whatever their weights. For ``"laplacian"``
        ``"scale"`` and ``"median"`` are the root of this, for ``"triangular"`` half the root; with
        metric ``"manhattan"`` ``"scale"`` divides by n_features², not n_features.
    backend : str, default="auto"
        Where the layer is evaluated: ``"numpy"``, ``"mkl"``, ``"numba"``; on an NVIDIA GPU
        ``"cupy"`` or ``"numba-cuda"``; or ``"auto"``.
    precision : {"auto", "exact", "float32", "tf32", "float64"}, default="auto"
        ``"auto"``: distances of small-integer data are exact, those of other data in the float
        dtype of the centers (uint8: float32); ``"exact"`` raises if the data are not small
        integers, or such integers divided by 255, 256 or a smaller power of two;
        ``"float32"``, ``"float64"`` and, with backend ``"cupy"``, ``"tf32"`` force that arithmetic.
    n_jobs : int or None, default=None
        Maximum number of threads; None and -1 use all that NumPy, Numba and joblib allow.
    random_state : int, RandomState or None, default=None
        Seed of the center rule and of the sample for ``gamma="median"``.
    verbose : bool or int, default=False
        Print a line when the centers are chosen.

    Attributes
    ----------
    centers_ : ndarray of shape (m, n_features), or CSR
    center_indices_ : ndarray of shape (m,)
        Rows of the training data that became centers; absent if the centers are not samples.
    gamma_ : float
    backend_ : str
        Name of the backend that ``fit`` chose.
    backend_info_ : str
        Its kernel, its arithmetic and the reason for its choice.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        Only if X had string feature names.

    See Also
    --------
    RBFClassifier : The layer followed by a linear classifier, trained without storing H.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from gpurbf import RBFLayer
    >>> X, y = load_digits(return_X_y=True)
    >>> RBFLayer(50, random_state=0).fit_transform(X).shape
    (1797, 50)
    """

    def __init__(
        self,
        n_centers: choices.Count = "auto",
        *,
        centers: choices.Centers = "stratified",
        kernel: choices.Kernel = "gaussian",
        metric: choices.Metric = "euclidean",
        gamma: choices.Gamma = "scale",
        backend: choices.Backend = "auto",
        precision: choices.Precision = "auto",
        n_jobs: int | None = None,
        random_state: choices.RandomState = None,
        verbose: bool | int = False,
    ) -> None:
        self.n_centers = n_centers
        self.centers = centers
        self.kernel = kernel
        self.metric = metric
        self.gamma = gamma
        self.backend = backend
        self.precision = precision
        self.n_jobs = n_jobs
        self.random_state = random_state
        self.verbose = verbose

    @transaction
    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> RBFLayer:
        """Choose the centers and gamma.

        Parameters
        ----------
        X : array-like or CSR of shape (n_samples, n_features)
            float64, float32 and uint8 are used as they are, other dtypes as float64.
        y : array-like of shape (n_samples,), optional
            Labels, for rules that choose by class. A y of several columns, or a sparse one, is not
            used.
        sample_weight : array-like of shape (n_samples,), optional
            Weights in the rule's draw and in ``gamma="scale"``; 0 leaves a sample out.

        Returns
        -------
        self : RBFLayer

        Raises
        ------
        ValueError, TypeError
            For bad data or parameters; the message says what to do.
        """
        X = check_X(self, X, reset=True)
        weights, codes = check_weights(sample_weight, X.shape[0]), None
        if y is not None and isinstance(self.centers, str):
            y = y if sp.issparse(y) else np.asarray(on_host(y))
            if y.shape[:1] != X.shape[:1]:
                raise ValueError(f"y must have shape ({X.shape[0]},), got {y.shape}.")
            # Several targets a sample, as the columns of a sparse y, are no classes.
            if not sp.issparse(y) and y.size == len(y):
                try:
                    codes = np.unique(y.ravel(), return_inverse=True)[1]
                except TypeError as error:
                    raise WrongType(
                        f"y has labels that cannot be compared with each other ({error}): use "
                        "labels of one type."
                    ) from error
        rows = Rows(X, codes, weights).of_weight()
        with limited(self.n_jobs), finite(self, rows.X):
            self._choose_layer(rows)
        return self

    @where_X_is
    def transform(self, X: Any) -> np.ndarray:
        """The activations H.

        Parameters
        ----------
        X : array-like or CSR of shape (n_samples, n_features)

        Returns
        -------
        H : ndarray of shape (n_samples, m)
            float32 or float64 if `precision` names it (``"tf32"``: float32), else the dtype of the
            centers (uint8: float32); a CuPy array if X is one.
        """
        X = self._checked(X)
        with limited(self.n_jobs):
            H = self._layer().activations(X)
        # H is larger than X, so it is not looked at where it must be finite: where the profile is
        # bounded and neither gamma nor a squared distance overflows.
        bounded = self._activation.profile in BOUNDED and self.gamma_ < float(np.finfo(H.dtype).max)
        if not bounded or not (
            X.dtype == np.uint8 or (not is_resident(X) and holds_squares(H.dtype, X, self.centers_))
        ):
            check_finite(self, X, outputs=H)
        return H

    @property
    def _n_features_out(self) -> int:
        return self.centers_.shape[0]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
