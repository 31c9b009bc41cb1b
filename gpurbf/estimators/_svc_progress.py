"""What SVC tells while it trains: callbacks and printed lines; and afterwards: warnings."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from gpurbf._warnings import warn

__all__ = ["Progress"]

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
