"""fit and partial_fit as transactions: a model changes as a whole, or not at all."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["transaction"]

Method = TypeVar("Method", bound=Callable[..., Any])


def transaction(method: Method) -> Method:
    """The method run on a draft of the estimator, which replaces it in one step at the end.

    The draft is a new object with the same attributes. Whatever raises, Ctrl-C included, leaves the
    estimator as it was, as long as the method sets attributes and does not change what is in them:
    arrays and sums that it adds to are to be copied first. Callbacks are handed the draft, and so
    `with_callbacks`, which ends their work, belongs inside.
    """

    @functools.wraps(method)
    def committed(self: Any, *args: Any, **kwargs: Any) -> Any:
        draft = object.__new__(type(self))
        vars(draft).update(vars(self))
        try:
            method(draft, *args, **kwargs)
        except SystemError as error:
            # Python's word for an interrupt while Numba hands over what a kernel returns.
            if isinstance(error.__cause__, KeyboardInterrupt):
                raise KeyboardInterrupt from error
            raise
        self.__dict__ = vars(draft)  # one step: no line is between two attributes
        return self

    return committed  # type: ignore[return-value]
