"""Checks that the estimators share: data, labels, weights, the kernel's parameters.

Data may be arrays of any library. CuPy arrays are used as they are; arrays of other libraries on a
GPU become CuPy arrays without a copy. Arrays of other libraries on the host become NumPy arrays if
scikit-learn's ``array_api_dispatch`` is set; without it they are array-likes, like a list. Fitting
uses NumPy arrays; predictions use CuPy arrays as they are.
"""

from __future__ import annotations

import functools
import numbers
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
from sklearn import get_config  # type: ignore[attr-defined]
from sklearn.externals.array_api_compat import array_namespace, is_array_api_obj
from sklearn.utils._array_api import _convert_to_numpy
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, validate_data

from gpurbf.centers import CENTERS, COUNTS
from gpurbf.data.exact_sums import exact_sum
from gpurbf.data.row_blocks import over_rows
from gpurbf.layer.activation import METRICS, PRECISIONS, PROFILES
from gpurbf.runtime.arrays import is_resident, library, to_host
from gpurbf.runtime.checks import (
    check_flag,
    check_option,
    check_option_or_number,
    check_verbose,
    plain,
)
from gpurbf.runtime.errors import OutOfRange, warn
from gpurbf.runtime.stages import count, stage
from gpurbf.runtime.threads import limited, parallel_rows

# uint8 stays: it is the integer quantization itself, and eight times smaller than float64.
DTYPES = (np.float64, np.float32, np.uint8)


# Allowed weights, besides 0. Their products with each other and with activations neither overflow
# nor underflow in float32, so only the ratios of weights matter. AdaBoost's go down to 2.2e-16.
_LEAST, _MOST = 1e-16, 1e15

# Products of a larger alpha may overflow.
_MOST_ALPHA = 1e150

# So many numbers, or more, are checked by several threads, each so many at a time.
_MANY = 1 << 20


def on_host(A: Any) -> Any:
    """Convert an array of any library to NumPy; anything else is returned as it is."""
    return to_host(own_array(A))


def own_array(A: Any) -> Any:
    """Convert an array to CuPy or NumPy; it is returned as it is if no conversion is needed."""
    if isinstance(A, np.ndarray):
        return A
    if is_resident(A):
        xp = library(A)
        return A if isinstance(A, xp.ndarray) else xp.asarray(A)
    if get_config()["array_api_dispatch"] and is_array_api_obj(A):
        return _convert_to_numpy(A, array_namespace(A))
    return A


@stage("read and validate", "X")
def check_X(estimator: Any, X: Any, *, reset: bool = False, **options: Any) -> Any:
    """Validate X (N, n): finite float64, float32 or uint8, dense or CSR; with ``y=``, both."""
    X, options = on_host(X), {name: on_host(value) for name, value in options.items()}
    if sp.issparse(X) and X.dtype == np.uint8 and not getattr(X, "has_canonical_format", True):
        X = X.astype(np.int64).tocsr()  # the sum of an input's entries may be beyond 255
        X.sum_duplicates()
        if X.data.max(initial=0) <= 255:  # entries were only not sorted
            X = X.astype(np.uint8)
    if getattr(X, "dtype", None) != np.uint8:  # uint8 is finite and stays: it is not read
        count(nbytes=getattr(X, "nbytes", 0))
    # scikit-learn's validation takes 50 µs to begin, half as long as a prediction of one sample.
    if _is_plain(estimator, X, reset):
        if all(
            name == "y" and _are_plain_labels(y) and len(y) == len(X) for name, y in options.items()
        ):
            if reset:
                estimator.n_features_in_ = X.shape[1]
            return (X, options["y"]) if options else X
        options["ensure_all_finite"] = False
    return validate_data(
        estimator, X, reset=reset, accept_sparse="csr", dtype=list(DTYPES), **options
    )


def _is_plain(estimator: Any, X: Any, reset: bool) -> bool:
    """Whether validate_data would return these samples as they are, without a warning."""
    return (
        type(X) is np.ndarray
        and X.ndim == 2
        and X.size > 0
        and X.dtype in DTYPES
        and not hasattr(estimator, "feature_names_in_")
        and (reset or X.shape[1] == getattr(estimator, "n_features_in_", None))
        and (X.dtype == np.uint8 or _is_finite(estimator, X))
    )


def _is_finite(estimator: Any, X: np.ndarray) -> bool:
    """Whether all numbers are finite, or if they are many, sums of them by several threads."""
    if X.size < _MANY:
        return bool(np.isfinite(X).all())
    sums = []

    def add(rows: slice) -> None:
        with np.errstate(all="ignore"):
            sums.append(X[rows].sum())

    with limited(getattr(estimator, "n_jobs", None)):
        parallel_rows(add, len(X), -(-_MANY // X.shape[1]))
    return bool(np.isfinite(sums).all())


def _are_plain_labels(y: Any) -> bool:
    return type(y) is np.ndarray and y.ndim == 1 and y.dtype.kind in "iub"


def check_samples(estimator: Any, X: Any) -> Any:
    """Validate samples for a fitted estimator as `check_X` does; GPU arrays stay as they are."""
    if not is_resident(X):
        return check_X(estimator, X)
    if X.ndim != 2 or X.shape[1] != estimator.n_features_in_:
        raise ValueError(
            f"X has shape {X.shape}, but {type(estimator).__name__} is expecting "
            f"{estimator.n_features_in_} features as input."
        )
    if not X.shape[0]:  # scikit-learn's words
        raise ValueError(f"Found array with 0 sample(s) (shape={X.shape}) on a GPU.")
    if X.dtype not in DTYPES:
        raise ValueError(f"X on a GPU must be float64, float32 or uint8, got {X.dtype}.")
    return X


@stage("read and validate", "weights")
def check_weights(
    sample_weight: Any, n_samples: int, *, negative: bool = False, part: bool = False
) -> np.ndarray | None:
    """Validate sample weights: float64 (N,), or None.

    ``negative``: weights may be negative and then count as zero. They are factors of SVC's bounds,
    which are not summed, so their range is not checked. ``part``: the samples are only a part, so
    it may have no weight above zero.

    Raises
    ------
    ValueError
        If the weights have another shape, are not finite, are negative without ``negative``, or
        none is > 0 without ``part``; or if, without ``negative``, they are too large or too small
        to be summed.
    """
    if sample_weight is None:
        return None
    sample_weight = on_host(sample_weight)
    if isinstance(sample_weight, numbers.Number):
        weights = np.full(n_samples, sample_weight, dtype=np.float64)
    else:
        weights = np.asarray(sample_weight, dtype=np.float64)
    if weights.shape != (n_samples,):
        raise ValueError(
            f"sample_weight must be 1D with one number per sample: shape ({n_samples},), "
            f"got {weights.shape}."
        )
    if not np.isfinite(weights).all():
        raise ValueError("sample_weight contains NaN or infinity: every weight must be finite.")
    if not negative and (weights < 0).any():
        raise ValueError("Negative values in sample_weight: every weight must be >= 0.")
    if not part and not (weights > 0).any():
        raise ValueError(
            "Invalid input - all samples have zero or negative weights. Give samples of two "
            "classes or more a weight > 0."
        )
    if not negative and (bad := weights[_out_of_range(weights)]).size:
        raise ValueError(
            f"sample_weight has {bad[0]:.3g}: weights other than 0 must be from {_LEAST:g} to "
            f"{_MOST:g}. Divide them by their mean, and set to 0 those that should not count."
        )
    return np.maximum(weights, 0.0) if negative else weights


def _out_of_range(weights: np.ndarray) -> np.ndarray:
    return (weights != 0) & ~((weights >= _LEAST) & (weights <= _MOST))


@stage("read and validate", "y")
def check_labels(y: Any, name: str, masked: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """The sorted classes and each label's number; `masked`: some samples have weight 0."""
    y = on_host(y)
    classes = np.unique(y) if _are_plain_labels(y) else None
    # Integers that repeat are class labels: nothing to refuse, and no warning that they may be
    # measurements. scikit-learn's check of other labels takes longer than training on a few
    # samples.
    if classes is None or 2 * len(classes) > len(y):
        check_classification_targets(y)
        classes = np.unique(y)
    if len(classes) < 2:
        # scikit-learn's wording, where its tests of SVC require it.
        if masked:
            raise ValueError(
                "Invalid input - all samples with positive weights belong to the same class label: "
                f"{classes.tolist()[0]!r}; {name} needs at least 2 classes."
            )
        raise ValueError(
            f"The number of classes has to be greater than one for {name}; got 1 class: the data "
            f"contains only one class, {classes.tolist()[0]!r}."
        )
    # By binary search: sorting many labels would take several times their memory.
    return classes, np.searchsorted(classes, y)


class Rows(NamedTuple):
    """Samples on the host, their class numbers or None, and their weights (None: 1).

    ``places`` are the numbers of the rows among those given; None: these are all.
    """

    X: Any
    y: Any
    weights: Any
    places: Any = None

    def at(self, some: Any) -> Rows:
        """Some of the rows."""
        return Rows._make(None if own is None else own[some] for own in self)

    def of_weight(self) -> Rows:
        """The rows of weight above zero."""
        if self.weights is None or self.weights.all():
            return self
        used = np.flatnonzero(self.weights)
        rows = self.at(used)
        return rows._replace(places=used) if self.places is None else rows

    @stage("prepare", "weights")
    def with_class_weights(
        self, estimator: Any, *, bounds: bool = False
    ) -> tuple[Rows, np.ndarray | None]:
        """The rows, weighted by class too, and the factors of the classes, see `class_factors`.

        Without ``class_weight`` these are the rows as they are, and None.
        """
        if estimator.class_weight is None:
            return self, None
        mass = functools.partial(class_mass, self.y, self.weights, len(estimator.classes_))
        factors = class_factors(estimator.class_weight, estimator.classes_, mass, bounds=bounds)
        return self.times(factors), factors

    def times(self, factors: np.ndarray) -> Rows:
        """The rows, their weights multiplied by the factors of their classes."""
        own = factors[self.y]
        return self._replace(weights=own if self.weights is None else own * self.weights)


def training_data(estimator: Any, X: Any, y: Any, sample_weight: Any) -> Rows:
    """Validate all samples of a fit, which must have two classes or more; sets ``classes_``.

    Returns the rows without those of weight 0: nothing may depend on them.
    """
    rows, labels = _weighted(estimator, X, y, sample_weight, first=True)
    name = type(estimator).__name__
    estimator.classes_, codes = check_labels(rows.y, name, rows.places is not None)
    check_names(estimator.class_weight, labels)
    return rows._replace(y=codes)


@stage("read and validate", "X")
def _weighted(
    estimator: Any, X: Any, y: Any, sample_weight: Any, *, first: bool
) -> tuple[Rows, np.ndarray]:
    """The rows of weight above zero, with their labels; the labels of all."""
    X, y = check_X(estimator, X, y=y, reset=first)
    return Rows(X, y, check_weights(sample_weight, X.shape[0], part=not first)).of_weight(), y


def stream_data(
    estimator: Any, X: Any, y: Any, classes: Any, sample_weight: Any, *, first: bool, learns: str
) -> Rows:
    """Validate a batch of a stream, whose first batch names all classes; sets ``classes_``.

    ``learns`` says what depends on the first batch more than on others; nothing if it is empty.

    Raises
    ------
    ValueError
        If `classes` is missing in the first batch, differs in a later one, or lacks a label.
    """
    if estimator.class_weight == "balanced":
        raise ValueError("partial_fit cannot balance classes: give a dict, or sample_weight.")
    if not first:
        known, classes = estimator.classes_, on_host(classes)
        if classes is not None and not np.array_equal(np.unique(classes), known):
            raise ValueError(
                f"classes={np.unique(classes).tolist()} is not what the first call gave: "
                f"{known.tolist()}."
            )
    elif classes is None:
        raise ValueError("The first call of partial_fit needs classes=, the labels of all batches.")
    elif np.ndim(labels := on_host(classes)) != 1 or not len(labels):
        raise ValueError(f"classes must be an array of the labels of all batches, got {classes!r}.")
    else:
        # Each label twice: scikit-learn takes many labels that occur once for a regression target.
        known, _ = check_labels(np.repeat(labels, 2), type(estimator).__name__)
    check_names(estimator.class_weight, known)
    rows, _ = _weighted(estimator, X, y, sample_weight, first=first)
    unknown = np.setdiff1d(rows.y, known)
    if len(unknown):
        raise ValueError(f"Labels {unknown.tolist()} are not among classes={known.tolist()}.")
    if first and learns and (n_known := len(np.unique(rows.y))) < len(known):
        warn(
            f"The first batch has samples of {n_known} of {len(known)} classes. {learns}: shuffle "
            "the samples before."
        )
    estimator.classes_ = known
    return rows._replace(y=np.searchsorted(known, rows.y))


def class_mass(codes: np.ndarray, weights: np.ndarray | None, n_classes: int) -> np.ndarray:
    """The total weight of each class, summed exactly: integers or fractions."""
    if weights is None:
        return np.bincount(codes, minlength=n_classes)
    return np.array([exact_sum(weights[codes == c]) for c in range(n_classes)], object)


def check_names(class_weight: Any, labels: np.ndarray) -> None:
    """Refuse a dict that lacks a class and names one that is not among the labels, a misspelling.

    The labels are those of all samples: a dict may name a class whose samples have weight 0.
    """
    if isinstance(class_weight, Mapping):
        names = sorted(set(labels.tolist()), key=str)
        others = [name for name in names if name not in class_weight]
        if others and len(names) - len(others) != len(class_weight):
            raise ValueError(f"The classes, {others}, are not in class_weight")


def class_factors(
    class_weight: Any,
    classes: np.ndarray,
    mass: Callable[[], np.ndarray],
    *,
    bounds: bool = False,
) -> np.ndarray:
    """The factor of each class; "balanced" makes the classes' weights, ``mass()``, equal.

    Only "balanced" calls ``mass``, see `class_mass`. ``bounds``: the factors are those of SVC's
    bounds, which must not be zero but may be infinite. A dict has passed `check_names`.
    """
    if isinstance(class_weight, str) and class_weight == "balanced":
        found = mass().astype(float)
        if not np.isfinite(total := found.sum()):
            raise ValueError(
                "class_weight='balanced' needs the sum of sample_weight, which is beyond float64: "
                "divide the weights by their mean."
            )
        return total / (len(classes) * found)
    if isinstance(class_weight, Mapping):
        # Not by compute_class_weight: in scikit-learn 1.9 it takes 0 for the label "0".
        factors = np.array([class_weight.get(name, 1.0) for name in classes.tolist()], np.float64)
        allowed = "> 0" if bounds else f"0, or from {_LEAST:g} to {_MOST:g}"
        for c in np.flatnonzero(~(factors > 0) if bounds else _out_of_range(factors)):
            raise ValueError(
                f"class_weight of {plain(classes[c])!r} must be {allowed}, got {factors[c]:g}. To "
                "leave a class out, give its samples sample_weight 0, or do not pass them."
            )
        if not factors.any():
            raise ValueError("class_weight is 0 for every class: one or more must be > 0.")
        return factors
    raise ValueError(f"class_weight must be None, 'balanced' or a dict, got {class_weight!r}.")


@contextmanager
def finite(estimator: Any, X: Any) -> Iterator[None]:
    """Turn an overflow in the block into an error that names the column of X and the remedy."""
    try:
        with np.errstate(under="ignore"):  # as ever, whatever the caller's np.seterr raises
            yield
    except OutOfRange as error:
        raise overflow(estimator, X, str(error)) from None


def check_finite(estimator: Any, X: Any, **results: Any) -> None:
    """Refuse results of data X that are NaN or infinite.

    Raises
    ------
    ValueError
        The message names the column of X with the largest numbers, and the remedy.
    """
    for name, values in results.items():
        with np.errstate(all="ignore"):
            # A sum takes no memory; one of finite numbers may overflow.
            if not (np.isfinite(float(values.sum())) or bool((values - values == 0).all())):
                raise overflow(estimator, X, name)


def overflow(estimator: Any, X: Any, name: str) -> ValueError:
    """The error for data whose squares, or sums of them, overflow or vanish."""
    largest = over_rows(_largest, np.maximum, X, rows=X.shape[0], name="largest")
    column = int(largest.argmax())
    names = getattr(estimator, "feature_names_in_", None)
    called = "" if names is None else f" ({names[column]!r})"
    gamma = getattr(estimator, "gamma", "scale")
    times = "" if isinstance(gamma, str) else f", times gamma={gamma:g},"
    kernel = getattr(estimator, "kernel", None)
    if not np.isfinite(largest[column]):  # samples on a GPU, or whose check is turned off
        found = f"column {column}{called} of X has NaN or infinity: drop such samples or fill them"
        if callable(kernel) and not hasattr(estimator, "metric"):  # SVC's: these are its values
            found = f"kernel={kernel!r} gives NaN or infinity"
        return ValueError(f"{name} cannot be computed: {found}.")
    own = f" Or kernel={kernel!r} gives NaN or such numbers." if callable(kernel) else ""
    alphas = getattr(estimator, "alphas", getattr(estimator, "alpha", None))
    if alphas is not None and (alpha := np.max(alphas)) > _MOST_ALPHA:
        own += f" Or alpha={alpha:g} is too large."
    if not isinstance(getattr(estimator, "centers", ""), str):
        own += " Or the centers given have such numbers."
    return ValueError(
        f"{name} cannot be computed: column {column}{called} of X reaches {largest[column]:.3g}, "
        f"and squares of such numbers{times} are too large or too small for the arithmetic. Scale "
        f"the data first, for example by sklearn.preprocessing.StandardScaler.{own}"
    )


def _largest(X: Any, y: Any, weights: Any, first: int) -> np.ndarray:
    """The largest absolute value of each column."""
    largest = abs(X).max(axis=0)
    return np.asarray(largest.toarray() if sp.issparse(largest) else on_host(largest)).ravel()


def check_layer_parameters(estimator: Any, n_features: int) -> Any:
    """Check what RBFLayer and RBFClassifier have in common; return the centers as a name or array.

    Raises
    ------
    ValueError, TypeError
        The message names the parameter, its value and what is allowed.
    """
    if not callable(estimator.kernel):
        check_option("kernel", profile_of(estimator.kernel), PROFILES, "or a function of d²")
    check_option("metric", estimator.metric, METRICS)
    check_common_parameters(estimator)
    names = "scale", "auto", "median"
    check_option_or_number("gamma", estimator.gamma, names, numbers.Real, 0, above=True)
    if isinstance(estimator.centers, str):
        check_option("centers", estimator.centers, tuple(CENTERS), "or an array (m, n)")
        check_option_or_number("n_centers", estimator.n_centers, tuple(COUNTS), numbers.Integral, 1)
        return estimator.centers
    centers = on_host(estimator.centers)
    centers = centers.toarray() if sp.issparse(centers) else np.array(centers)  # the model's own
    if centers.ndim != 2 or centers.shape[1] != n_features or not len(centers):
        raise ValueError(
            f"centers must have shape (m, {n_features}) to match X, got {centers.shape}."
        )
    return check_array(centers, dtype=list(DTYPES), input_name="centers")


def check_common_parameters(estimator: Any) -> None:
    """Check what has the same name and the same values in several estimators."""
    check_option("precision", estimator.precision, PRECISIONS)
    check_verbose(estimator.verbose)
    for name in ("break_ties", "fit_intercept", "shrinking", "shuffle"):
        check_flag(name, getattr(estimator, name, True))


def profile_of(kernel: Any) -> Any:
    """The kernel; "rbf" becomes "gaussian"."""
    return "gaussian" if isinstance(kernel, str) and kernel == "rbf" else kernel
