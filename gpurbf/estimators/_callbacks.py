"""scikit-learn's callbacks (experimental, 1.9) around the steps of a fit; nothing before 1.9."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

try:
    from sklearn.callback import CallbackSupportMixin, with_callbacks
except ImportError:  # scikit-learn < 1.9

    class CallbackSupportMixin:  # type: ignore[no-redef]
        """Nothing to support."""

    def with_callbacks(method: Callable) -> Callable:
        """The method as it is."""
        return method


__all__ = ["CallbackSupportMixin", "steps", "with_callbacks"]

Item = TypeVar("Item")


def steps(
    estimator: Any,
    items: Iterable[Item],
    n_items: int | None,
    X: Any,
    y: Any,
    name: str = "step",
    *,
    stops: bool = True,
) -> Iterator[Item]:
    """The items, each reported as a task of the fit; ends early where a callback asks for it.

    ``name`` is the tasks' name, ``n_items`` None if unknown. ``stops``: whether there is a model
    after any of them, so that the fit may end early.
    """
    if not hasattr(estimator, "_init_callback_context"):
        yield from items
        return
    root = estimator._init_callback_context(max_subtasks=n_items)
    root.call_on_fit_task_begin(estimator=estimator, X=X, y=y)
    for item in items:
        task = root.subcontext(task_name=name)
        task.call_on_fit_task_begin(estimator=estimator, X=X, y=y)
        yield item
        if task.call_on_fit_task_end(estimator=estimator, X=X, y=y) and stops:
            break
    root.call_on_fit_task_end(estimator=estimator, X=X, y=y)
