"""SVC: the support vector classifier of scikit-learn, trained and evaluated by the hidden layer."""

from __future__ import annotations

import inspect
import numbers
import operator
import threading
from collections.abc import Callable, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
import scipy.sparse as sp
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.utils import check_random_state, column_or_1d
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import _num_samples, check_consistent_length, check_is_fitted

from gpurbf.data.samples import FORCED, quantize_or_keep, rows_of
from gpurbf.estimators import _choices as choices
from gpurbf.estimators._base import (
    CallbackSupportMixin,
    LogProbaMixin,
    ScoreMixin,
    StateMixin,
    say,
    transaction,
    where_X_is,
    with_callbacks,
)
from gpurbf.estimators._fitted_layer import warn_if_sparse_takes_long
from gpurbf.estimators._validation import (
    Rows,
    check_common_parameters,
    check_finite,
    check_labels,
    check_names,
    check_samples,
    check_weights,
    check_X,
    overflow,
)
from gpurbf.layer.activation import Activation
from gpurbf.layer.backends import get_backend
from gpurbf.layer.backends.numba.matvec import row_products
from gpurbf.layer.gamma import resolve_gamma, warn_if_rounding_decides
from gpurbf.layer.layer import HiddenLayer
from gpurbf.layer.sparse import SparseLayer, canonical_csr
from gpurbf.runtime.arrays import beside, chosen, is_resident, library, to_host
from gpurbf.runtime.checks import check_flag, check_number, check_option, check_option_or_number
from gpurbf.runtime.config import working_bytes
from gpurbf.runtime.errors import OutOfRange, quiet, warn
from gpurbf.runtime.lazy import lazy_module
from gpurbf.runtime.memory import check_result, check_room
from gpurbf.runtime.stages import stage
from gpurbf.runtime.threads import limited
from gpurbf.svm.kernel_matrix import ON_HOST
from gpurbf.svm.ovo import class_scores, pair_weights, support_layer, votes
from gpurbf.svm.platt import N_FOLDS, class_probabilities, fit_sigmoids, pair_probabilities
from gpurbf.svm.train import Groups, PairModels, group_samples, train_pairs

if TYPE_CHECKING:
    from sklearn.svm import SVC as ScikitLearnSVC

# Importing it takes longer than all of this package. `patch_sklearn` does not replace SVC there.
scikit_learn = lazy_module("sklearn.svm._classes")

# scikit-learn's names of kernels in terms of the hidden layer.
KERNELS = {
    "rbf": ("euclidean", "gaussian"),
    "gaussian": ("euclidean", "gaussian"),
    "laplacian": ("manhattan", "laplacian"),
    "linear": ("dot", "linear"),
    "poly": ("dot", "poly"),
    "sigmoid": ("dot", "sigmoid"),
}
# Set by fit under the same name, and with the same meaning, in both classes.
_SAME = (
    "classes_", "class_weight_", "shape_fit_", "fit_status_", "n_iter_", "_gamma", "_probA",
    "_probB", "support_", "_n_support", "n_features_in_", "feature_names_in_",
)  # fmt: skip
# Attribute in which scikit-learn keeps the training samples for a kernel function.
_X_FIT = "_BaseLibSVM__Xfit"
_THEIR_KERNELS = ("linear", "poly", "precomputed", "rbf", "sigmoid")
# Maximum number of pairs that a warning names.
_NAMED = 5
# Why a pair ends before its limit of steps, if no callback ends it.
_STUCK = (
    "steps are too small for float64: kernel values differ too much in size, or tol is too small"
)
# More memory than there is, whose bytes are a number that arithmetic can hold.
_MOST_MEGABYTES = 2**40
# Minimum memory for a pair: its problem, its solution and its names.
_BYTES_PER_PAIR = 500
# Memory for each output of a block; its least number of samples, however many outputs they have.
_BYTES_PER_OUTPUT, _LEAST_ROWS = 32, 64
_CALIBRATED = "CalibratedClassifierCV(SVC(), ensemble=False)"


def with_probabilities(estimator: Any) -> bool:
    """Whether an SVC is to have probabilities."""
    return estimator.probability not in (False, "deprecated")


def _has_probabilities(estimator: Any) -> bool:
    if not with_probabilities(estimator):
        raise AttributeError(
            "predict_proba is not available when probability=False: use "
            f"sklearn.calibration.{_CALIBRATED}, or fit with probability=True."
        )
    return True


class SVC(
    LogProbaMixin, ScoreMixin, StateMixin, CallbackSupportMixin, ClassifierMixin, BaseEstimator
):
    """C-support vector classification, a drop-in replacement for :class:`sklearn.svm.SVC`.

    It solves the same problem, with the same solution, fitted attributes and tie rules, and trains
    one binary classifier for each pair of classes. Pairs are solved in parallel and share kernel
    values, which are exact on integer data.

    Parameters
    ----------
    C : float, default=1.0
        Weight of the errors against the margin, > 0; ``numpy.inf`` allows no errors.
    kernel : {"rbf", "laplacian", "linear", "poly", "sigmoid", "precomputed"} or callable
        ``callable(X, Y)`` returns the kernel matrix between rows of X and of Y. Default "rbf", also
        called "gaussian".
    degree : int, default=3
        Degree of the "poly" kernel.
    gamma : {"scale", "auto"} or float, default="scale"
        Coefficient of "rbf", "laplacian", "poly" and "sigmoid". "scale" is 1 / (n_features Var(X)),
        for "laplacian" 1 / (n_features Std(X)), and counts a sample as often as its weight says;
        "auto" is 1 / n_features.
    coef0 : float, default=0.0
        Constant term of "poly" and "sigmoid".
    shrinking : bool, default=True
        Has no effect; scikit-learn has this parameter. The working sets leave out the samples that
        shrinking would, and the gradient of all samples stays exact.
    probability : bool, default="deprecated"
        Whether ``fit`` also trains probabilities, by five more models, each without a fifth of the
        samples. Deprecated, as in scikit-learn 1.9; the default means False. Use
        ``CalibratedClassifierCV(SVC(), ensemble=False)`` instead.
    tol : float, default=1e-3
        Stop when the optimality conditions are violated by less than this, as in LIBSVM.
    cache_size : float, default=200
        Memory for kernel rows, in megabytes, for up to four threads. More threads train more pairs
        of classes at a time, and have more in proportion: 800 MB with sixteen.
    class_weight : dict, "balanced" or None, default=None
        Factors of C by class, > 0. "balanced" gives all classes the same total weight, sample
        weights included.
    verbose : bool or int, default=False
        Print a line for each pair of classes; if above 1, also for each working set.
        ``set_callbacks(ProgressBar())`` draws a bar instead, with ``sklearn.callback`` of
        scikit-learn 1.9.
    max_iter : int, default=10_000_000
        Maximum number of steps per pair of classes (LIBSVM's own limit); -1 for no limit.
    decision_function_shape : {"ovr", "ovo"}, default="ovr"
        Outputs of ``decision_function`` for more than two classes.
    break_ties : bool, default=False
        Whether ``predict`` breaks ties of votes by ``decision_function`` (only "ovr").
    random_state : int, RandomState or None, default=None
        Seed of the folds of ``probability=True``; nothing else is random.
    backend : str, default="auto"
        Where the kernel is evaluated: "numba", "mkl", "numpy" or "auto"; on an NVIDIA GPU, which
        "auto" does not take here, "cupy" or "numba-cuda". Sparse data too wide to be made dense are
        multiplied by SciPy, or refused if this parameter (not a setting) names a backend.
    precision : {"auto", "exact", "float32", "tf32", "float64"}, default="auto"
        Arithmetic of the distances, see :class:`RBFLayer`; but "auto" takes float32 for float64
        data too above 1,024 samples, and float64 again where its rounding could matter for `tol`.
    n_jobs : int or None, default=None
        Maximum number of threads; None and -1 use all that NumPy, Numba and joblib allow.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    class_weight_ : ndarray of shape (n_classes,)
        Factors of C.
    support_ : ndarray of shape (n_SV,)
        Indices of the support vectors, sorted by class, then by index.
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
        Number of steps. A step moves two samples, or many along a conjugate direction.
    violation_, dual_gap_, objective_ : ndarray of shape (n_pairs,)
        At the end: largest violation of the optimality conditions; primal minus dual objective
        (infinite for C=inf while any margin is violated); dual objective (LIBSVM's sign: it is
        minimised).
    fit_status_ : int
        0 if all pairs converged, else 1.
    shape_fit_ : tuple of int
        Shape of X.
    probA_, probB_ : ndarray of shape (n_pairs,)
        Parameters of each pair's sigmoid; empty without ``probability=True``.
    backend_, backend_info_ : str
        The backend that ran ("none" for a kernel of the caller, "scipy" for sparse data that are
        not made dense); its kernel, its arithmetic and the reason for its choice.
    n_features_in_ : int
        Absent for a callable kernel.
    feature_names_in_ : ndarray of str
        Only if X had string feature names.

    Notes
    -----
    Probabilities are computed as in LIBSVM. For each pair, a sigmoid of its output is fitted to
    outputs for samples left out in five folds. Pairwise coupling combines the pairs, so the most
    probable class may differ from the one that ``predict`` gives. Folds are drawn class by class,
    the same ones for all pairs. Sigmoids ignore sample weights.

    ``dual_coef_`` and ``intercept_`` only report what ``fit`` found: replacing them, or changing
    their numbers, does not change predictions. (In scikit-learn, changing numbers in the
    ``dual_coef_`` of three classes or more does.) ``support_vectors_`` may be set to another array;
    changing numbers in the array itself may or may not have an effect.

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

    kernel: Any
    _fitted_kernel: Any
    # Not pickled: what predictions need, and what it was made of.
    _cache: dict[str, Any]
    # Until a fit with probability=True.
    _probA = _probB = np.empty(0)

    def __init__(
        self,
        *,
        C: float = 1.0,
        kernel: choices.PairKernel = "rbf",
        degree: int = 3,
        gamma: Literal["scale", "auto"] | float = "scale",
        coef0: float = 0.0,
        shrinking: bool = True,
        probability: bool | Literal["deprecated"] = "deprecated",
        tol: float = 1e-3,
        cache_size: float = 200,
        class_weight: choices.ClassWeight = None,
        verbose: bool | int = False,
        max_iter: int = 10_000_000,
        decision_function_shape: Literal["ovr", "ovo"] = "ovr",
        break_ties: bool = False,
        random_state: choices.RandomState = None,
        backend: choices.Backend = "auto",
        precision: choices.Precision = "auto",
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
            Labels that scikit-learn's classifiers take (integers, strings, booleans, dates), of two
            classes or more.
        sample_weight : array-like of shape (n_samples,), optional
            Factors of C. A sample of weight 2 is the same as the sample given twice. Samples of
            weight 0 or below are left out, and so are classes that have no other samples.

        Returns
        -------
        self : SVC

        Warns
        -----
        ConvergenceWarning
            If a pair ended before ``tol`` was reached; the warning names the pair.
        """
        check_parameters(self)
        X, y = self._check_training_data(X, y)
        weights = check_weights(sample_weight, len(y), negative=True)
        X, own, weights, used = Rows(X, y, weights).of_weight()
        if used is not None and self._given():
            X = X[:, used]
        self.classes_, codes = check_labels(own, type(self).__name__, used is not None)
        check_names(self.class_weight, y)
        rows = Rows(X, codes, weights, used)
        weighted, factors = rows.with_class_weights(self, bounds=True)
        self.class_weight_ = np.ones(len(self.classes_)) if factors is None else factors
        C = float(self.C) * (np.ones(len(codes)) if weighted.weights is None else weighted.weights)
        k, cure = len(self.classes_), "take RBFClassifier, whose outputs are one a class"
        n_pairs = k * (k - 1) // 2
        check_room(_BYTES_PER_PAIR * n_pairs, f"{n_pairs:,} pairs of {k:,} classes", cure)
        pairs, more = list(combinations(self.classes_, 2)), N_FOLDS * with_probabilities(self)
        # Each fit draws a number, as scikit-learn's: a program that draws next has the same one.
        drawn = check_random_state(self.random_state).randint(np.iinfo(np.int32).max)
        progress = Progress(self, pairs, X, self.classes_[codes], more)
        with limited(self.n_jobs):
            models = self._train(rows, C, progress)
            support = models.support if used is None else used[models.support]
            vectors = np.empty((0, 0)) if self._given() else rows_of(X, models.support, np.float64)
            self._keep(support, vectors, models)
            if more:
                fixed = isinstance(self.random_state, numbers.Integral)
                seed = self.random_state if fixed else drawn
                self._probA, self._probB = self._fit_sigmoids(rows, seed, progress)
        progress.finish()
        return self

    @stage("read and validate", "X")
    def _check_training_data(self, X: Any, y: Any) -> tuple[Any, Any]:
        """Validate X and y; for a kernel function X becomes the matrix of kernel values."""
        self._sparse = False
        self._fitted_kernel = self.kernel
        for name in ("_X_fit", "n_features_in_", "feature_names_in_", "_probA", "_probB"):
            self.__dict__.pop(name, None)  # of an earlier fit
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
        self._sparse = sp.issparse(X)  # check_X makes frames of sparse columns CSR
        self.shape_fit_ = X.shape
        if self.kernel == "precomputed" and X.shape[0] != X.shape[1]:
            raise ValueError(
                "Precomputed matrix must be a square matrix."
                f" Input is a {X.shape[0]}x{X.shape[1]} matrix."
            )
        return X, y

    @stage("prepare", "samples gathered")
    def _train(self, rows: Rows, C: np.ndarray, progress: Progress) -> PairModels:
        """Train all pairs on the samples in use."""
        (X, codes, weights, _), given = rows, self._given()
        self._activation, self._gamma, self._quantizations = None, 0.0, None
        self._tol = float(self.tol)
        groups = group_samples(None if given else X, codes, weights)
        if not given:
            self._activation = self._resolve(X, weights)
            # Quantize before sorting, which makes a copy: a copy of codes is smaller.
            X = quantize_or_keep(X, self.precision)[groups.first]
            if self.precision not in FORCED:
                self._quantizations = () if X.quantization is None else (X.quantization,)
            if sp.issparse(X.values) and self.backend != "auto":
                raise ValueError(
                    f"backend={self.backend!r} works on dense tiles, and these sparse data are too "
                    "wide to be made dense: use backend='auto', which takes sparse products."
                )
            warn_if_sparse_takes_long(X.values)
            if X.quantization is None and self.gamma != "scale":
                warn_if_rounding_decides(X.values, self._activation, np.float64)
        try:
            if self.gamma == "scale" and not (given or self._gamma or self.kernel == "linear"):
                raise OutOfRange("gamma")
            stepped = progress.stepped if progress.hears_sets else None
            return self._train_pairs(X, codes, C, groups, stepped=stepped, solved=progress.solved)
        except OutOfRange:
            # scikit-learn's words, then ours.
            raise ValueError(
                "The dual coefficients or intercepts are not finite. The input data may contain "
                "large values and need to be preprocessed. "
                f"{overflow(self, rows.X, 'Kernel values')}"
            ) from None

    def _train_pairs(
        self, X: Any, codes: np.ndarray, C: np.ndarray, groups: Groups, **options: Any
    ) -> PairModels:
        """Call `train_pairs` with the parameters of the estimator."""
        return train_pairs(
            X,
            codes,
            C,
            self._activation,
            groups=groups,
            backend=self.backend,
            precision=self.precision,
            tol=self._tol,
            max_iter=self.max_iter,
            cache_bytes=2**20 * min(float(self.cache_size), _MOST_MEGABYTES),
            **options,
        )

    def _fit_sigmoids(self, rows: Rows, seed: Any, progress: Progress) -> np.ndarray:
        """Parameters of the pairs' sigmoids, from models like this one on four fifths of X."""
        (X, codes, weights, _), given = rows, self._given()
        parameters = {
            "probability": "deprecated",
            "random_state": seed,  # of no effect, but a generator would go on
            "kernel": "precomputed" if given else self.kernel,
            "gamma": 1.0 if self.kernel == "linear" else self._gamma,  # it may be infinite
            "class_weight": dict(enumerate(self.class_weight_)),
            "verbose": False,
            "n_jobs": None,
        }
        model = SVC(**parameters_of(self, SVC) | parameters)

        def outputs(train: np.ndarray, test: np.ndarray) -> np.ndarray:
            if progress.stopped:
                return np.zeros((len(test), 1))
            w = None if weights is None else weights[train]
            model.fit(X[np.ix_(train, train)] if given else X[train], codes[train], w)
            found = model._outputs(X[np.ix_(test, train)] if given else X[test])
            progress.fold_ended()
            return found

        with quiet():  # this model has given the same warnings
            return fit_sigmoids(codes, np.random.RandomState(seed), outputs)

    def _resolve(self, X: Any, weights: Any) -> Activation:
        """The kernel as an activation; sets the number that gamma stands for."""
        metric, profile = KERNELS[self.kernel]
        self._gamma = resolve_gamma(self.gamma, X, metric=metric, profile=profile, weights=weights)
        return Activation(metric, profile, self._gamma, float(self.coef0), int(self.degree))

    @stage("back and evaluate", "fitted attributes")
    def _keep(self, support: np.ndarray, vectors: Any, models: PairModels) -> None:
        """Set the fitted attributes from the trained pairs and their support vectors."""
        solutions = models.solutions
        self.support_ = support.astype(np.int32)
        self._n_support = models.n_support.astype(np.int32)
        intercepts = np.array([solution.intercept for solution in solutions])
        self._set_coefficients(models.dual_coef, intercepts)
        vectors = vectors.astype(np.float64, copy=False)
        self.support_vectors_ = sp.csr_matrix(vectors) if sp.issparse(vectors) else vectors
        steps = np.array([solution.steps for solution in solutions], np.int64)
        # As scikit-learn's, if that holds them.
        self.n_iter_ = steps.astype(np.int32) if steps.max(initial=0) < 2**31 else steps
        self.violation_ = np.array([solution.violation for solution in solutions])
        self.dual_gap_ = np.array([solution.gap for solution in solutions])
        self.objective_ = np.array([solution.objective for solution in solutions])
        self.fit_status_ = int(not all(solution.converged for solution in solutions))
        self.backend_ = models.backend
        self.backend_info_ = models.description
        self._cache = {}  # filled in place: scikit-learn checks that predictions set no attribute

    def _set_coefficients(self, dual_coef: np.ndarray, intercept: np.ndarray) -> None:
        """Set the coefficients that predictions use, and the public attributes that report them."""
        self._dual_coef_, self._intercept_ = dual_coef, intercept
        # Internally the first class is +1; for two classes users see the second as +1.
        sign = -1.0 if len(self.classes_) == 2 else 1.0
        shown = sign * dual_coef
        self.dual_coef_ = sp.csr_matrix(shown) if self._sparse else shown
        self.intercept_ = sign * intercept

    @where_X_is
    def decision_function(self, X: Any) -> np.ndarray:
        """Outputs of the pairs, or a score for each class computed from them.

        Parameters
        ----------
        X : array-like or CSR of shape (n_samples, n_features)
            For "precomputed" the kernel matrix (n_samples, n_training_samples).

        Returns
        -------
        scores : ndarray of shape (n_samples,), (n_samples, n_pairs) or (n_samples, n_classes)
            For two classes one number, positive for the second class. For more, "ovo" gives the
            pairs' outputs, positive for the first class of the pair; "ovr" gives each class its
            votes, plus its summed outputs squeezed into (-1/3, 1/3).
        """
        check_is_fitted(self)
        n_classes = len(self.classes_)
        if n_classes > 2 and self.decision_function_shape == "ovr":
            return self._answers(X, n_classes, lambda at: class_scores(to_host(at), n_classes))
        outputs = self._outputs(X)
        return -outputs[:, 0] if n_classes == 2 else outputs

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
        check_is_fitted(self)
        if self.break_ties and self.decision_function_shape == "ovo":
            raise ValueError("break_ties must be False when decision_function_shape is 'ovo'")
        n_classes = len(self.classes_)

        def winners(outputs: Any) -> Any:
            with stage("back and evaluate", "votes"):
                if self.break_ties and n_classes > 2:
                    return class_scores(to_host(outputs), n_classes).argmax(axis=1)
                return votes(outputs > 0, n_classes).argmax(axis=1)

        return chosen(self.classes_, self._answers(X, 1, winners))

    @available_if(_has_probabilities)
    @where_X_is
    def predict_proba(self, X: Any) -> np.ndarray:
        """Class probabilities; only available with ``probability=True``.

        Parameters
        ----------
        X : array-like or CSR of shape (n_samples, n_features)
            For "precomputed" the kernel matrix (n_samples, n_training_samples).

        Returns
        -------
        probabilities : ndarray of shape (n_samples, n_classes)
        """
        check_is_fitted(self)
        if not self._probA.size:
            raise NotFittedError(
                "predict_proba is not available when fitted with probability=False: fit again."
            )

        def probabilities(outputs: Any) -> np.ndarray:
            won = pair_probabilities(to_host(outputs), self._probA, self._probB)
            return class_probabilities(won, len(self.classes_))

        return self._answers(X, len(self.classes_), probabilities)

    def to_sklearn(self) -> ScikitLearnSVC:
        """Convert the fitted model to scikit-learn's class, for code that knows only that.

        Returns
        -------
        model : sklearn.svm.SVC
            With the same support vectors, and with those parameters that scikit-learn's class has.

        Raises
        ------
        ValueError
            If scikit-learn has no such kernel ("laplacian").
        NotFittedError
            Before ``fit``.
        """
        check_is_fitted(self)
        kernel = "rbf" if self._fitted_kernel == "gaussian" else self._fitted_kernel
        if not callable(kernel) and kernel not in _THEIR_KERNELS:
            raise ValueError(
                f"scikit-learn's SVC has no kernel {kernel!r}: to_sklearn takes one of "
                f"{list(_THEIR_KERNELS)} or a function such as "
                "sklearn.metrics.pairwise.laplacian_kernel."
            )
        parameters = parameters_of(self, scikit_learn.SVC) | {"kernel": kernel}
        if (activation := self._activation) is not None:  # parameters may have changed since fit
            parameters |= {"coef0": activation.coef0, "degree": activation.degree}
        result = scikit_learn.SVC(**parameters)
        _copy(self, result)
        # LIBSVM reads these arrays by address. They are the coefficients that predictions use:
        # users may have changed dual_coef_ and intercept_, which only report them.
        own = np.array(self._dual_coef_, np.float64, order="C")
        vectors: Any = self.support_vectors_
        if self._sparse:
            vectors = sp.csr_matrix(canonical_csr(vectors))
            # With its zeros: scikit-learn passes its numbers to LIBSVM as a dense matrix.
            full = sp.csr_matrix(np.ones(own.shape))
            full.data[:] = own.ravel()
            own = full
        else:
            vectors = vectors.toarray() if sp.issparse(vectors) else vectors
            vectors = np.ascontiguousarray(vectors, np.float64)
        # For two classes scikit-learn shows the negative of LIBSVM's coefficients, as SVC does.
        sign = -1 if len(self.classes_) == 2 else 1
        result.support_vectors_ = vectors
        result.dual_coef_, result._dual_coef_ = sign * own, own
        result._intercept_ = np.array(self._intercept_, np.float64)
        result.intercept_ = sign * result._intercept_
        result._num_iter = self.n_iter_
        result._sparse, result._effective_probability = self._sparse, bool(self._probA.size)
        if callable(kernel):
            setattr(result, _X_FIT, self._X_fit)
        return result

    @classmethod
    def from_sklearn(cls, model: ScikitLearnSVC) -> Self:
        """Convert a model fitted by scikit-learn; the hidden layer evaluates it.

        Parameters
        ----------
        model : sklearn.svm.SVC
            Fitted.

        Returns
        -------
        model : SVC
            With the same parameters and support vectors; without ``violation_``, ``dual_gap_`` and
            ``objective_``, which scikit-learn does not keep.

        Raises
        ------
        TypeError
            If the model is of another class.
        ValueError
            If the model has classes that it was not trained on, because all their samples had
            weight 0.
        NotFittedError
            If the model is not fitted.

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
        if not isinstance(model, scikit_learn.SVC):
            raise TypeError(
                f"from_sklearn takes a fitted sklearn.svm.SVC, got {type(model).__module__}."
                f"{type(model).__name__}."
            )
        check_is_fitted(model)
        if len(model.n_support_) < len(model.classes_):
            raise ValueError(
                f"The model names {len(model.classes_)} classes and was trained for "
                f"{len(model.n_support_)}, as the others' samples had weight 0: it predicts "
                "wrong classes. Fit it without those samples."
            )
        result = cls(**parameters_of(model, cls))
        _copy(model, result)
        result.support_vectors_ = model.support_vectors_
        result._sparse = sp.issparse(model.dual_coef_)
        own = model._dual_coef_  # used in its predictions; users may have changed the public ones
        own = own.toarray() if sp.issparse(own) else own.copy()
        result._set_coefficients(own, model._intercept_.copy())
        result._fitted_kernel, result._activation, result._quantizations = model.kernel, None, None
        result._tol, result._cache = float(model.tol), {}
        result.backend_ = "none"
        if callable(model.kernel):
            result._X_fit = getattr(model, _X_FIT)
        elif model.kernel != "precomputed":
            result._activation = Activation(
                *KERNELS[model.kernel], float(model._gamma), float(model.coef0), int(model.degree)
            )
            result.backend_ = get_backend(result.backend, on_host=ON_HOST)[0].name
        result.backend_info_ = f"{result.backend_} (trained by scikit-learn)"
        return result

    @property
    def n_support_(self) -> np.ndarray:
        """Support vectors of each class."""
        return self._after_fit("n_support_")

    @property
    def coef_(self) -> Any:
        """Weights of the features, (n_pairs, n_features); only for kernel="linear"."""
        if getattr(self, "_fitted_kernel", self.kernel) != "linear":
            raise AttributeError("coef_ is only available when using a linear kernel")
        check_is_fitted(self)
        W = pair_weights(np.asarray(self._dual_coef_), self._n_support).dense()
        if len(self.classes_) == 2:
            W = -W
        coef: Any = (self.support_vectors_.T @ W).T
        sparse = sp.issparse(self.support_vectors_)
        coef = sp.csr_matrix(coef) if sparse else np.ascontiguousarray(coef)
        (coef.data if sparse else coef).flags.writeable = False
        return coef

    @property
    def probA_(self) -> np.ndarray:
        """Factors of the pairs' outputs in their sigmoids; empty without ``probability=True``."""
        _warn_deprecated("Attribute `probA_`")
        return self._after_fit("probA_")

    @property
    def probB_(self) -> np.ndarray:
        """Constants of the pairs' sigmoids; empty without ``probability=True``."""
        _warn_deprecated("Attribute `probB_`")
        return self._after_fit("probB_")

    def _after_fit(self, name: str) -> Any:
        if not hasattr(self, "_n_support"):
            raise AttributeError(f"{name} is available only after fit.")
        return getattr(self, f"_{name[:-1]}")

    def _given(self) -> bool:
        """Whether the kernel of the model is a matrix, not a function of the hidden layer."""
        return callable(self._fitted_kernel) or self._fitted_kernel == "precomputed"

    def _call_kernel(self, X: Any) -> np.ndarray:
        K = self._fitted_kernel(X, self._X_fit)
        K = np.asarray(K.toarray() if sp.issparse(K) else K, dtype=np.float64, order="C")
        if K.ndim != 2 or len(K) != _num_samples(X):
            raise ValueError(
                f"kernel={self._fitted_kernel!r} must return a matrix of {_num_samples(X)} rows, "
                f"one for each sample, got shape {K.shape}."
            )
        return K

    def _outputs(self, X: Any) -> np.ndarray:
        """Outputs of the pairs (N, n_pairs), positive for the first class of the pair."""
        return self._pair_outputs(self._check_samples(X, len(self._intercept_)))

    def _answers(self, X: Any, n_columns: int, answer: Callable[[Any], Any]) -> Any:
        """Answers to the outputs of the pairs, which are made and given up block by block.

        ``answer`` returns a row, of so many columns, for each row of outputs.
        """
        X = self._check_samples(X, n_columns)
        most = working_bytes() / (4 * _BYTES_PER_OUTPUT * len(self._intercept_))
        step = max(_LEAST_ROWS, int(most))  # gen_batches of scikit-learn takes as long as a sample
        starts = range(0, max(1, X.shape[0]), step)
        found = [answer(self._pair_outputs(X[start : start + step])) for start in starts]
        return found[0] if len(found) == 1 else library(found[0]).concatenate(found)

    @stage("back and evaluate", "scores")
    def _pair_outputs(self, X: Any) -> Any:
        with limited(self.n_jobs):
            layer, weights = self._prepared()
            if layer is None:
                outputs = row_products(X[:, self.support_], weights)
            else:
                outputs = layer.matvec(X, weights).astype(np.float64, copy=False)
        outputs += beside(outputs, self._intercept_)
        check_finite(self, X, outputs=outputs)
        return outputs

    def _check_samples(self, X: Any, n_columns: int) -> Any:
        """Validate samples, and check that there is room for so many columns of outputs."""
        if callable(self._fitted_kernel):
            X = self._call_kernel(X)
        else:
            X = (check_X if self._sparse or self._given() else check_samples)(self, X)
            if sp.issparse(X) and not self._sparse:
                raise ValueError(
                    f"cannot use sparse input in {type(self).__name__!r} trained on dense data"
                )
        if self._given() and X.shape[1] != self.shape_fit_[0]:
            raise ValueError(
                f"X.shape[1] = {X.shape[1]} should be equal to {self.shape_fit_[0]}, "
                "the number of samples at training time"
            )
        if not self._given() and self._n_support.sum() != self.support_vectors_.shape[0]:
            raise ValueError(f"The internal representation of {type(self).__name__} was altered")
        if not is_resident(X):
            shape, cure = (X.shape[0], n_columns), "predict fewer samples at a time"
            check_result(shape, np.dtype(np.float64), "outputs", cure, copies=2)
        return X

    def _prepared(self) -> tuple[HiddenLayer | SparseLayer | None, Any]:
        """The layer for predictions, on the backend selected now, and weights as it takes them."""
        V, dual_coef = self.support_vectors_, self._dual_coef_
        backend = None if self._activation is None else get_backend(self.backend, on_host=ON_HOST)
        made_of = V, dual_coef, "none" if backend is None else backend[0].name, self.precision
        ready = self._cache.get("ready")
        if ready is None or not all(map(operator.is_, ready[0], made_of)):
            W = pair_weights(np.asarray(dual_coef), self._n_support)
            if self._activation is None:
                made: Any = None, W.dense()
            else:
                made = support_layer(
                    V,
                    W,
                    self._activation,
                    backend=backend,
                    precision=self.precision,
                    quantizations=self._quantizations,
                    tol=self._tol,
                )
            ready = self._cache["ready"] = made_of, made
        return ready[1]

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_cache": {}}


def parameters_of(model: Any, cls: type) -> dict[str, Any]:
    """The parameters of a model that class ``cls`` has too.

    They are read as attributes, because the constructor of a subclass may not take all of them.
    """
    own = {
        name: getattr(model, name)
        for name in inspect.signature(cls).parameters
        if hasattr(model, name)
    }
    if not with_probabilities(model):  # the default differs between versions
        own.pop("probability", None)
    return own


def _warn_deprecated(what: str) -> None:
    """Give scikit-learn's deprecation warning, if the installed version gives it."""
    parameters = scikit_learn.SVC().get_params()
    if parameters.get("probability", "deprecated") == "deprecated":
        warn(
            f"{what} was deprecated in scikit-learn 1.9, which will remove it in 1.11. "
            f"Use `{_CALIBRATED}` instead of `SVC(probability=True)`",
            FutureWarning,
        )


def _copy(source: Any, target: Any) -> None:
    for name in _SAME:
        if hasattr(source, name):  # some are there only for some kernels or data
            setattr(target, name, getattr(source, name))


class Progress:
    """Reports every solved pair and every fold; the solver's threads call it.

    Each pair or fold is a task of scikit-learn's callbacks, so a progress bar is one line for the
    whole fit. A callback that asks to stop ends all pairs and folds that have not begun. If there
    is only one pair and no fold, its working sets are the tasks, and a callback can end the pair.

    Parameters
    ----------
    estimator : SVC
    pairs : list of (label, label)
        Class labels of each pair.
    X, y
        Passed to the callbacks.
    n_folds : int, default=0
        Number of models to be trained for probabilities.
    """

    def __init__(
        self, estimator: Any, pairs: Sequence[Any], X: Any, y: Any, n_folds: int = 0
    ) -> None:
        self.estimator, self.pairs = estimator, [f"{a!s} vs {b!s}" for a, b in pairs]
        self._data = {"estimator": estimator, "X": X, "y": y}
        self._lock = threading.Lock()
        self._n_folds, self._folds = n_folds, 0
        self._unfinished, self._reasons = list[str](), set[str]()
        self._root, self.stopped = None, False
        self._of_sets = len(pairs) + n_folds == 1
        if hasattr(estimator, "_init_callback_context"):
            self._root = estimator._init_callback_context(
                max_subtasks=None if self._of_sets else len(pairs) + n_folds,
                sequential_subtasks=self._of_sets,
            )
            self._root.call_on_fit_task_begin(**self._data)
        self._heard = self._root is not None and bool(getattr(estimator, "_skl_callbacks", None))
        # Whether anyone listens to `stepped`.
        self.hears_sets = (self._heard and self._of_sets) or estimator.verbose >= 2

    def stepped(self, p: int, steps: int, violation: float) -> bool:
        """A working set of pair p begins; True to end the pair."""
        with self._lock:
            say(self.estimator, f"{self.pairs[p]}: {steps} steps, violation {violation:.3g}", 2)
            if self._of_sets:
                self.stopped |= self._ended("working set")
            return self._of_sets and self.stopped

    def solved(self, p: int, solution: Any) -> bool:
        """Pair p is done; True to begin no other."""
        with self._lock:
            if self.estimator.verbose:  # the text takes microseconds, and there may be many pairs
                say(
                    self.estimator,
                    f"{self.pairs[p]}: {solution.steps} steps, violation {solution.violation:.3g}, "
                    f"duality gap {solution.gap:.3g}, {np.count_nonzero(solution.beta)} support "
                    "vectors",
                )
            if not solution.converged:
                self._unfinished.append(f"{self.pairs[p]} by {solution.violation:.3g}")
                limit = self.estimator.max_iter
                self._reasons.add(f"max_iter={limit}" if solution.steps == limit else _STUCK)
            # After a stop, pairs that have not begun come here without a step.
            if not self._of_sets and (solution.steps or not self.stopped):
                self.stopped |= self._ended(self.pairs[p], p)
            return self.stopped

    def fold_ended(self) -> None:
        """A model for probabilities has been trained."""
        self._folds += 1
        name = f"probabilities, fold {self._folds} of {self._n_folds}"
        say(self.estimator, name)
        self.stopped |= self._ended(name, len(self.pairs) + self._folds)

    def finish(self) -> None:
        """End the callbacks' task and warn of the pairs that did not converge."""
        if self._root is not None:
            self._root.call_on_fit_task_end(**self._data)
        if not self._unfinished:
            return
        tol, n = self.estimator.tol, len(self._unfinished)
        why = "by a callback" if self.stopped else " or ".join(sorted(self._reasons))
        which = "; ".join(self._unfinished[:_NAMED])
        more = f" and {n - _NAMED} more" if n > _NAMED else ""
        warn(
            f"Solver terminated early ({why}).  Consider pre-processing your data "
            "with StandardScaler or MinMaxScaler. Optimality is violated by more than "
            f"tol={tol} for the class pairs {which}{more}.",
            ConvergenceWarning,
        )

    def _ended(self, name: str, task_id: int | None = None) -> bool:
        """Tell the callbacks of a task that is done; True if one asks to stop."""
        if not self._heard:
            return False
        task = self._root.subcontext(task_name=name, task_id=task_id)  # type: ignore[union-attr]
        task.call_on_fit_task_begin(**self._data)
        return bool(task.call_on_fit_task_end(**self._data))


def check_parameters(estimator: Any) -> None:
    """Check every parameter of an SVC.

    Raises
    ------
    ValueError, TypeError
        The message names the parameter, its value and what is allowed.
    """
    if estimator.probability != "deprecated":
        check_flag("probability", estimator.probability)
        _warn_deprecated("The `probability` parameter")
    if estimator.C != np.inf:
        check_number("C", estimator.C, numbers.Real, 0, above=True)
    if not callable(estimator.kernel):
        check_option("kernel", estimator.kernel, (*KERNELS, "precomputed"), "or a function")
    # 0 makes the kernel constant, but scikit-learn allows it.
    if not (isinstance(estimator.gamma, numbers.Real) and estimator.gamma == 0):
        names = "scale", "auto"
        check_option_or_number("gamma", estimator.gamma, names, numbers.Real, 0, above=True)
    check_number("degree", estimator.degree, numbers.Integral, 0)
    check_number("coef0", estimator.coef0, numbers.Real, -np.inf)
    check_number("tol", estimator.tol, numbers.Real, 0, above=True)
    check_number("cache_size", estimator.cache_size, numbers.Real, 0, above=True)
    check_number("max_iter", estimator.max_iter, numbers.Integral, -1)
    check_option("decision_function_shape", estimator.decision_function_shape, ("ovr", "ovo"))
    check_random_state(estimator.random_state)
    check_common_parameters(estimator)
