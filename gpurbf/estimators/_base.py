"""Base of all estimators: transactions, pickles, callbacks, results in the array library of X.

Predictions are arrays of the library of X, see `_validation`; fitted attributes are NumPy arrays.
"""

from __future__ import annotations

import functools
import inspect
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, TypeVar

import numpy as np
from sklearn.externals.array_api_compat import array_namespace, device
from sklearn.utils.metaestimators import available_if

from gpurbf import __version__
from gpurbf.data.quantize import Quantization
from gpurbf.estimators._validation import on_host, own_array
from gpurbf.layer.activation import Activation
from gpurbf.runtime.arrays import beside, is_resident
from gpurbf.runtime.errors import warn
from gpurbf.solvers.ridge.normal_equations import NormalEquations

Method = TypeVar("Method", bound=Callable[..., Any])


def transaction(method: Method) -> Method:
    """Run the method on a draft of the estimator, which replaces the estimator at the end.

    The draft is a new object with the same attributes. Any exception, Ctrl-C included, leaves the
    estimator as it was, as long as the method only sets attributes and does not change their
    contents: it must copy arrays and sums before it adds to them. Callbacks get the draft, so
    `with_callbacks`, which ends their work, must be the inner decorator.
    """

    @functools.wraps(method)
    def committed(self: Any, *args: Any, **kwargs: Any) -> Any:
        draft = object.__new__(type(self))
        vars(draft).update(vars(self))
        try:
            with np.errstate(under="ignore"):  # whatever the caller's np.seterr raises
                method(draft, *args, **kwargs)
        except SystemError as error:
            # Python raises this, and again in each caller, if a signal's handler raises (Ctrl-C)
            # while Numba returns the arrays of a kernel.
            cause: BaseException | None = error
            while isinstance(cause, SystemError):
                cause = cause.__cause__
            if cause is None:
                raise
            raise cause from error
        self.__dict__ = vars(draft)  # one step: never only some of the attributes
        return self

    return committed  # type: ignore[return-value]


# Names that attributes have in pickles of 0.1.0.
_RENAMED = {"_lattices": "_quantizations", "_stream_lattices": "_stream_quantizations"}
_AS_TUPLES = (
    lambda quantizations: tuple(map(tuple, quantizations)),
    lambda state: tuple(Quantization(*quantization) for quantization in state),
)


@functools.lru_cache  # reading signatures takes a millisecond, and an ensemble has many models
def _defaults(kind: type) -> dict[str, Any]:
    """The defaults of the parameters of a class, by name."""
    return {
        parameter.name: parameter.default
        for base in reversed(kind.__mro__)
        for parameter in inspect.signature(base.__init__).parameters.values()  # type: ignore[misc]
        if parameter.default is not parameter.empty
    }


class StateMixin:
    """Pickles without the cache and types of gpurbf: skops asks only about the estimator."""

    # By the name of an attribute: how its value is written, and how it is restored.
    _written: ClassVar[dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]]] = {
        "_activation": (tuple, lambda state: Activation(*state)),
        "_quantizations": _AS_TUPLES,
        "_stream_quantizations": _AS_TUPLES,
        "_normal": (NormalEquations.plain, NormalEquations.from_plain),
    }

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())  # type: ignore[call-overload]
        for name, (write, _) in self._written.items():
            if state.get(name) is not None:
                state[name] = write(state[name])
        # `_cache` stays, as None: if a prediction added it later, a thread that iterates over the
        # attributes meanwhile would fail.
        return state | {"_cache": None, "_gpurbf_version": __version__}

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = {_RENAMED.get(name, name): value for name, value in state.items()}
        version = state.pop("_gpurbf_version", None)
        if version != __version__:
            warn(
                f"This {type(self).__name__} was written by gpurbf {version or 'before 0.1.0'} and "
                f"is read by {__version__}: its predictions may differ or fail. Use the version "
                "that wrote it, or fit it again."
            )
        for name, (_, make) in self._written.items():
            if state.get(name) is not None:
                state[name] = make(state[name])
        # Parameters that its version did not have get their defaults.
        super().__setstate__(_defaults(type(self)) | state)  # type: ignore[misc, arg-type]


try:
    from sklearn.callback import CallbackSupportMixin, with_callbacks
except ImportError:  # scikit-learn < 1.9

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Nothing to support."""

    def with_callbacks(method: Callable) -> Callable:
        """The method as it is."""
        return method


Item = TypeVar("Item")


def say(estimator: Any, text: str, level: int = 1) -> None:
    """Print a line of progress if the estimator's ``verbose`` is at least that."""
    if estimator.verbose >= level:
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"  # which may lack letters
        line = f"[{type(estimator).__name__}] {text}".encode(encoding, "backslashreplace")
        print(line.decode(encoding), flush=True)


def steps(
    estimator: Any,
    items: Iterable[Item],
    n_items: int | None,
    X: Any,
    y: Any,
    name: str = "",
    *,
    stops: bool = True,
) -> Iterator[Item]:
    """The items, each reported as a task of the fit; ends early if a callback asks for it.

    ``name`` is the tasks' name, by default the item; ``n_items`` is None if unknown. ``stops``:
    whether there is a model after each item, so that the fit may end early.
    """
    data, root = {"estimator": estimator, "X": X, "y": y}, None
    if hasattr(estimator, "_init_callback_context"):
        root = estimator._init_callback_context(max_subtasks=n_items)
        root.call_on_fit_task_begin(**data)
    of = "" if n_items is None else f" of {n_items}"
    for number, item in enumerate(items, 1):
        began, label = time.perf_counter(), name or str(item)
        task = None if root is None else root.subcontext(task_name=label)
        if task is not None:
            task.call_on_fit_task_begin(**data)
        yield item
        say(estimator, f"{label}, {number}{of}: {time.perf_counter() - began:.2f} s")
        if task is not None and task.call_on_fit_task_end(**data) and stops:
            break
    if root is not None:
        root.call_on_fit_task_end(**data)


def where_X_is(method: Method) -> Method:
    """Make a method of X return an array like X; labels that are strings stay NumPy arrays.

    The method answers with the model as it is now, also if another thread fits it meanwhile.
    """

    @functools.wraps(method)
    def answered(self: Any, X: Any) -> Any:
        own, model = own_array(X), object.__new__(type(self))
        model.__dict__ = self.__dict__  # which a `transaction` replaces, never changes
        with np.errstate(under="ignore"):  # as in a fit, whatever the caller's np.seterr raises
            result = beside(own, method(model, own))
        if own is X or result.dtype.kind not in "biuf":
            return result
        xp = array_namespace(X)
        if is_resident(result):
            return xp.from_dlpack(result)
        return xp.asarray(result, device=device(X))

    return answered  # type: ignore[return-value]


class ScoreMixin:
    """Accuracy, with labels in any array library and on any device."""

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The fraction of samples whose label is predicted correctly.

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


class LogProbaMixin:
    """Logarithms of what ``predict_proba`` gives."""

    @available_if(lambda self: self.predict_proba)  # its error says why it is missing
    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Logarithms of the class probabilities.

        Parameters
        ----------
        X : array-like or CSR of shape (n_samples, n_features)

        Returns
        -------
        logarithms : ndarray of shape (n_samples, n_classes)
            -inf where a probability is 0.
        """
        found = self.predict_proba(X)  # type: ignore[attr-defined]
        with np.errstate(divide="ignore"):
            return array_namespace(found).log(found)


def new_axes(method: str) -> Any:
    """Axes of a new Matplotlib figure; ``method`` is named in the error."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError(
            f"{method} needs Matplotlib: `python -m pip install matplotlib`."
        ) from error
    return plt.figure().add_subplot()
