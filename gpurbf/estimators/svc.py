"""SVC: the support vector classifier of scikit-learn, trained and evaluated by the hidden layer."""

from __future__ import annotations

import functools
from itertools import combinations
from typing import Any

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import column_or_1d
from sklearn.utils.validation import check_consistent_length, check_is_fitted

from gpurbf.data.samples import FORCED, quantize_or_keep
from gpurbf.estimators._arrays import where_X_is
from gpurbf.estimators._base import CallbackSupportMixin, transaction, with_callbacks
from gpurbf.estimators._fitted_layer import warn_if_sparse_takes_long
from gpurbf.estimators._svc_outputs import KERNELS, SupportVectorsMixin
from gpurbf.estimators._svc_progress import Progress, check_parameters
from gpurbf.estimators._svc_sklearn import ScikitLearnMixin
from gpurbf.estimators._validation import (
    check_labels,
    check_weights,
    check_X,
    class_factors,
    class_mass,
    overflow,
)
from gpurbf.layer.activation import Activation
from gpurbf.layer.gamma import resolve_gamma
from gpurbf.runtime.arrays import chosen, to_host
from gpurbf.runtime.stages import stage, staged
from gpurbf.runtime.threads import limited
from gpurbf.svm.ovo import class_scores, votes
from gpurbf.svm.train import PairModels, group_samples, train_pairs


class SVC(
    SupportVectorsMixin, ScikitLearnMixin, CallbackSupportMixin, ClassifierMixin, BaseEstimator
):
    """C-support vector classification, a drop-in for :class:`sklearn.svm.SVC`.

    The same problem, solution, fitted attributes and tie rules, one binary problem a pair of
    classes. Kernel values come from the hidden layer in blocks, on integer data exactly; pairs are
    solved side by side and share them.

    Parameters
    ----------
    C : float, default=1.0
        Weight of the errors against the margin, > 0; ``numpy.inf`` allows no errors.
    kernel : {"rbf", "laplacian", "linear", "poly", "sigmoid", "precomputed"} or callable
        ``callable(X, Y)`` returns the kernel matrix between rows of X and of Y. Default "rbf".
    degree : int, default=3
        Of "poly".
    gamma : {"scale", "auto"} or float, default="scale"
        Of "rbf", "laplacian", "poly" and "sigmoid": 1 / (n_features Var(X)), 1 / n_features, or
        the number. The variance counts a sample as often as its weight says.
    coef0 : float, default=0.0
        Of "poly" and "sigmoid".
    shrinking : bool, default=True
        Accepted for scikit-learn's sake. The working sets leave out what shrinking would, and the
        gradient of all samples is kept exact, so there is nothing to switch off.
    probability : bool, default=False
        Accepted for scikit-learn's sake, which is removing it; only False.
    tol : float, default=1e-3
        Largest violation of the optimality conditions in the end, as in LIBSVM.
    cache_size : float, default=200
        Megabytes that kernel rows may take.
    class_weight : dict, "balanced" or None, default=None
        Factors of C by class, > 0. "balanced" gives classes equal weight, sample weights included.
    verbose : bool or int, default=False
        Print a line for each pair; above 1 for each working set.
    max_iter : int, default=10_000_000
        Steps of a pair at most (LIBSVM's own limit); -1 for no limit.
    decision_function_shape : {"ovr", "ovo"}, default="ovr"
        What ``decision_function`` returns for more than two classes.
    break_ties : bool, default=False
        Whether ``predict`` breaks ties of votes by ``decision_function`` (only "ovr").
    random_state : int, RandomState or None, default=None
        Accepted for scikit-learn's sake; nothing here is random.
    backend : str, default="auto"
        Who evaluates the kernel, see :func:`gpurbf.layer.backends.get_backend`. Sparse data
        too wide to be made dense are evaluated by SciPy's sparse products, which only "auto"
        allows.
    precision : {"auto", "exact", "float32", "tf32", "float64"}, default="auto"
        Of the kernel's distances, see :class:`RBFLayer`.
    n_jobs : int or None, default=None
        Threads at the most; None and -1 mean all that NumPy, Numba and joblib allow.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    class_weight_ : ndarray of shape (n_classes,)
        Factors of C.
    support_ : ndarray of shape (n_SV,)
        Samples that are support vectors, by class, then in order.
    support_vectors_ : ndarray or CSR of shape (n_SV, n_features)
        Empty for a kernel that is precomputed or callable.
    n_support_ : ndarray of shape (n_classes,)
        Support vectors of each class.
    dual_coef_ : ndarray or CSR of shape (n_classes - 1, n_SV)
        Coefficients of the support vectors, laid out and signed as in scikit-learn.
    intercept_ : ndarray of shape (n_pairs,)
    coef_ : ndarray or CSR of shape (n_pairs, n_features)
        Weights of the features; only for "linear".
    n_iter_ : ndarray of shape (n_pairs,)
        Steps, of two samples or along a conjugate direction of many.
    violation_, dual_gap_, objective_ : ndarray of shape (n_pairs,)
        At the end: largest violation of the optimality conditions; primal minus dual objective;
        dual objective (LIBSVM's sign: it is minimised).
    fit_status_ : int
        0 if all pairs converged, else 1.
    shape_fit_ : tuple of int
        Shape of X.
    backend_, backend_info_ : str
        The backend that ran ("none" where the kernel is a matrix), and with which kernel,
        arithmetic and reason.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        Only if X had string feature names.

    Notes
    -----
    There is no ``predict_proba``: wrap the classifier in
    ``CalibratedClassifierCV(SVC(), ensemble=False)``.

    ``dual_coef_`` and ``intercept_`` tell what ``fit`` found and are read by nobody: to change
    them, or numbers in them, changes no prediction. In scikit-learn that is so too, but for
    numbers in the ``dual_coef_`` of three classes or more. ``support_vectors_`` may be set anew;
    numbers in them that are changed where they are may or may not be seen.

    References
    ----------
    Fan, Chen and Lin, "Working set selection using second order information for training support
    vector machines", 2005. Chang and Lin, "LIBSVM: a library for support vector machines", 2011.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from gpurbf import SVC
    >>> X, y = load_digits(return_X_y=True)
    >>> SVC(gamma=0.001).fit(X[:1000], y[:1000]).score(X[1000:], y[1000:]) > 0.95
    True
    """

    def __init__(
        self,
        *,
        C: float = 1.0,
        kernel: Any = "rbf",
        degree: int = 3,
        gamma: Any = "scale",
        coef0: float = 0.0,
        shrinking: bool = True,
        probability: bool = False,
        tol: float = 1e-3,
        cache_size: float = 200,
        class_weight: Any = None,
        verbose: bool | int = False,
        max_iter: int = 10_000_000,
        decision_function_shape: str = "ovr",
        break_ties: bool = False,
        random_state: Any = None,
        backend: str = "auto",
        precision: str = "auto",
        n_jobs: int | None = None,
    ) -> None:
        self.C = C
        self.kernel = kernel
        self.degree = degree
        self.gamma = gamma
        self.coef0 = coef0
        self.shrinking = shrinking
        self.probability = probability
        self.tol = tol
        self.cache_size = cache_size
        self.class_weight = class_weight
        self.verbose = verbose
        self.max_iter = max_iter
        self.decision_function_shape = decision_function_shape
        self.break_ties = break_ties
        self.random_state = random_state
        self.backend = backend
        self.precision = precision
        self.n_jobs = n_jobs

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = self.kernel == "precomputed"
        tags.input_tags.sparse = self.kernel != "precomputed"
        return tags

    @transaction
    @with_callbacks
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> SVC:
        """Train on samples and their labels.

        Parameters
        ----------
        X : array-like or CSR of shape (n_samples, n_features)
            float64, float32 and uint8 are used as they are, other dtypes as float64. For
            "precomputed" the kernel matrix (n_samples, n_samples); for a callable kernel whatever
            it takes.
        y : array-like of shape (n_samples,)
            Labels of any type, two classes or more.
        sample_weight : array-like of shape (n_samples,), optional
            Factors of C. A sample of weight 2 is the same as the sample twice; those of weight 0
            or below are left out, and classes that have no others with them.

        Returns
        -------
        self : SVC

        Warns
        -----
        ConvergenceWarning
            If a pair ended before ``tol`` was reached; it names the pair.
        """
        check_parameters(self, tuple(KERNELS))
        X, y = self._check_training_data(X, y)
        weights = check_weights(sample_weight, len(y), negative=True)
        used: Any = slice(None)
        if weights is not None and not weights.all():
            used = np.flatnonzero(weights)
        masked = not isinstance(used, slice)
        self.classes_, codes = check_labels(y[used], type(self).__name__, masked)
        weights = None if weights is None else weights[used]
        self.class_weight_ = np.ones(len(self.classes_))
        if self.class_weight is not None:
            mass = functools.partial(class_mass, codes, weights, len(self.classes_))
            self.class_weight_ = class_factors(self.class_weight, self.classes_, mass, bounds=True)
        C = self.class_weight_[codes]
        C = (C if weights is None else C * weights) * self.C
        with limited(self.n_jobs):
            models = self._train(X, used, codes, weights, C)
        support = models.support if isinstance(used, slice) else used[models.support]
        self._keep(support, None if self._given() else X[support], models)
        return self

    @staged("read and validate", "X")
    def _check_training_data(self, X: Any, y: Any) -> tuple[Any, Any]:
        """X and y validated; X is a matrix of kernel values if the kernel is a function."""
        self._sparse = False
        self._fitted_kernel = self.kernel
        if callable(self.kernel):
            check_consistent_length(X, y)
            self._X_fit = X
            self.shape_fit_ = X.shape if hasattr(X, "shape") else (len(X),)
            K = self._call_kernel(X)
            if K.shape[0] != K.shape[1]:
                raise ValueError("X.shape[0] should be equal to X.shape[1]")
            return K, column_or_1d(y, warn=True)
        if sp.issparse(X) and self.kernel == "precomputed":
            raise TypeError("Sparse precomputed kernels are not supported.")
        X, y = check_X(self, X, y=y, reset=True)
        self._sparse = sp.issparse(X)  # as frames of sparse columns are by now
        self.shape_fit_ = X.shape
        if self.kernel == "precomputed" and X.shape[0] != X.shape[1]:
            raise ValueError(
                "Precomputed matrix must be a square matrix."
                f" Input is a {X.shape[0]}x{X.shape[1]} matrix."
            )
        return X, y

    @staged("prepare", "samples gathered")
    def _train(
        self, X: Any, used: Any, codes: np.ndarray, weights: np.ndarray | None, C: np.ndarray
    ) -> PairModels:
        """The trained pairs for the samples in use."""
        names = list(combinations(self.classes_, 2))
        given = callable(self.kernel) or self.kernel == "precomputed"
        if not isinstance(used, slice):
            X = X[np.ix_(used, used)] if given else X[used]
        progress = Progress(self, names, X, self.classes_[codes])
        data, self._activation, self._gamma, self._quantizations = X, None, 0.0, None
        self._tol = float(self.tol)
        groups = group_samples(None if given else X, codes, weights)
        if not given:
            self._activation = self._resolve(X, weights)
            # Codes first: sorted, samples not quantized are a copy of the data.
            X = quantize_or_keep(X, self.precision)[groups.first]
            if self.precision not in FORCED:
                self._quantizations = () if X.quantization is None else (X.quantization,)
            if sp.issparse(X.values) and self.backend != "auto":
                raise ValueError(
                    f"backend={self.backend!r} works on dense tiles, and these sparse data are too "
                    "wide to be made dense: use backend='auto', which takes sparse products."
                )
            warn_if_sparse_takes_long(X.values)
        try:
            models = train_pairs(
                X,
                codes,
                C,
                self._activation,
                groups=groups,
                backend=self.backend,
                precision=self.precision,
                tol=self._tol,
                max_iter=self.max_iter,
                cache_bytes=self.cache_size * 2**20,
                stepped=progress.stepped,
                solved=progress.solved,
            )
        except FloatingPointError:
            # scikit-learn's words, then ours.
            raise ValueError(
                "The dual coefficients or intercepts are not finite. The input data may contain "
                f"large values and need to be preprocessed. {overflow(self, data, 'Kernel values')}"
            ) from None
        progress.finish()
        return models

    def _resolve(self, X: Any, weights: Any) -> Activation:
        """The kernel as an activation; sets the number that gamma stands for."""
        metric, profile = KERNELS[self.kernel]
        self._gamma = resolve_gamma(self.gamma, X, metric=metric, profile=profile, weights=weights)
        return Activation(metric, profile, self._gamma, float(self.coef0), int(self.degree))

    @staged("back and evaluate", "fitted attributes")
    def _keep(self, support: np.ndarray, vectors: Any, models: PairModels) -> None:
        """Set the fitted attributes from the trained pairs and the samples that support them."""
        solutions = models.solutions
        self.support_ = support.astype(np.int32)
        self._n_support = models.n_support.astype(np.int32)
        self._dual_coef_ = models.dual_coef
        self._intercept_ = np.array([solution.intercept for solution in solutions])
        # The first class is +1 inside; for two classes the second is in what users see.
        sign = -1.0 if len(self.classes_) == 2 else 1.0
        self.dual_coef_ = sign * self._dual_coef_
        self.intercept_ = sign * self._intercept_
        if vectors is None:
            self.support_vectors_ = np.empty((0, 0))
        else:
            self.support_vectors_ = vectors.astype(np.float64, copy=False)
        if self._sparse:
            self.dual_coef_ = sp.csr_matrix(self.dual_coef_)
        self.n_iter_ = np.array([solution.steps for solution in solutions], np.int32)
        self.violation_ = np.array([solution.violation for solution in solutions])
        self.dual_gap_ = np.array([solution.gap for solution in solutions])
        self.objective_ = np.array([solution.objective for solution in solutions])
        self.fit_status_ = int(not all(solution.converged for solution in solutions))
        self.backend_ = models.backend
        self.backend_info_ = models.description
        self._cache = {}

    @where_X_is
    def decision_function(self, X: Any) -> np.ndarray:
        """Outputs of the pairs, or a score for each class made of them.

        Parameters
        ----------
        X : array-like or CSR of shape (n_samples, n_features)
            For "precomputed" the kernel matrix (n_samples, n_training_samples).

        Returns
        -------
        scores : ndarray of shape (n_samples,), (n_samples, n_pairs) or (n_samples, n_classes)
            For two classes one number, positive for the second. For more, "ovo" gives the pairs'
            outputs, positive for the first of the pair; "ovr" votes, plus their summed outputs
            squeezed into (-1/3, 1/3).
        """
        outputs = self._outputs(X)
        if len(self.classes_) == 2:
            return -outputs[:, 0]
        if self.decision_function_shape == "ovr":
            return class_scores(to_host(outputs), len(self.classes_))
        return outputs

    @where_X_is
    def predict(self, X: Any) -> np.ndarray:
        """The class that wins most pairs, the first of them in a tie.

        Parameters
        ----------
        X : array-like or CSR of shape (n_samples, n_features)
            For "precomputed" the kernel matrix (n_samples, n_training_samples).

        Returns
        -------
        y : ndarray of shape (n_samples,)
        """
        if self.break_ties and self.decision_function_shape == "ovo":
            check_is_fitted(self)
            raise ValueError("break_ties must be False when decision_function_shape is 'ovo'")
        outputs, n_classes = self._outputs(X), len(self.classes_)
        by_scores = self.break_ties and n_classes > 2
        with stage("back and evaluate", "votes"):
            if by_scores:
                points = class_scores(to_host(outputs), n_classes)
            else:
                points = votes(outputs, n_classes)
            return chosen(self.classes_, points.argmax(axis=1))
