"""Fit and predict with a recorder on."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.utils import _safe_indexing, get_tags

from gpurbf._stages import Recorder, stage
from gpurbf.profiling.result import Profile

__all__ = ["profile", "profile_from"]

_WARM_UP = 200


def _silent(text: str) -> None:
    """Says nothing."""


def profile(
    estimator: Any, X: Any, y: Any, *, X_test: Any = None, y_test: Any = None, warm_up: bool = True
) -> Profile:
    """Fit an estimator, let it predict, and say where the time of both went.

    The work is cut along the flow of the data into six stages: read and validate; prepare (centers,
    lattice, packing, norms); host to device; hidden layer; output training; back and evaluate. For
    each there are time, bytes, operations, both rates beside what the machine was measured to
    reach, and the peak of the process's memory.

    Parameters
    ----------
    estimator : classifier
        Any of this package, by itself or inside a scikit-learn estimator. It stays as it is: a
        clone is fitted.
    X : array-like or CSR of shape (n_samples, n_features)
        Training samples. A ``numpy.memmap`` is read where it is first touched.
    y : array-like of shape (n_samples,)
        Their labels.
    X_test, y_test : optional
        What is predicted and compared; by default the training samples.
    warm_up : bool, default=True
        Fit and predict a few samples first, so that compilation is not in the times.

    Returns
    -------
    profile : Profile
        Prints as a table; has ``bottleneck`` (in words), ``rows``, ``to_frame()``, ``plot()``,
        ``accuracy`` and ``estimator``, the fitted clone.

    Notes
    -----
    A moment counts for the innermost stage that is open, so stages add up to the wall time; what no
    stage covers is shown too. Threads that work side by side divide their wall time by what each
    did. Worker *processes* are not seen. Without ``profile`` the stages cost nothing.

    Bytes are those of the arrays that go in and out, each once; operations those of the formulas,
    2Nmn for the distances of N samples to m centers. Memory is the resident set of the process, as
    Linux tells it at the ends of stages and every hundredth of a second; elsewhere it is missing.

    References
    ----------
    The cut follows Li, Zhang and Cao, 2018.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from gpurbf import RBFClassifier, profile
    >>> X, y = load_digits(return_X_y=True)
    >>> result = profile(RBFClassifier(100, random_state=0), X, y)
    >>> print(result.bottleneck)  # doctest: +SKIP
    Training: output training is 71 %: HᵀH at 62 % of the float32 ceiling.
    Prediction: hidden layer is 66 %: H and H @ W, fused at 41 % of the 8-bit products ceiling.
    """
    return _profile(estimator, None, (X, y, X_test, y_test), warm_up, _silent)


def profile_from(
    estimator: Any,
    load: Callable[[], tuple[Any, Any, Any, Any]],
    *,
    warm_up: bool = True,
    say: Callable[[str], None] = _silent,
) -> Profile:
    """As :func:`profile`, of what ``load()`` reads: X, y, X_test and y_test; says what it does."""
    say("reading")
    with Recorder() as reading, stage("read and validate", "files"):
        data = load()
    return _profile(estimator, reading, data, warm_up, say)


def _profile(
    estimator: Any,
    reading: Recorder | None,
    data: tuple[Any, Any, Any, Any],
    warm_up: bool,
    say: Callable[[str], None],
) -> Profile:
    X, y, X_test, y_test = data
    if X_test is None:
        X_test, y_test = X, y
    if warm_up and not get_tags(estimator).input_tags.pairwise:
        say("warming up; the first time, kernels are compiled")
        rows = np.union1d(np.arange(min(_WARM_UP, len(y))), np.unique(y, return_index=True)[1])
        few = _safe_indexing(X, rows)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            clone(estimator).fit(few, _safe_indexing(y, rows)).predict(few)
    model = clone(estimator)
    gc.collect()
    say("fitting")
    with Recorder() as training:
        model.fit(X, y)
    if reading is not None:
        training.include(reading)
    accuracy = None
    say("predicting")
    with Recorder() as prediction:
        predicted = model.predict(X_test)
        if y_test is not None:
            with stage("back and evaluate", "accuracy"):
                accuracy = float(np.mean(predicted == np.asarray(y_test)))
    return Profile(model, X, X_test, accuracy, training, prediction)
