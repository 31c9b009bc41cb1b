"""Messages of SVC: callbacks and printed lines during a fit, warnings after it."""

from __future__ import annotations

import numbers
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from gpurbf.estimators._validation import check_gamma
from gpurbf.layer.activation import PRECISIONS
from gpurbf.runtime.checks import check_number, check_option
from gpurbf.runtime.errors import warn

_NAMED = 5


class Progress:
    """Hears of every working set and every solved pair, from the solver's threads.

    Pairs are tasks of scikit-learn's callbacks, working sets their sub-tasks; a callback that asks
    to stop at a working set ends its pair, at a pair all pairs that have not begun.

    Parameters
    ----------
    estimator : SVC
    pairs : list of (label, label)
        Class labels of each pair.
    X, y
        For the callbacks.
    """

    def __init__(self, estimator: Any, pairs: Sequence[Any], X: Any, y: Any) -> None:
        self.estimator, self.pairs = estimator, pairs
        self._data = {"estimator": estimator, "X": X, "y": y}
        self._lock = threading.Lock()
        self._tasks: dict[int, Any] = {}
        self._unfinished: list[str] = []
        self._root = None
        if hasattr(estimator, "_init_callback_context"):
            self._root = estimator._init_callback_context(
                max_subtasks=len(pairs), sequential_subtasks=False
            )
            self._root.call_on_fit_task_begin(**self._data)
        self._heard = self._root is not None and bool(getattr(estimator, "_skl_callbacks", None))

    def stepped(self, p: int, steps: int, violation: float) -> bool:
        """A working set of pair p begins; True to end the pair."""
        if not self._heard and self.estimator.verbose < 2:
            return False
        with self._lock:
            if self.estimator.verbose > 1:
                print(
                    f"[SVC] {self._name(p)}: {steps} steps, violation {violation:.3g}", flush=True
                )
            if not self._heard:
                return False
            step = self._task(p).subcontext(task_name="working set")
            step.call_on_fit_task_begin(**self._data)
            return step.call_on_fit_task_end(**self._data)

    def solved(self, p: int, solution: Any) -> bool:
        """Pair p is done; True to begin no other."""
        with self._lock:
            if self.estimator.verbose:
                print(
                    f"[SVC] {self._name(p)}: {solution.steps} steps, violation "
                    f"{solution.violation:.3g}, duality gap {solution.gap:.3g}, "
                    f"{np.count_nonzero(solution.beta)} support vectors",
                    flush=True,
                )
            if not solution.converged:
                self._unfinished.append(f"{self._name(p)} by {solution.violation:.3g}")
            return self._heard and self._task(p).call_on_fit_task_end(**self._data)

    def finish(self) -> None:
        """End the callbacks' task and warn of the pairs that did not converge."""
        if self._root is not None:
            self._root.call_on_fit_task_end(**self._data)
        if not self._unfinished:
            return
        max_iter, tol, n = self.estimator.max_iter, self.estimator.tol, len(self._unfinished)
        which = "; ".join(self._unfinished[:_NAMED])
        more = f" and {n - _NAMED} more" if n > _NAMED else ""
        warn(
            f"Solver terminated early (max_iter={max_iter}).  Consider pre-processing your data "
            "with StandardScaler or MinMaxScaler. Optimality is violated by more than "
            f"tol={tol} for the class pairs {which}{more}.",
            ConvergenceWarning,
        )

    def _name(self, p: int) -> str:
        return f"({self.pairs[p][0]!s}, {self.pairs[p][1]!s})"

    def _task(self, p: int) -> Any:
        """The pair's task, begun when it is first heard of."""
        if p not in self._tasks and self._root is not None:
            task = self._root.subcontext(task_name="class pair", task_id=p, max_subtasks=None)
            task.call_on_fit_task_begin(**self._data)
            self._tasks[p] = task
        return self._tasks[p]


def check_parameters(estimator: Any, kernels: tuple[str, ...]) -> None:
    """Check every parameter of an SVC.

    Raises
    ------
    ValueError, TypeError
        Naming the parameter, what it got and what it takes.
    """
    if estimator.probability not in (False, "deprecated"):
        raise ValueError(
            f"SVC has no probability={estimator.probability!r}: wrap it, as scikit-learn advises, "
            "in sklearn.calibration.CalibratedClassifierCV(SVC(...), ensemble=False)."
        )
    if estimator.C != np.inf:
        check_number("C", estimator.C, numbers.Real, 0, above=True)
    if not callable(estimator.kernel):
        check_option("kernel", estimator.kernel, (*kernels, "precomputed"), "or a function")
    if not isinstance(estimator.gamma, str) and estimator.gamma == 0:
        pass  # a constant kernel, but scikit-learn's limit
    else:
        check_gamma(estimator.gamma, ("scale", "auto"))
    check_number("degree", estimator.degree, numbers.Integral, 0)
    check_number("coef0", estimator.coef0, numbers.Real, -np.inf)
    check_number("tol", estimator.tol, numbers.Real, 0, above=True)
    check_number("cache_size", estimator.cache_size, numbers.Real, 0, above=True)
    check_number("max_iter", estimator.max_iter, numbers.Integral, -1)
    check_option("decision_function_shape", estimator.decision_function_shape, ("ovr", "ovo"))
    check_option("precision", estimator.precision, PRECISIONS)
    weight = estimator.class_weight
    if not (weight is None or weight == "balanced" or isinstance(weight, Mapping)):
        raise ValueError(f"class_weight must be None, 'balanced' or a dict, got {weight!r}.")
