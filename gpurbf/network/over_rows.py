"""One look at all rows, wherever they are: in parts of an array here, or where blocks are kept."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["over_rows"]

Result = TypeVar("Result")


def over_rows(
    task: Callable[..., Result],
    merge: Callable[[Result, Result], Result],
    X: Any,
    y: Any = None,
    weights: Any = None,
    *,
    rows: int,
    name: str,
) -> Result:
    """What ``merge`` makes of the results of ``task(X, y, weights, first)`` for parts of the rows.

    Parameters
    ----------
    task : callable
        It is given some rows with their labels and weights, or None for those, and the number of
        the first one.
    merge : callable
        Of the results of two parts, in any order.
    X, y, weights
        Arrays, or one object that has them all: its ``over_rows(task, merge, y, weights, name)``
        does the work then, and y and weights say, by being None or not, what tasks want.
    rows : int
        Of a part of an array.
    name : str
        Of the tasks, for those who watch.
    """
    if hasattr(X, "over_rows"):
        return X.over_rows(task, merge, y is not None, weights is not None, name)

    def part(start: int) -> Result:
        some = slice(start, start + rows)
        own = (None if values is None else values[some] for values in (y, weights))
        return task(X[some], *own, start)

    return functools.reduce(merge, map(part, range(0, max(1, X.shape[0]), rows)))
